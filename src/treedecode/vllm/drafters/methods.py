"""The speculative methods of vLLM: which can draft trees, and what to use in place of the others. Imports no vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Methods whose drafter becomes the spine of a tree.
SPINE_METHODS = ("draft_model", "eagle", "eagle3", "mtp", "medusa")
# Methods that match text: treedecode's own drafters do that, with trees.
OWN_DRAFTERS = {"ngram": "prompt-lookup", "suffix": "suffix"}

_NO_PARALLEL = "its drafter proposes all tokens at once, for a number fixed when it is built"
_INSTEAD = {
    **{
        method: f'use treedecode\'s own matcher: --drafter {drafter}, or drafter="{drafter}"'
        for method, drafter in OWN_DRAFTERS.items()
    },
    "ngram_gpu": 'use treedecode\'s own matcher: --drafter prompt-lookup, or drafter="prompt-lookup"',
    "dflash": f"{_NO_PARALLEL}; use method eagle3 or draft_model",
    "dspark": f"{_NO_PARALLEL}; use method eagle3 or mtp",
    "extract_hidden_states": "it drafts nothing; run it without treedecode's --worker-cls",
    "mlp_speculator": "vLLM's V1 runner has no drafter for it; use method eagle3 or medusa",
}


def check_method(method: object) -> str:
    """Return ``method`` if its drafter can be the spine of a tree.

    Raises:
        ValueError: it cannot; the message says what to use.
    """
    if isinstance(method, str) and method in SPINE_METHODS:
        return method
    known = ", ".join(SPINE_METHODS)
    if isinstance(method, str) and method in _INSTEAD:
        raise ValueError(f"trees do not support the speculative method {method!r}: {_INSTEAD[method]}")
    raise ValueError(f'"method" of --speculative-config must be one of {known}, got {method!r}')


def check_spine_settings(speculative: Any, hybrid_cache: bool) -> None:
    """Refuse settings of vLLM's ``SpeculativeConfig`` under which a drafter cannot be the spine of a tree.

    Args:
        speculative: the settings.
        hybrid_cache: whether layers of different kinds get KV caches of different kinds.

    Raises:
        ValueError: the first such setting, and how to leave it out.
    """
    schedule = "num_speculative_tokens_per_batch_size"
    for found, what, setting in (
        (speculative.use_local_argmax_reduction, "drafts by local argmax", "use_local_argmax_reduction"),
        (speculative.draft_sample_method != "greedy", "sampled drafts", "draft_sample_method"),
        (speculative.parallel_drafting, "parallel drafting", "parallel_drafting"),
        (
            speculative.disable_padded_drafter_batch,
            "unpadded drafter batches",
            "disable_padded_drafter_batch",
        ),
        (getattr(speculative, schedule) is not None, "a schedule of draft lengths", schedule),
    ):
        if found:
            raise ValueError(f'trees do not support {what}: leave "{setting}" out of --speculative-config')
    kinds = set(getattr(speculative.draft_model_config.hf_text_config, "layer_types", None) or [])
    if speculative.method == "draft_model" and len(kinds) > 1 and hybrid_cache:
        raise ValueError(
            f"trees do not support a draft model with layers of several kinds ({', '.join(sorted(kinds))}) in caches "
            "of their own, nor does vLLM: use --disable-hybrid-kv-cache-manager"
        )
    architectures = getattr(speculative.draft_model_config.hf_config, "architectures", None) or []
    for name in ("Gemma4MTPModel", "Step3p5MTP"):
        if name in architectures:
            raise ValueError(
                f"trees do not support the drafter {name}, which reads the target's KV cache by groups of its own: "
                "use --drafter merged without --speculative-config"
            )


def check_branches(speculative: Any, branches: int, multimodal: bool) -> None:
    """Refuse continuation branches where a drafter cannot draft on several nodes at once.

    Args:
        speculative: vLLM's ``SpeculativeConfig``.
        branches: as ``TreeOptions``.
        multimodal: whether the target reads more than text.

    Raises:
        ValueError: branches are more than one, and why they cannot be.
    """
    if branches == 1:
        return
    heterogeneous = getattr(speculative, "use_heterogeneous_vocab", False)
    for found, what in (
        (speculative.method == "medusa", "Medusa heads, which do not read what was drafted"),
        (heterogeneous, "a draft model with a vocabulary of its own"),
        (multimodal, "multimodal models"),
    ):
        if found:
            raise ValueError(f"branches must be 1 with {what}, got {branches}: leave out --branches")


def own_drafter(speculative: Mapping[str, Any]) -> str | None:
    """The drafter of treedecode that stands for the method, if it is one that matches text.

    Raises:
        ValueError: settings of vLLM's matcher, which treedecode's does not have.
    """
    drafter = OWN_DRAFTERS.get(str(speculative.get("method")))
    unused = sorted(set(speculative) - {"method", "model", "num_speculative_tokens"})
    if drafter and unused:
        raise ValueError(
            f"leave {', '.join(unused)} out of --speculative-config: method {speculative['method']!r} runs as "
            f"treedecode's drafter {drafter!r}, which tries every match length"
        )
    return drafter
