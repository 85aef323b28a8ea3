"""The guard in simulated decoding: what it loses where trees do not pay, and how soon it is back where they do."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from treedecode.gains import PlainReference
from treedecode.guard import (
    ALLOWANCE,
    CREDIT,
    LONGEST_REST,
    LOOK_SHARE,
    MAX_CHANGES,
    NUM_LOOKS,
    REST,
    Guard,
    Look,
    Mode,
)

PLAIN_MS = 10.0
# steps after which the bound of the class holds
HORIZON = 512


@dataclass
class World:
    """A machine and a text: what a step of every mode takes and gives.

    Attributes:
        accepted: by mode and step, the mean number of accepted tokens (geometric).
        cost: true cost of a step of 9 rows (tree) and 4 rows (chain), in plain steps.
        draft: drafting, in plain steps.
        speed: true over predicted time of every step.
        curve: what the cost curve says of the rows of each mode; the truth if not given.
        promised: what drafts promise to be accepted; the truth if not given.
    """

    accepted: Callable[[Mode, int], float]
    cost: dict[Mode, float] = field(default_factory=lambda: {Mode.TREE: 1.5, Mode.CHAIN: 1.2, Mode.NONE: 1.0})
    draft: float = 0.02
    speed: Callable[[int], float] = lambda step: 1.0
    curve: dict[Mode, float] | None = None
    promised: float | None = None
    noise: float = 0.05
    seed: int = 0


@dataclass
class Run:
    """What came of it, in true plain steps."""

    modes: list[Mode]
    spent: list[float]
    emitted: list[int]

    def loss(self, first: int = 0, last: int | None = None) -> float:
        """Time over that of plain decoding of the same tokens, in plain steps."""
        return sum(self.spent[first:last]) - sum(self.emitted[first:last])


def simulate(world: World, num_steps: int, guard: Guard | None = None) -> tuple[Run, Guard]:
    guard = guard or Guard()
    rng = random.Random(world.seed)
    run = Run([], [], [])
    curve = world.curve or world.cost
    looks: list[tuple[int, Look]] = []

    def accepted(mode: Mode, step: int) -> int:
        mean, count = world.accepted(mode, step), 0
        while count < 8 and rng.random() < mean / (1.0 + mean):
            count += 1
        return count

    for step in range(num_steps):
        mode, draft = guard.mode, world.draft if guard.drafts else 0.0
        if guard.looks:
            seen = [(accepted(kind, step), PLAIN_MS * curve[kind]) for kind in (Mode.TREE, Mode.CHAIN)]
            looks.append((step + 3, Look(*seen[0], *seen[1], PLAIN_MS * curve[Mode.NONE])))
        count = 0 if mode is Mode.NONE else accepted(mode, step)
        noise = rng.uniform(1.0 - 1.7 * world.noise, 1.0 + 1.7 * world.noise)
        if world.noise and rng.random() < 0.005:
            noise = 8.0  # the machine pauses
        forward = world.cost[mode] * noise * world.speed(step)
        run.modes.append(mode)
        run.spent.append(world.cost[mode] + draft)  # noise and speed are as they are without drafts
        run.emitted.append(1 + count)
        promised = world.accepted(mode, step) if world.promised is None else world.promised
        draft *= world.speed(step)
        guard.record(
            1 + count,
            PLAIN_MS * (forward + draft),
            PLAIN_MS * draft,
            {Mode.TREE: 8, Mode.CHAIN: 3, Mode.NONE: 0}[mode],
            0.0 if mode is Mode.NONE else promised,
            PLAIN_MS * curve[mode],
            PLAIN_MS * curve[Mode.NONE],
        )
        while looks and looks[0][0] <= step:
            guard.looked(looks.pop(0)[1])
    return run, guard


SEEDS = range(5)
# mean accepted tokens of a tree that pays, and of its best chain, which pays less
GOOD = {Mode.TREE: 1.5, Mode.CHAIN: 0.7, Mode.NONE: 0.0}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("noise", [0.0, 0.05, 0.15])
@pytest.mark.parametrize("promised", [0.0, 2.0])
def test_trees_that_are_never_accepted_cost_two_percent_at_most(
    seed: int, noise: float, promised: float
) -> None:
    """Whether the drafter knows that it is wrong or swears that it is right."""
    world = World(lambda mode, step: 0.0, promised=promised, noise=noise, seed=seed)
    run, guard = simulate(world, 4 * HORIZON)
    worst = world.cost[Mode.TREE] - 1.0 + world.draft
    assert {change.mode for change in guard.changes[2:]} == {Mode.NONE}  # no look succeeds
    lost = itertools.accumulate(
        spent - emitted for spent, emitted in zip(run.spent, run.emitted, strict=True)
    )
    for end, loss in enumerate(lost, 1):
        assert loss <= (1.1 + 3.0 * noise) * ALLOWANCE + worst + LOOK_SHARE * end + NUM_LOOKS * world.draft
        assert end < HORIZON * (1 if noise < 0.1 else 2) or loss <= 0.02 * end
    assert any(
        run.spent[i] > 1.0 for i in range(len(run.spent) - 2 * LONGEST_REST * REST, len(run.spent))
    )  # still looks


@pytest.mark.parametrize("seed", SEEDS)
def test_drafting_alone_counts(seed: int) -> None:
    """No tree pays, and looking for one takes 4% of a plain step: found out although no step is slow."""
    cost = dict.fromkeys(Mode, 1.0)
    run, _ = simulate(World(lambda mode, step: 0.0, cost, draft=0.04, noise=0.03, seed=seed), 2 * HORIZON)
    assert run.loss() <= 0.02 * sum(run.emitted)
    # and one that takes 0.5% is left alone, as dry spells end
    run, guard = simulate(World(lambda mode, step: 0.0, cost, draft=0.005, noise=0.0, seed=seed), HORIZON)
    assert guard.mode is Mode.TREE
    assert run.loss() <= 0.01 * sum(run.emitted)


@pytest.mark.parametrize("seed", SEEDS)
def test_trees_that_pay_are_kept(seed: int) -> None:
    run, guard = simulate(World(lambda mode, step: GOOD[mode], seed=seed), 2000)
    assert run.modes.count(Mode.TREE) > 0.95 * len(run.modes)
    assert guard.mode in (Mode.TREE, Mode.NONE)  # or a check
    assert run.loss() < -0.85 * 2000 * (2.5 - 1.52)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_dry_spell_that_is_short_changes_nothing(seed: int) -> None:
    """Copies of 8 steps in text that drafts cannot foresee: what the copies earned pays for the time between."""
    costs = {Mode.TREE: 1.05, Mode.CHAIN: 1.05, Mode.NONE: 1.0}
    world = World(lambda mode, step: 2 * GOOD[mode] if step % 60 < 8 else 0.0, costs, seed=seed)
    run, _ = simulate(world, 2000)
    always = sum((1 + (step % 60 < 8) * 3.0) - 1.07 for step in range(2000))
    assert -run.loss() > 0.7 * always


@pytest.mark.parametrize("seed", SEEDS)
def test_trees_that_stop_paying_are_given_up_and_taken_up_again(seed: int) -> None:
    stop, again = 600, 1400
    world = World(lambda mode, step: 0.0 if stop <= step < again else GOOD[mode], promised=1.5, seed=seed)
    run, _ = simulate(world, 3000)
    assert run.loss(stop, again) <= CREDIT + ALLOWANCE + 1.0 + 0.01 * (again - stop)
    assert run.loss(0, again) < 0.02 * again  # and that credit had been earned
    assert run.modes[stop + 80 : again].count(Mode.NONE) > 0.85 * (again - stop - 80)
    back = next(i for i in range(again, 3000) if run.modes[i : i + 40].count(Mode.TREE) > 35)
    assert back - again <= 400
    assert run.loss() < 0


@pytest.mark.parametrize("seed", SEEDS)
def test_a_short_failure_is_followed_by_a_short_rest(seed: int) -> None:
    """Looks come often at first: the wait for trees is of the order of the spell without."""
    world = World(lambda mode, step: 0.0 if 300 <= step < 360 else GOOD[mode], promised=1.5, seed=seed)
    run, _ = simulate(world, 800)
    back = next(i for i in range(360, 800) if run.modes[i : i + 40].count(Mode.TREE) > 35)
    assert back - 360 <= 6 * 60


@pytest.mark.parametrize("seed", SEEDS)
def test_chains_are_kept_where_only_they_pay(seed: int) -> None:
    costs = {Mode.TREE: 3.0, Mode.CHAIN: 1.2, Mode.NONE: 1.0}
    world = World(lambda mode, step: 1.2, costs, promised=1.2, seed=seed)
    run, _ = simulate(world, 2000)
    assert run.modes[200:].count(Mode.CHAIN) > 0.8 * 1800
    assert run.loss() < 0


@pytest.mark.parametrize("seed", SEEDS)
def test_trees_that_beat_a_working_chain_take_over(seed: int) -> None:
    """At first trees do not pay and chains do; later both pay, trees more."""

    def accepted(mode: Mode, step: int) -> float:
        return (0.0 if step < 300 else 3.0) if mode is Mode.TREE else 0.8

    run, _ = simulate(World(accepted, promised=1.0, seed=seed), 2500)
    assert run.modes[100:300].count(Mode.CHAIN) > 100
    assert run.modes[1500:].count(Mode.TREE) > 900


TRUE = {Mode.TREE: 1.5, Mode.CHAIN: 1.2, Mode.NONE: 1.0}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "curve",
    [
        {Mode.TREE: 3.0, Mode.CHAIN: 2.4, Mode.NONE: 2.0},
        {Mode.TREE: 0.75, Mode.CHAIN: 0.6, Mode.NONE: 0.5},
        {Mode.TREE: 1.5, Mode.CHAIN: 1.2, Mode.NONE: 2.0},
        {Mode.TREE: 1.5, Mode.CHAIN: 1.2, Mode.NONE: 0.5},
        {Mode.TREE: 3.0, Mode.CHAIN: 2.4, Mode.NONE: 1.0},
        {Mode.TREE: 0.75, Mode.CHAIN: 0.6, Mode.NONE: 1.0},
    ],
    ids=["all half", "all double", "plain half", "plain double", "trees half", "trees double"],
)
def test_a_curve_that_lies_by_two_is_found_out(curve: dict[Mode, float], seed: int) -> None:
    """Bad trees are left and good ones kept, whatever the curve says."""
    bad, guard = simulate(World(lambda mode, step: 0.2, curve=curve, seed=seed), HORIZON)
    assert bad.loss() <= 0.02 * sum(bad.emitted)
    assert guard.plain_scale == pytest.approx(1.0 / curve[Mode.NONE], rel=0.1)
    good, _ = simulate(World(lambda mode, step: GOOD[mode], curve=curve, seed=seed), HORIZON)
    assert good.modes.count(Mode.TREE) > 0.93 * HORIZON


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("change", [2.0, 0.5])
def test_a_machine_that_changes_its_speed_is_not_the_trees_doing(change: float, seed: int) -> None:
    world = World(lambda mode, step: GOOD[mode], speed=lambda step: change if step >= 300 else 1.0, seed=seed)
    run, guard = simulate(world, 1000)
    assert run.modes.count(Mode.TREE) > 0.93 * 1000
    assert guard.plain_scale == pytest.approx(change, rel=0.1)


@pytest.mark.parametrize("seed", SEEDS)
def test_plain_steps_that_became_faster_alone_are_noticed(seed: int) -> None:
    """Trees paid, and then plain decoding got cheaper while tree steps did not: only a plain step can tell."""
    world = World(lambda mode, step: GOOD[mode], seed=seed)
    run, guard = simulate(world, 400)
    before = run.modes.count(Mode.TREE)
    assert before > 350
    world = World(lambda mode, step: GOOD[mode], {Mode.TREE: 3.2, Mode.CHAIN: 2.8, Mode.NONE: 1.0}, seed=seed)
    world.curve = TRUE | {Mode.TREE: 3.2, Mode.CHAIN: 2.8, Mode.NONE: 1.0}
    guard._plain.add(1.0)
    run, guard = simulate(world, 1500, guard)
    assert run.modes[600:].count(Mode.NONE) > 0.8 * 900


def test_the_reference_is_measured_once_for_all_requests() -> None:
    reference = PlainReference()
    first, second = Guard(reference), Guard(reference)
    assert first.mode is second.mode is Mode.NONE
    for _ in range(5):
        first.record(1, 11.0, 0.0, 0, 0.0, 10.0, 10.0)
    assert first.mode is Mode.TREE
    assert [change.reason for change in first.changes] == [
        "plain steps are measured",
        "plain steps were measured",
    ]
    assert Guard(reference).mode is Mode.TREE
    assert Guard(reference).plain_scale == pytest.approx(1.1)


def test_a_check_forgets_what_was_measured_before_if_it_was_of_another_kind() -> None:
    for ratio, expected in ((2.0, 2.0), (1.05, 1.0)):
        reference = PlainReference()
        for _ in range(20):
            reference.add(1.0)
        for _ in range(3):
            reference.add(ratio)
        assert reference.scale == 1.0
        reference.settle(3, 1.0)
        assert reference.scale == expected
        reference.add(ratio)
        assert reference.scale == expected


def test_what_was_lost_by_a_wrong_measure_is_no_loss() -> None:
    """The machine becomes half as fast: the account of the steps until that is noticed is void."""
    reference = PlainReference()
    reference.add(1.0)
    guard = Guard(reference)
    for _ in range(20):
        guard.record(2, 19.0, 0.1, 8, 1.0, 19.0, 10.0)
    while guard.mode is Mode.TREE:
        guard.record(2, 38.0, 0.1, 8, 1.0, 19.0, 10.0)
    assert guard._account < 0.0
    for _ in range(3):
        guard.record(1, 20.0, 0.0, 0, 0.0, 10.0, 10.0)
    assert guard.mode is Mode.TREE
    assert guard._account == 0.0


def test_steps_at_which_nothing_was_verified_measure_plain_decoding() -> None:
    guard = Guard()
    for _ in range(5):
        guard.record(1, 10.0, 0.0, 0, 0.0, 10.0, 10.0)
    for _ in range(12):
        guard.record(1, 12.05, 0.05, 0, 0.0, 10.0, 10.0)
    assert guard.plain_scale == pytest.approx(1.2)
    assert guard.mode is Mode.TREE


@pytest.mark.parametrize("seed", SEEDS)
def test_modes_do_not_flap_at_break_even(seed: int) -> None:
    """Mean gain of nothing, with all the noise of acceptance."""
    world = World(lambda mode, step: 0.52 if mode is Mode.TREE else 0.22, promised=0.5, seed=seed)
    run, guard = simulate(world, 4000)
    assert len(guard.changes) < 4000 / 20
    assert run.loss() < 0.02 * sum(run.emitted)


def test_drafts_are_not_given_up_by_plain_steps_of_another_request() -> None:
    """The machine was twice as fast when the model was loaded: plain steps of this text are run before judging."""
    reference = PlainReference()
    reference.add(1.0)
    guard = Guard(reference)
    for _ in range(12):  # half a token accepted per step, at 1.4 plain steps of now
        guard.record(
            1 if guard.mode is Mode.NONE else 2,
            20.0 if guard.mode is Mode.NONE else 28.0,
            0.0,
            0 if guard.mode is Mode.NONE else 4,
            0.5,
            14.0,
            10.0,
        )
        if guard.mode is Mode.NONE:
            assert guard.changes[-1].measures
    assert guard.mode is Mode.TREE
    assert guard.plain_scale > 1.5


def test_looks_that_are_never_told_do_not_end_drafting() -> None:
    """The texts of a look may end, or go on in batches of another size."""
    guard = Guard()
    asked = []
    for _ in range(600):
        asked.append(guard.drafts)
        verified = 4 if guard.mode is not Mode.NONE else 0
        guard.record(1, 30.0 if verified else 10.0, 0.0, verified, 0.0, 14.0, 10.0)
    assert guard.mode is Mode.NONE and any(asked[-250:]) and not all(asked[-250:])


BAD = {Mode.TREE: 0.0, Mode.CHAIN: 0.0, Mode.NONE: 0.0}
TEXT = 100


def texts(kinds: str, seed: int) -> tuple[list[Run], Guard]:
    """Texts one after the other under one guard, "g" where trees pay and "b" where nothing does."""
    guard, runs = Guard(), []
    for place, kind in enumerate(kinds):
        mean = GOOD if kind == "g" else BAD
        if place:
            guard.renew()
        run, guard = simulate(
            World(lambda mode, step, mean=mean: mean[mode], seed=seed * 100 + place), TEXT, guard
        )
        runs.append(run)
    return runs, guard


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("before", ["b", "bb", "gb"])
def test_a_new_text_has_its_trees_at_once(before: str, seed: int) -> None:
    runs, guard = texts(before + "g", seed)
    assert runs[len(before) - 1].modes[-1] is Mode.NONE
    assert runs[-1].modes.count(Mode.TREE) > 0.9 * TEXT and guard.mode is Mode.TREE


@pytest.mark.parametrize("seed", SEEDS)
def test_many_new_texts_without_gain_cost_little(seed: int) -> None:
    runs, _ = texts("b" * 30, seed)
    assert sum(run.loss() for run in runs) < 0.02 * 30 * TEXT


@pytest.mark.parametrize("draft", [0.02, 0.1])
@pytest.mark.parametrize("length", [4, 8, 12, 20, 32])
def test_texts_too_short_to_be_judged_lose_little_together(length: int, draft: float) -> None:
    """Classifiers emit a few tokens each: debts that every text is forgiven would never end drafting."""
    guard, loss, num_texts = Guard(), 0.0, 2000 // length
    for seed in range(num_texts):
        if seed:
            guard.renew()
        run, guard = simulate(World(lambda mode, step: 0.0, seed=seed, draft=draft), length, guard)
        loss += run.loss()
    assert guard.mode is Mode.NONE and loss < 0.02 * num_texts * length


@pytest.mark.parametrize("seed", SEEDS)
def test_after_many_texts_without_gain_looks_find_the_one_that_has_it(seed: int) -> None:
    runs, guard = texts("b" * 8 + "g" * 5, seed)
    assert guard.mode is Mode.TREE and runs[-1].modes.count(Mode.TREE) > 0.9 * TEXT


def test_a_working_text_keeps_what_it_earned_and_nothing_it_owes() -> None:
    guard = Guard()
    simulate(World(lambda mode, step: GOOD[mode]), 64, guard)
    earned = guard._account
    guard.renew()
    assert guard._account == earned > 0.0 and guard.mode is Mode.TREE
    guard._account = -3.0
    guard.renew()
    assert guard._account == 0.0


def test_a_long_service_keeps_only_the_latest_changes() -> None:
    guard = Guard()
    for _ in range(150 * MAX_CHANGES):  # plain steps are measured anew every 256 steps: two changes
        tree = guard.mode is not Mode.NONE
        guard.record(3 if tree else 1, 12.0 if tree else 10.0, 0.0, 8 * tree, 2.0, 12.0, 10.0)
    assert len(guard.changes) == MAX_CHANGES and guard.changes[0].step > 10_000
    assert guard.changes[-1].step > 149 * MAX_CHANGES
