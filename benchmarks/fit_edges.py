"""Fits the prior weights of the merged drafter's edge model and writes ``src/treedecode/drafters/edge_weights.py``.

    python benchmarks/fit_edges.py            # about ten minutes on two cores

Decodes the tuning prompts greedily with trees, records every context that the edge model learned from with what the
target said there, and fits the model to all of them: multinomial logistic regression with a ridge towards a smooth
start. Uses no prompt of any benchmark.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from unittest import mock

import torch
from torch import Tensor

import treedecode as td
from common import load_prompts
from treedecode.drafters.edge_model import Candidates, EdgeModel
from treedecode.drafters.recycling import MAX_ORDER, NUM_BINS, NUM_ROW_FEATURES, NUM_SECOND_FEATURES
from treedecode.drafters.suffix import NUM_LENGTH_BINS, NUM_SUFFIX_FEATURES

HERE = Path(__file__).parent
TARGET = HERE.parent / "src/treedecode/drafters/edge_weights.py"
SIZES = (NUM_ROW_FEATURES, NUM_SECOND_FEATURES, NUM_SUFFIX_FEATURES, (MAX_ORDER + 1) * NUM_LENGTH_BINS)
# Drafter, budget, and weight of its contexts: small, large and live trees; each source alone counts less.
RUNS = (
    ("merged", 6, 1.0),
    ("merged", 24, 1.0),
    ("merged", "auto", 1.0),
    ("suffix", 8, 0.3),
    ("recycling", 8, 0.3),
)
# A text with many contexts (few tokens per step) counts no more than one with this many.
CONTEXTS_PER_TEXT = 60
# Most candidates of a context that the fit looks at.
WIDTH = 24
RIDGE = 0.4

Context = tuple[Candidates, int, float]


def collect(model: td.LoadedModel, prompts: list[str], num_tokens: int) -> list[Context]:
    """Contexts reached while decoding, the token the target chose there, and a weight."""
    contexts: list[Context] = []
    for drafter, budget, weight in RUNS:
        for prompt in prompts:
            seen: list[tuple[Candidates, int]] = []
            learn = EdgeModel.learn

            def record(self: EdgeModel, candidates: Candidates, token: int, seen=seen, learn=learn) -> None:
                seen.append((candidates, token))
                learn(self, candidates, token)

            with mock.patch.object(EdgeModel, "learn", record):
                td.generate(model, prompt, max_new_tokens=num_tokens, budget=budget, drafter=drafter)  # type: ignore[arg-type]
            share = weight * min(1.0, CONTEXTS_PER_TEXT / max(1, len(seen)))
            contexts += [(candidates, token, share) for candidates, token in seen]
        print(f"{drafter}, budget {budget}: {len(contexts)} contexts so far", flush=True)
    return contexts


def start() -> list[float]:
    """Log weights before any data: sure candidates and long matches weigh more, in even steps."""
    row, second, suffix, other = ([0.0] * size for size in SIZES)
    for bin_ in range(NUM_BINS):
        for order in range(MAX_ORDER):
            row[1 + order * (NUM_BINS + 1) + bin_] = -3.0 + 0.45 * bin_
        for kind in range(4):
            second[1 + kind * NUM_BINS + bin_] = 0.15 * (bin_ - 3)
    for order in range(1, MAX_ORDER + 1):
        row[order * (NUM_BINS + 1)] = -1.3
    states = (0.3, 0.6, 0.9, 1.3, 0.6, -0.2, -0.2, -0.4, -0.5, -1.0)
    for length in range(NUM_LENGTH_BINS - 1):
        for state, weight in enumerate(states):
            suffix[1 + length * len(states) + state] = weight + 0.65 * length
    return row + second + suffix + other


def fit(contexts: list[Context], num_steps: int = 250) -> list[list[float]]:
    """Log weights ``[row, second, suffix, other]`` of highest penalised likelihood."""
    features = torch.zeros(len(contexts), WIDTH, 3, dtype=torch.long)
    hidden = torch.full((len(contexts), WIDTH), -1e9)
    others = torch.zeros(len(contexts), dtype=torch.long)
    truth = torch.full((len(contexts),), WIDTH)
    offsets = torch.tensor([0, SIZES[0], SIZES[0] + SIZES[1]])
    for i, (candidates, token, _) in enumerate(contexts):
        tokens = candidates.tokens[:WIDTH]
        if tokens:
            columns = (candidates.row_features, candidates.second_features, candidates.suffix_features)
            features[i, : len(tokens)] = torch.tensor([column[:WIDTH] for column in columns]).T
            hidden[i, : len(tokens)] = 0.0
        others[i] = sum(SIZES[:3]) + candidates.other_feature
        if token in tokens:
            truth[i] = tokens.index(token)
    features += offsets
    shares = torch.tensor([share for *_, share in contexts])
    prior = torch.tensor(start())
    weights = prior.clone().requires_grad_()
    optimiser = torch.optim.Adam([weights], lr=0.06)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, num_steps, eta_min=0.005)
    loss: Tensor = torch.zeros(())
    for _ in range(num_steps):
        scores = torch.cat([weights[features].sum(-1) + hidden, weights[others][:, None]], dim=1)
        loss = (torch.nn.functional.cross_entropy(scores, truth, reduction="none") * shares).sum()
        optimiser.zero_grad()
        (loss + RIDGE * (weights - prior).square().sum()).backward()
        assert weights.grad is not None
        weights.grad[offsets] = 0.0  # "nothing is known" weighs nothing
        optimiser.step()
        schedule.step()
    print(f"{loss.item() / shares.sum().item():.4f} nats per context, {len(contexts)} contexts")
    return [part.tolist() for part in weights.detach().split(SIZES)]


# Every table: name, comment, and (number of weights, label) of each line.
_LENGTHS = ("1", "2", "3", "4 or 5", "6 or 7", "8 to 11", "12 to 15", "16 to 23", "24 or more")
_KINDS = ("last token", "last two tokens", "one before the last", "two before the last")
TABLES = (
    (
        "ROW",
        'By length of the known context: 11 confidence bins, least likely first; then "not in the row".',
        ((1, "no row"), *((NUM_BINS + 1, f"last {order}") for order in range(1, MAX_ORDER + 1))),
    ),
    (
        "SECOND",
        "By kind of second row: 11 confidence bins, least likely first.",
        ((1, "not in it"), *((NUM_BINS, kind) for kind in _KINDS)),
    ),
    (
        "SUFFIX",
        "By match length: the only follower, seen 1, 2, 3, 4+ times; the latest of several, in most cases or not;\n"
        "the one before it, in most cases or not; earlier ones, in over a quarter of cases or not. Last row: known\n"
        "only from a shorter match of 0 to 8 tokens, the latest there or not.",
        ((1, "no match"), *((10, f"match of {length}") for length in _LENGTHS), (18, "shorter match")),
    ),
    (
        "OTHER",
        "By length of the row's context: no match, then by match length as above.",
        tuple((NUM_LENGTH_BINS, label) for label in ("no row", "last 1", "last 2", "last 3")),
    ),
)


def source(weights: list[list[float]], provenance: str) -> str:
    """The text of ``edge_weights.py``."""
    parts = [
        '"""Prior log weights of ``EdgeModel``: where every request starts from.',
        "",
        "Fitted to what the target said after every context reached while decoding the tuning prompts, none of which",
        f"is in a test or a benchmark: {provenance}.",
        '"""',
        "",
        "from __future__ import annotations",
        "",
        "# fmt: off",
    ]
    for (name, comment, lines), values in zip(TABLES, weights, strict=True):
        parts += [*(f"# {line}" for line in comment.splitlines()), f"{name} = ("]
        at = 0
        for count, label in lines:
            parts.append(f"    {' '.join(f'{value:.2f},' for value in values[at : at + count])}  # {label}")
            at += count
        parts += [")", ""]
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="default")
    parser.add_argument("--prompts", type=Path, default=HERE / "tuning_prompts.jsonl")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--limit", type=int, help="only so many prompts")
    parser.add_argument("--output", type=Path, default=TARGET)
    options = parser.parse_args()
    prompts = [prompt["turns"][0] for prompt in load_prompts(options.prompts)][: options.limit]
    contexts = collect(td.load(options.model), prompts, options.max_new_tokens)
    provenance = (
        f"python benchmarks/fit_edges.py, {len(prompts)} prompts, {options.max_new_tokens} tokens each"
    )
    options.output.write_text(source(fit(contexts), provenance))


if __name__ == "__main__":
    main()
