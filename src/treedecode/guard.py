"""The guard: measures whether trees pay, and falls back to chains or to plain decoding where they do not."""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass
from enum import StrEnum

from treedecode.gains import GainWindow, PlainReference, is_gain

# Changes of mode that are kept.
MAX_CHANGES = 1000
# In units of plain steps: what may be lost before drafts are given up, what a trial may lose, and what drafts that pay
# may earn towards a dry spell.
ALLOWANCE, TRIAL_ALLOWANCE, CREDIT = 6.0, 3.0, 16.0
# Loss per step that is not acted upon: the price of looking for drafts in text that has none.
TOLERANCE = 0.01
# Drafts of a look, plain steps between two looks, and the share of the time that looks may take: rests are longer for a
# drafter that takes long. After trials in vain rests are up to so many times as long.
NUM_LOOKS, REST, LOOK_SHARE, LONGEST_REST = 16, 16, 0.005, 16

# A mean gain counts as a loss if it is so many standard errors below zero, seen over so many steps, once that has cost
# so many plain steps. A text often begins with a dozen steps that drafters know nothing of, and as a whole is twice as
# fast as plain decoding: those must not decide.
_NUM_ERRORS, _FEWEST, _LEAST = 2.0, 12, 2.0
# Steps that tell whether the model has become slower or faster.
_FEWEST_DRIFTED = 6
# Plain steps of the first check and of later ones. After so many steps what plain steps take is old if it matters now,
# and old at any rate.
_FIRST_CHECK, _CHECK, _STALE, _OLD = 5, 3, 16, 256
# New texts in a row that get a trial without a look and owe nothing, though the ones before have lost.
_NUM_BLIND = 2
# Plain steps after the last draft of a look in which its outcome must be known.
_PATIENCE = 64
# Steps of a model that has become so much slower or faster make a check due, and so much of a change in what plain
# steps take makes the account void.
_DRIFT, _CHANGE = 1.3, 1.05


class Mode(StrEnum):
    """What is drafted."""

    TREE = "tree"
    CHAIN = "chain"
    NONE = "none"


@dataclass(frozen=True)
class ModeChange:
    """The guard took another mode.

    Attributes:
        step: number of steps before it.
        mode: from then on.
        reason: in a few words.
        measures: it is only for a few plain steps, to measure them.
    """

    step: int
    mode: Mode
    reason: str
    measures: bool = False


@dataclass(frozen=True)
class Look:
    """What a draft that was not verified would have given, known once the text went on.

    Attributes:
        tree_accepted, chain_accepted: tokens of the tree, and of its best chain, that the text followed.
        tree_ms, chain_ms: what a step with either takes by the cost curve.
        plain_ms: what a plain step takes by the cost curve.
    """

    tree_accepted: float
    tree_ms: float
    chain_accepted: float
    chain_ms: float
    plain_ms: float


class Guard:
    """Keeps drafting from costing more than it gives, by what steps really took and emitted.

    The gain of every step against plain decoding (tokens emitted, in plain steps, less its own time, drafting
    included) goes to an account of at most ``CREDIT``. Drafts are given up once it is overdrawn by ``ALLOWANCE``, or
    earlier if it is overdrawn and the mean gain is below zero beyond noise. Then come looks: ``NUM_LOOKS`` drafts are
    made and not verified, and compared with the plain text that follows. What would have paid beyond noise, the tree
    or its best chain, gets a trial, which may lose ``TRIAL_ALLOWANCE``. If neither would, nothing is drafted for
    ``REST`` steps, or for as long as makes looks take ``LOOK_SHARE`` of the time; every trial in vain doubles the
    rests, up to ``LONGEST_REST`` times. While chains are verified, looks at the trees they are cut from are free, and
    trees get a trial against the chain once they look better. Allowances, margins and rests are the hysteresis: noise
    about break-even does not change modes at every step.

    Loss is bounded. Let w be the most that one step loses, in plain steps: ``c(n) / c(1) - 1`` and drafting. Before
    the first rest a text is never more than ``ALLOWANCE + w`` behind plain decoding: credit is what was earned. Where
    nothing is accepted, no look succeeds, and N steps lose at most ``ALLOWANCE + w + LOOK_SHARE * N`` and one look:
    2% from N = 512 on for w = 0.5, and 0.5% in the long run. A trial in vain adds at most ``TRIAL_ALLOWANCE + w``. A
    loss below ``TOLERANCE`` per step is left alone, at 1%. All this as exactly as plain steps can be measured. Drafts
    that pay again are seen by the next look.

    A plain step's time is the cost curve's, corrected by plain steps measured here: those at which nothing was worth
    verifying, and where there are none, a few are run plainly: first of all if nobody has measured them, when steps
    have become slower or faster, before this text's drafts are given up, and every 256 steps. So a wrong curve or a
    machine that slows down is not taken for the drafts' fault or merit.

    In a server one text follows another. ``renew`` tells that none of those that were judged goes on.

    Args:
        reference: shared by the requests of one model; one of its own if not given.
    """

    def __init__(self, reference: PlainReference | None = None) -> None:
        self._plain = PlainReference() if reference is None else reference
        self._num_steps = 0
        self._changes: deque[ModeChange] = deque(maxlen=MAX_CHANGES)
        self._rest_factor = 1
        self._rest = self._looks_left = self._waited = self._num_vain = 0
        self._looks: list[tuple[float, float]] = []  # gain of the tree and of the chain
        self._draft = 0.0
        self._ratios: deque[float] = deque(maxlen=9)  # measured over predicted, of drafted steps
        self._chain: tuple[GainWindow, float] | None = (
            None  # a working chain, while trees are tried against it
        )
        self._judge_from(Mode.TREE, 0.0)
        self._mode = self._judged
        self._checks = False
        if self._plain.known:
            # of another request, maybe of another hour: nothing is given up before plain steps were run here
            self._plain.age = max(self._plain.age, _STALE + 1)
        else:
            self._check(overdrawn=False)

    @property
    def mode(self) -> Mode:
        """What to verify in the next step."""
        return self._mode

    @property
    def looks(self) -> bool:
        """Whether the next draft is to be compared with the text, by ``looked``, rather than verified in full."""
        return self._looks_left > 0 or self._mode is Mode.CHAIN

    @property
    def drafts(self) -> bool:
        """Whether to draft in the next step."""
        return self._mode is not Mode.NONE or self._looks_left > 0

    @property
    def changes(self) -> tuple[ModeChange, ...]:
        """The changes of mode so far, of a long service the last ``MAX_CHANGES``."""
        return tuple(self._changes)

    @property
    def plain_scale(self) -> float:
        """Measured over predicted time of a plain step."""
        return self._plain.scale

    def record(
        self,
        num_emitted: float,
        step_ms: float,
        draft_ms: float,
        num_drafted: int,
        promised: float,
        predicted_ms: float,
        plain_ms: float,
    ) -> None:
        """Learns from one step.

        Args:
            num_emitted: tokens of the step; of a batch, per request.
            step_ms: all of it, drafting included.
            draft_ms: drafting and planning.
            num_drafted: verified nodes, the root apart.
            promised: expected accepted tokens, by the reach of the verified nodes; of a batch, per request.
            predicted_ms: by the cost curve, for the rows of the step.
            plain_ms: by the cost curve, for one row per request.
        """
        self._num_steps += 1
        forward_ms = step_ms - draft_ms
        if num_drafted:
            self._plain.age += 1
        else:
            self._plain.add(forward_ms / plain_ms)
        if self.drafts:
            self._draft += (draft_ms / plain_ms / self._plain.scale - self._draft) / 8
        if self._mode is not Mode.NONE:
            self._ratios.append(forward_ms / predicted_ms)
            self._judge(num_emitted, step_ms / plain_ms, promised, predicted_ms / plain_ms)
        elif self._looks_left:
            self._looks_left -= 1
        elif self._rest:
            self._rest -= 1
            if not self._rest:
                if self._checks:
                    self._end_check()
                else:
                    self._start_looks()
        else:
            # looks of texts that ended or changed batches may never be told
            self._waited += 1
            if self._waited > _PATIENCE:
                self._start_rest()

    def renew(self) -> None:
        """New texts have taken the place of all that were judged, which say little of them.

        They owe nothing, and where drafts were given up they get a trial, in which ``TRIAL_ALLOWANCE`` may be lost.
        Once several texts in a row have lost, debts are theirs, too, and only looks bring drafts back, after no more
        than the shortest rest: so texts too short to be judged lose no more together than one long text.
        """
        if self._checks:
            return
        drafting = self._mode is not Mode.NONE
        lost = not drafting or self._account < min(0.0, self._opening)
        self._num_vain = self._num_vain + 1 if lost else 0
        forgiven = self._num_vain <= _NUM_BLIND
        if drafting:
            self._chain = None
            self._judge_from(self._judged, max(0.0, self._account) if forgiven else self._account)
            return
        self._rest_factor = 1
        if not forgiven:
            self._rest = min(self._rest, self._shortest_rest())
            return
        self._rest = self._looks_left = 0
        self._try(Mode.TREE, "new texts")
        self._trusted = True

    def looked(self, look: Look) -> None:
        """Learns from a draft that was not verified."""
        if self._rest:
            return  # late news of before the rest
        factor = statistics.median(self._ratios) / self._plain.scale if self._ratios else 1.0
        factor /= look.plain_ms
        self._looks.append(
            (
                1 + look.tree_accepted - look.tree_ms * factor - self._draft,
                1 + look.chain_accepted - look.chain_ms * factor - self._draft,
            )
        )
        if self._mode is Mode.NONE and len(self._looks) == NUM_LOOKS:
            trees, chains = zip(*self._looks, strict=True)
            # of two that look alike, the smaller step
            mode, gains = max((Mode.CHAIN, chains), (Mode.TREE, trees), key=lambda seen: sum(seen[1]))
            if is_gain(gains):
                self._try(mode, f"{mode}s look good")
            else:
                self._start_rest()
        elif self._mode is Mode.CHAIN and len(self._looks) == 2 * NUM_LOOKS:
            better = is_gain([tree - chain for tree, chain in self._looks])
            self._looks = []
            if better and self._trusted:
                self._chain = self._window, self._account
                self._try(Mode.TREE, "trees look better than chains")

    def _judge(self, num_emitted: float, cost: float, promised: float, predicted: float) -> None:
        window, plain = self._window, self._plain
        cost = window.add(num_emitted, cost, promised, predicted, plain.scale)
        gain = num_emitted * self._worth() - cost / plain.scale
        self._account = min(CREDIT, self._account + gain + TOLERANCE)
        if not self._trusted and self._account >= 0.0:
            self._trusted, self._chain = True, None
        if self._account == CREDIT:
            self._rest_factor = 1
        if self._account < -ALLOWANCE or (
            self._account < -_LEAST
            and window.num_steps >= _FEWEST
            and self._mean_gain() + _NUM_ERRORS * window.error < 0.0
        ):
            if plain.age > _STALE:
                self._check(overdrawn=True)
            else:
                self._fall()
        elif plain.age > _OLD or self._has_drifted():
            self._check(overdrawn=False)

    def _worth(self) -> float:
        """What an emitted token is worth, in plain steps: 1, or what a working chain needs for it."""
        if self._chain is None:
            return 1.0
        window = self._chain[0]
        return min(1.0, window.cost / window.emitted / self._plain.scale)

    def _mean_gain(self) -> float:
        window = self._window
        return window.emitted * self._worth() - window.cost / self._plain.scale + TOLERANCE

    def _has_drifted(self) -> bool:
        plain, window = self._plain, self._window
        if window.num_steps < _FEWEST_DRIFTED or plain.age <= _STALE:
            return False
        if plain.tree_ratio is None:
            plain.tree_ratio = window.ratio
        return not plain.tree_ratio / _DRIFT < window.ratio < plain.tree_ratio * _DRIFT

    def _judge_from(self, mode: Mode, account: float) -> None:
        self._judged, self._account, self._trusted = mode, account, account >= 0.0
        self._opening = account
        self._window = GainWindow()

    def _try(self, mode: Mode, reason: str) -> None:
        self._judge_from(mode, TRIAL_ALLOWANCE - ALLOWANCE)
        self._looks = []
        self._change(mode, reason)

    def _fall(self) -> None:
        """Gives up what was judged, for the chain that it was tried against or for nothing."""
        if self._chain is not None:
            (window, account), self._chain = self._chain, None
            self._judge_from(Mode.CHAIN, max(0.0, account))
            self._window = window
            self._change(Mode.CHAIN, "trees do not beat chains")
            return
        self._change(Mode.NONE, f"{self._judged}s do not pay")
        if self._trusted:
            self._start_looks()  # at once: chains may pay where trees do not
        else:
            self._looks = []
            self._rest_factor = min(LONGEST_REST, 2 * self._rest_factor)
            self._start_rest()

    def _start_looks(self) -> None:
        self._looks, self._looks_left, self._waited = [], NUM_LOOKS, 0

    def _start_rest(self) -> None:
        self._rest = self._rest_factor * self._shortest_rest()

    def _shortest_rest(self) -> int:
        return max(REST, round(NUM_LOOKS * self._draft / LOOK_SHARE))

    def _check(self, overdrawn: bool) -> None:
        """Runs a few plain steps, then goes on with what was judged, or gives it up."""
        self._checks, self._overdrawn, self._scale_before = True, overdrawn, self._plain.scale
        self._rest = self._num_checks = _CHECK if self._plain.known else _FIRST_CHECK
        self._change(Mode.NONE, "plain steps are measured", measures=True)

    def _end_check(self) -> None:
        self._checks = False
        self._plain.settle(self._num_checks, self._scale_before)
        change = self._plain.scale / self._scale_before
        if self._overdrawn and (change < _CHANGE or self._mean_gain() < 0.0):
            self._fall()
            return
        if not 1.0 / _CHANGE < change < _CHANGE:
            # the account was kept with a wrong measure
            self._account = 0.0 if self._trusted else TRIAL_ALLOWANCE - ALLOWANCE
        self._change(self._judged, "plain steps were measured")

    def _change(self, mode: Mode, reason: str, measures: bool = False) -> None:
        self._mode = mode
        self._changes.append(ModeChange(self._num_steps, mode, reason, measures))
