"""A grammar walked down trees: which nodes it allows and where it stands at each, and faults that must be seen."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

from treedecode.tree import DraftTree
from treedecode.vllm.grammar import KeptTree, best_chain, walk_grammar
from treedecode.vllm.notes import SchedulerNotes

pytestmark = pytest.mark.vllm

END, VOCAB = 9, 10


class Words:
    """A grammar that allows some outputs, each ended by ``END``; as strict with its caller as vLLM's are."""

    def __init__(self, words, emitted=()):
        self.words, self.state = [(*word, END) for word in words], list(emitted)
        self.most = 0

    def allows(self, tokens):
        return any(word[: len(tokens)] == tuple(tokens) for word in self.words)

    def next_tokens(self):
        return {token for token in range(VOCAB) if self.allows([*self.state, token])}

    def validate_tokens(self, tokens):
        assert not self.is_terminated()
        kept = []
        for token in tokens:
            if not self.allows([*self.state, *kept, token]):
                break
            kept.append(token)
        return kept

    def accept_tokens(self, request_id, tokens):
        assert not self.is_terminated() and self.allows([*self.state, *tokens])
        self.state += tokens
        return True

    def rollback(self, num_tokens):
        assert 0 < num_tokens <= len(self.state)
        del self.state[-num_tokens:]

    def is_terminated(self):
        return self.state[-1:] == [END]

    def fill_bitmask(self, mask, row):
        mask[row] = sum(1 << token for token in self.next_tokens())


class Forgetful(Words):
    def rollback(self, num_tokens):
        """Takes nothing back."""


class Hasty(Words):
    def rollback(self, num_tokens):
        super().rollback(min(len(self.state), num_tokens + 1))


class Endless(Words):
    def is_terminated(self):
        return False

    def validate_tokens(self, tokens):
        return tokens if self.state[-1:] == [END] else super().validate_tokens(tokens)

    def accept_tokens(self, request_id, tokens):
        self.state += tokens
        return True


class Lenient(Words):
    def validate_tokens(self, tokens):
        return tokens

    def accept_tokens(self, request_id, tokens):
        self.state += tokens
        return True


def random_case(source):
    words = [
        [source.randrange(3) for _ in range(source.randrange(1, 5))] for _ in range(source.randrange(1, 6))
    ]
    emitted = source.choice(words)[: source.randrange(2)]
    size = source.randrange(1, 14)
    parents = [-1] + [source.randrange(node) for node in range(1, size + 1)]
    tokens = [7] + [source.choice([0, 1, 2, END]) for _ in range(size)]
    return words, emitted, DraftTree.build(parents, tokens)[0]


def expected(words, emitted, tree):
    """By paths alone: the allowed nodes, and what may follow each of them and the root."""
    whole = [(*word, END) for word in words]
    paths = {0: tuple(emitted)}
    for node in range(1, tree.num_nodes):
        above = paths.get(tree.shape.parent_tuple[node])
        if above is not None:
            path = (*above, tree.token_tuple[node])
            if any(word[: len(path)] == path for word in whole):
                paths[node] = path
    follow = {
        node: {word[len(path)] for word in whole if word[: len(path)] == path and len(word) > len(path)}
        for node, path in paths.items()
    }
    return sorted(set(paths) - {0}), follow


def walked(kind, words, emitted, tree):
    grammar, seen = kind(words, emitted), {}

    def visit(node):
        seen[node] = grammar.next_tokens()

    parents, tokens = tree.shape.parent_tuple[1:], tree.token_tuple[1:]
    allowed = walk_grammar(grammar, "request", parents, tokens, visit)
    return allowed, seen, grammar.state


def check(kind, seed):
    source = random.Random(seed)
    words, emitted, tree = random_case(source)
    allowed, seen, state = walked(kind, words, emitted, tree)
    assert (allowed, seen) == expected(words, emitted, tree)
    assert state == list(emitted)


@pytest.mark.parametrize("seed", range(300))
def test_nodes_and_what_may_follow_them_are_those_of_their_paths(seed):
    check(Words, seed)


@pytest.mark.parametrize("fault", [Forgetful, Hasty, Endless, Lenient])
def test_a_walk_that_goes_wrong_is_seen(fault):
    def check_all():
        for seed in range(300):
            check(fault, seed)

    with pytest.raises(AssertionError):
        check_all()


def test_kept_nodes_are_numbered_anew():
    # 0 - 1 - 3 - 5, 0 - 2 - 4; node 1 is dropped with what is below it
    kept = KeptTree.of([2, 4], [0, 0, 1, 2, 3], [10, 11, 12, 13, 14])
    assert kept == KeptTree((2, 4), (0, 1), (11, 13))
    assert kept.prefix(1) == KeptTree((2,), (0,), (11,))
    assert best_chain([0, 0, 1, 2, 3]) == [1, 3, 5] and best_chain([]) == []


def test_the_runner_reads_what_was_kept_of_its_tree():
    from treedecode.vllm.grammar import kept_tree

    proposed = DraftTree.trusted([-1, 0, 0, 1, 2], [5, 10, 11, 12, 13], [0.0, -1.0, -2.0, -3.0, -4.0])
    kept = KeptTree((2, 4), (0, 1), (11, 13))
    tree = kept_tree(5, kept, proposed)
    assert tree.shape.parent_tuple == (-1, 0, 1) and tree.token_tuple == (5, 11, 13)
    assert tree.score_tuple == (0.0, -2.0, -4.0)
    short = DraftTree.trusted([-1, 0], [5, 10])
    for other in (None, short, DraftTree.trusted([-1, 0, 0, 1, 1], [5, 10, 11, 12, 13])):
        tree = kept_tree(5, kept, other)
        assert tree.shape.parent_tuple == (-1, 0, 1) and tree.token_tuple == (5, 11, 13)
        assert tree.score_tuple is None


def scheduler(monkeypatch, bounds=0, **requests):
    """A scheduler with running requests, some with grammars; its stock methods note what they are given."""
    import torch
    from vllm.v1.core.sched.output import GrammarOutput
    from vllm.v1.core.sched.scheduler import Scheduler

    from treedecode.vllm.scheduler import TreeScheduler

    def update(self, drafts):
        self.stock.append(dict(zip(drafts.req_ids, drafts.draft_token_ids, strict=True)))

    def bitmask(self, output):
        self.stock.append(list(output.num_scheduled_tokens))
        names = list(output.num_scheduled_tokens)
        num_rows = sum(1 + len(output.scheduled_spec_decode_tokens.get(name, ())) for name in names)
        mask = torch.full((num_rows, 1), 77, dtype=torch.int32).numpy()
        return GrammarOutput(names, mask, [0] * len(names)) if names else None

    monkeypatch.setattr(Scheduler, "update_draft_token_ids", update)
    monkeypatch.setattr(Scheduler, "get_grammar_bitmask", bitmask)
    monkeypatch.setattr(Scheduler, "schedule", lambda self: self.next_output)
    made = object.__new__(TreeScheduler)
    made.stock, made._kept, made._forgets = [], {}, False
    made.requests = {
        name: SimpleNamespace(
            use_structured_output=grammar is not None,
            structured_output_request=SimpleNamespace(grammar=grammar),
            is_finished=lambda: False,
            is_prefill_chunk=False,
            spec_token_ids=[],
        )
        for name, grammar in requests.items()
    }
    made.structured_output_manager = SimpleNamespace(
        backend=SimpleNamespace(allocate_token_bitmask=lambda rows: torch.zeros(rows, 1, dtype=torch.int32)),
        _get_constraint_bounds=lambda request, tokens: SimpleNamespace(constraint_start=bounds),
    )
    return made


def drafts(**trees):
    from treedecode.vllm.scheduler import TreeDraftTokenIds

    parents = {name: list(tree.shape.parent_tuple[1:]) for name, tree in trees.items() if name != "free"}
    return TreeDraftTokenIds(list(trees), [list(tree.token_tuple[1:]) for tree in trees.values()], parents)


def scheduled(made, **tokens):
    from vllm.v1.core.sched.output import SchedulerOutput

    made.next_output = SchedulerOutput.make_empty()
    made.next_output.num_scheduled_tokens = {name: 1 + len(ids) for name, ids in tokens.items()}
    made.next_output.scheduled_spec_decode_tokens = {name: ids for name, ids in tokens.items() if ids}
    return made.schedule()


# 0 - 1 - 3 and 0 - 2 - (4, 5); tokens 0, 1, 0, 2, 0
BUSHY = DraftTree.trusted([-1, 0, 0, 1, 2, 2], [7, 0, 1, 0, 2, 0])


def test_the_scheduler_prunes_by_paths_and_masks_every_node_by_its_own(monkeypatch):
    grammar = Words([[1, 2, 0], [1, 0], [0, 2]])
    made = scheduler(monkeypatch, structured=grammar, free=None)
    made.update_draft_token_ids(drafts(structured=BUSHY, free=BUSHY))
    # 0 may be followed by 2 alone: node 3 is illegal
    assert made.requests["structured"].spec_token_ids == [0, 1, 2, 0]
    assert made.stock == [{"free": [0, 1, 0, 2, 0]}]
    # the last node does not fit
    output = scheduled(made, structured=[0, 1, 2], free=[0, 1, 0, 2, 0])
    assert SchedulerNotes.of(output).kept == {"structured": KeptTree((1, 2, 4), (0, 0, 2), (0, 1, 2))}
    mask = made.get_grammar_bitmask(output)
    assert made.stock[-1] == ["free"]
    assert mask.structured_output_request_ids == ["free", "structured"]
    assert mask.num_acceptable_drafts == [0, 3]
    rows = mask.grammar_bitmask[:, 0].tolist()
    assert rows[:6] == [77] * 6
    assert rows[6:] == [1 << 0 | 1 << 1, 1 << 2, 1 << 2 | 1 << 0, 1 << 0]
    assert grammar.state == [] and not made._kept


def test_nothing_follows_the_end_and_nothing_is_masked_there(monkeypatch):
    made = scheduler(monkeypatch, structured=Words([[1]]))
    tree = DraftTree.trusted([-1, 0, 1, 2, 1], [7, 1, END, 1, 0])
    made.update_draft_token_ids(drafts(structured=tree))
    assert made.requests["structured"].spec_token_ids == [1, END]
    mask = made.get_grammar_bitmask(scheduled(made, structured=[1, END]))
    assert mask.grammar_bitmask[:, 0].tolist() == [1 << 1, 1 << END, -1]


def test_a_request_that_is_not_scheduled_waits_and_one_that_ends_is_forgotten(monkeypatch):
    made = scheduler(monkeypatch, first=Words([[0, 2]]), second=Words([[0, 2]]))
    made.update_draft_token_ids(drafts(first=BUSHY, second=BUSHY))
    assert SchedulerNotes.of(scheduled(made, first=[0])).kept and list(made._kept) == ["second"]
    # made up by the scheduler
    assert SchedulerNotes.of(scheduled(made, second=[-1, -1])).kept == {}
    del made.requests["second"]
    scheduled(made)
    assert not made._kept


def test_a_model_that_still_reasons_gets_a_chain_of_vllms(monkeypatch):
    made = scheduler(monkeypatch, bounds=3, structured=Words([[0, 2]]))
    made.update_draft_token_ids(drafts(structured=BUSHY))
    assert made.stock == [{"structured": [0, 0]}] and not made._kept


def test_by_a_worker_without_trees_all_is_stock(monkeypatch):
    from vllm.v1.outputs import DraftTokenIds

    made = scheduler(monkeypatch, structured=Words([[0, 2]]))
    made.update_draft_token_ids(DraftTokenIds(["structured"], [[0, 2]]))
    assert made.stock == [{"structured": [0, 2]}] and not made._kept
    made.get_grammar_bitmask(scheduled(made, structured=[0]))
    assert made.stock[-1] == ["structured"]
