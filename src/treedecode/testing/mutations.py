"""Faults of sampled walks, planted on purpose: a suite that passes under one of them proves nothing.

Most have been in published code. ``MUTATIONS`` maps a name to a faulty sampler; every one differs from the core in
one place. Point your own suite at them.
"""

from __future__ import annotations

from treedecode import accept_sampling, rejection, traversal
from treedecode.testing import faulty_inputs as inputs
from treedecode.testing import faulty_walks as walks
from treedecode.testing.planting import Mutation, driven, misread, relisted, replaced
from treedecode.testing.reference import Drafted

EVERY = ("one_draw", "with_replacement", "without_replacement", "traversal", "traversal_with_replacement")
SAMPLED = EVERY[1:]
TOP_DOWN, BOTTOM_UP = EVERY[1:3], EVERY[3:]
REPLACED, NOT_REPLACED = (EVERY[1], EVERY[4]), (EVERY[2], EVERY[3])
WITHOUT = ((rejection, "without"), (traversal, "without"))


# ---- drawn siblings handled as if they were a list (CASES.md 20b-20d)


def by_draft_probability(drafted: Drafted, node: int, children: list[int]) -> list[int]:
    """Likeliest first."""
    return sorted(children, key=lambda child: -drafted.draft_probs[node][drafted.token_ids[child]])


def merged(drafted: Drafted, node: int, children: list[int]) -> list[int]:
    """The first of every token."""
    tokens = [drafted.token_ids[child] for child in children]
    return [child for place, child in enumerate(children) if tokens[place] not in tokens[:place]]


def confident(drafted: Drafted, node: int, children: list[int]) -> list[int]:
    """Those with a draft probability of at least 1/4."""
    return [child for child in children if drafted.draft_probs[node][drafted.token_ids[child]] >= 0.25]


def legal(drafted: Drafted, node: int, children: list[int]) -> list[int]:
    """Those that the target's mask allows."""
    return [child for child in children if drafted.target_probs[node][drafted.token_ids[child]] > 0]


def backwards(drafted: Drafted, node: int, children: list[int]) -> list[int]:
    """Last first."""
    return children[::-1]


MUTATIONS: dict[str, Mutation] = {
    # decisions
    "accept with <=": replaced(TOP_DOWN, walks.accept_or_equal, (rejection, "accepts")),
    "judge with <=": replaced(BOTTOM_UP, walks.judged_or_equal, (traversal, "accepts")),
    "ratio upside down": replaced(TOP_DOWN, walks.inverted_ratio, (rejection, "accepts")),
    "accept what was not drawn": replaced((EVERY[2],), walks.accept_undrawn, (rejection, "accepts")),
    "draw the first that reaches u": replaced(EVERY, walks.first_reaching, (accept_sampling, "draw")),
    "greedy last token": replaced(SAMPLED, walks.greedy_draw, (accept_sampling, "draw")),
    # residuals
    "residual not normalised": replaced(TOP_DOWN, walks.residual_as_it_is, (rejection, "residual")),
    "residual softmaxed": replaced(TOP_DOWN, walks.softmaxed_residual, (rejection, "residual")),
    "residual of absolute differences": replaced(TOP_DOWN, walks.absolute_residual, (rejection, "residual")),
    "no residual": replaced(TOP_DOWN, walks.no_residual, (rejection, "residual")),
    "siblings not renormalised": replaced(NOT_REPLACED, walks.not_renormalised, *WITHOUT),
    "draft unchanged between siblings": replaced(NOT_REPLACED, walks.unchanged, *WITHOUT),
    "path weight forgotten": replaced(BOTTOM_UP, walks.path_weight_forgotten, (traversal, "entry_weight")),
    "weight not updated": replaced(BOTTOM_UP, walks.weight_not_updated, (traversal, "remainder")),
    "residual of the token, not of the path": replaced(
        BOTTOM_UP, walks.residual_of_the_token, (traversal, "remainder")
    ),
    # rows
    "bonus from the wrong node": misread(EVERY, inputs.bonus_of_the_parent),
    "wrong row of logits at depth 2": misread(EVERY, inputs.wrong_row_at_depth_two),
    "rows one off": misread(EVERY, inputs.one_row_off),
    "temperature ignored": misread(EVERY, inputs.temperature_ignored),
    "temperature of a batch mate": Mutation(inputs.temperature_of_a_batch_mate, EVERY),
    "top-p applied after": Mutation(inputs.top_p_after, EVERY),
    "draft probabilities of another temperature": misread(SAMPLED, inputs.other_draft_temperature),
    "list read as a draw": misread(SAMPLED, inputs.list_read_as_a_draw),
    # numbers
    "one number for all decisions": misread(EVERY, inputs.one_number_for_all),
    "shared random stream": misread(SAMPLED, inputs.numbers_of_the_drafts),
    "draw per path": Mutation(inputs.draw_per_path, ("one_draw",)),
    # siblings
    "siblings sorted by draft probability": driven(NOT_REPLACED, relisted(by_draft_probability)),
    "siblings in reverse": driven(NOT_REPLACED, relisted(backwards)),
    "duplicate siblings merged": driven(REPLACED, relisted(merged)),
    "duplicate siblings counted twice": driven(REPLACED, relisted(merged, recount=True)),
    "drawn siblings pruned by confidence": driven(SAMPLED, relisted(confident)),
    "drawn siblings pruned by a grammar": driven(SAMPLED, relisted(legal)),
}
