"""Grammars over trees: the allowed sets of every node, the output of plain decoding, and always of the grammar."""

from __future__ import annotations

import functools
import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from llguidance import LLMatcher, grammar_from
from llguidance.hf import from_tokenizer
from transformers import AutoModelForCausalLM

import treedecode as td
from tests.engines.tiny import Fixed
from tests.engines.tokenizers import END, byte_level, save_checkpoint
from treedecode.accept import accept_greedy
from treedecode.drafters import DRAFTERS
from treedecode.engines.grammar import GrammarMask
from treedecode.engines.guidance import Grammar, LLGuidanceMatcher, compile_grammar
from treedecode.engines.load import LoadedModel, load
from treedecode.engines.path import Committed, Paths
from treedecode.testing.drafters import AdversarialDrafter, RandomDrafter
from treedecode.tree import DraftTree, TreeShape

PROMPT = "the end, then the café and the end"
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"enum": ["the end", "then", "ten"]},
        "size": {"type": "integer", "minimum": 0, "maximum": 9999},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 5}, "maxItems": 3},
        "good": {"type": "boolean"},
    },
    "required": ["name", "size", "tags", "good"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},  # a random model would write blanks for ever
}
EBNF = """start: item ("," item){2,5} "."
item: WORD | "(" item ")"
WORD: /[a-e]{1,4}/
"""


def is_item(text: str) -> bool:
    while text.startswith("(") and text.endswith(")"):
        text = text[1:-1]
    return re.fullmatch("[a-e]{1,4}", text) is not None


def fits_schema(text: str) -> bool:
    found = json.loads(text)
    return (
        list(found) == list(SCHEMA["properties"])
        and found["name"] in SCHEMA["properties"]["name"]["enum"]
        and 0 <= found["size"] <= 9999
        and all(len(tag) <= 5 for tag in found["tags"])
        and isinstance(found["good"], bool)
    )


GRAMMARS: dict[str, tuple[Any, Callable[[str], Any]]] = {
    "schema": (SCHEMA, fits_schema),
    "regex": (
        "(ab|cd)[0-9]{2,30}(the )?end",
        lambda text: re.fullmatch("(ab|cd)[0-9]{2,30}(the )?end", text),
    ),
    "ebnf": (EBNF, lambda text: text.endswith(".") and all(map(is_item, text[:-1].split(",")))),
    "gbnf": ('root ::= ("a" | "b")+ "c" "the end"?', lambda text: re.fullmatch("[ab]+c(the end)?", text)),
    "choice": (Grammar("choice", '["the end", "then", "never"]'), {"the end", "then", "never"}.__contains__),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    save_checkpoint(path)
    return path


@pytest.fixture(scope="module")
def model(folder: Path) -> LoadedModel:
    return load(folder, dtype="float64", calibration=None)


def adversary(model: LoadedModel, output: list[int]) -> AdversarialDrafter:
    """Knows the output for ``PROMPT``, and goes on with ends."""
    truth = model.tokenizer(PROMPT)["input_ids"] + output + [END] * 20
    return AdversarialDrafter(truth, model.target.vocab_size)


def drafters(model: LoadedModel, output: list[int]) -> dict[str, Any]:
    named: dict[str, Any] = {name: name for name in DRAFTERS}
    return named | {
        "random": RandomDrafter(model.target.vocab_size),
        "adversarial": adversary(model, output),
    }


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "seed": 3}, {"frequency_penalty": 1.0}])
@pytest.mark.parametrize("name", GRAMMARS)
def test_output_is_that_of_plain_decoding_and_of_the_grammar(
    model: LoadedModel, name: str, sampling: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    given, fits = GRAMMARS[name]
    options: dict[str, Any] = {"max_new_tokens": 150, "grammar": given} | sampling
    (plain,) = td.generate(model, PROMPT, budget=0, **options)
    if plain.finish_reason == "stop":  # else a random model goes on where it may
        assert fits(plain.text)
        assert plain.token_ids[-1] == END
    assert name == "gbnf" or plain.finish_reason == "stop"
    for kind, drafter in drafters(model, plain.token_ids).items():
        (trees,) = td.generate(model, PROMPT, budget=8, drafter=drafter, **options)
        assert (trees.token_ids, trees.finish_reason) == (plain.token_ids, plain.finish_reason), kind
    assert capfd.readouterr() == ("", "")


def test_greedy_equals_transformers_with_a_matcher_of_its_own(model: LoadedModel, folder: Path) -> None:
    """transformers' prefix constraint, which reads the whole output anew at every token."""
    tokenizer = byte_level()
    known = from_tokenizer(tokenizer, n_vocab=model.target.vocab_size)
    prompt = torch.tensor([tokenizer(PROMPT)["input_ids"]])

    def allowed(_: int, ids: torch.Tensor) -> list[int]:
        matcher = LLMatcher(known, grammar_from("lark", EBNF), log_level=0)
        assert matcher.consume_tokens(ids[prompt.shape[1] :].tolist())
        return np.frombuffer(matcher.compute_logit_bias(), np.uint8).nonzero()[0].tolist()

    plain: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    expected = plain.generate(
        prompt, max_new_tokens=80, do_sample=False, eos_token_id=END, prefix_allowed_tokens_fn=allowed
    )[0, prompt.shape[1] :].tolist()
    (got,) = td.generate(model, PROMPT, max_new_tokens=80, grammar=EBNF, budget=8)
    assert got.token_ids == expected


def stage(given: Any, stop_ids: Any = (END,), min_tokens: int = 0, vocab: int = 300) -> GrammarMask:
    return GrammarMask(compile_grammar(given, _tokenizer(), vocab).matcher(), stop_ids, vocab, min_tokens)


@functools.cache
def _tokenizer() -> Any:
    return byte_level()


def ids(text: str) -> list[int]:
    return [_tokenizer()(letter)["input_ids"][0] for letter in text]


def allowed(mask: GrammarMask, tree: DraftTree, history: list[int], num_output: int) -> list[str]:
    """What may follow every node, as letters; the end is a full stop, and a row that allows all is a star."""
    committed = Committed()
    committed.follow(history, num_output)
    logits = mask(torch.zeros(tree.num_nodes, 300), Paths(tree, committed))
    rows = [row.isfinite().nonzero()[:, 0].tolist() for row in logits]
    return [
        "*"
        if len(row) == 300
        else "".join("." if token == END else _tokenizer().decode([token]) for token in row)
        for row in rows
    ]


CASE_31 = 'start: "a" "b" | "c" "d"'


def test_case_31() -> None:
    """Grammar (a b | c d), children a and c, then b and d: root {a, c}, node a {b}, node c {d}."""
    tree = DraftTree(TreeShape.from_parents([-1, 0, 0, 1, 2]), ids("xacbd"))
    assert allowed(stage(CASE_31), tree, ids("x"), 0) == ["ac", "b", "d", ".", "."]


def test_case_31_in_the_middle_and_twice() -> None:
    """After a token is committed, and asked again: the walk leaves the matcher where it was."""
    mask = stage(CASE_31)
    tree = DraftTree(TreeShape.from_parents([-1, 0, 0]), ids("xca"))
    for _ in range(2):
        assert allowed(mask, tree, ids("x"), 0) == ["ac", "d", "b"]
    for _ in range(2):
        chain = DraftTree(TreeShape.chain(1), ids("cd"))
        assert mask.prune(chain, ids("xc"), 1) is chain
        assert allowed(mask, chain, ids("xc"), 1) == ["d", "."]


def test_case_31_a_grammar_that_ends_inside_the_tree(capfd: pytest.CaptureFixture[str]) -> None:
    """It ends at depth 2 of a depth-5 tree: no error, nothing written; what cannot come is not verified."""
    mask = stage(CASE_31)
    for text in ("xabcdc", "xababa", "xabbbb"):
        tree = DraftTree(TreeShape.chain(5), ids(text))
        assert mask.prune(tree, ids("x"), 0).token_tuple == tuple(ids("xab"))
        assert allowed(mask, tree, ids("x"), 0) == ["ac", "b", ".", "*", "*", "*"]
    ending = DraftTree(TreeShape.chain(5), [*ids("xab"), END, *ids("ab")])
    kept = mask.prune(ending, ids("x"), 0)
    assert kept.token_tuple == (*ids("xab"), END)
    choices = [*ids("ab"), END, END]
    assert accept_greedy(kept, choices).token_ids[:3] == choices[:3]
    assert capfd.readouterr() == ("", "")


def test_illegal_drafts_are_pruned_with_all_below_and_ranks_are_kept() -> None:
    tree = DraftTree(
        TreeShape.from_parents([-1, 0, 0, 0, 1, 3, 3]), ids("xbacdbd"), [0.0, -1, -2, -3, -4, -5, -6]
    )
    kept = stage(CASE_31).prune(tree, ids("x"), 0)
    assert kept.token_tuple == tuple(ids("xacd"))
    assert kept.shape.parent_tuple == (-1, 0, 0, 2)
    assert kept.scores is not None
    assert kept.scores.tolist() == [0, -2, -3, -6]
    assert kept.shape.rank_tuple[1:] == (1, 2, 1)


def test_pruned_drafts_are_not_verified(model: LoadedModel) -> None:
    """A drafter of nonsense costs no nodes."""
    options: dict[str, Any] = {"max_new_tokens": 40, "grammar": "[0-9]{20,30}", "budget": 8}
    nonsense = Fixed(lambda context: DraftTree(TreeShape.chain(3), [context.token_ids[-1], *ids("the")]))
    (generation,) = td.generate(model, PROMPT, drafter=nonsense, **options)
    assert generation.finish_reason == "stop"
    assert generation.stats.num_drafted == 0


def test_min_tokens_yields_where_nothing_but_the_end_is_left() -> None:
    chain = DraftTree(TreeShape.chain(3), ids("xaaa"))
    assert allowed(stage("a{1,3}", min_tokens=3), chain, ids("x"), 0) == ["a", "a", "a", "."]
    assert allowed(stage("a{1,3}", min_tokens=2), chain, ids("x"), 0) == ["a", "a", ".a", "."]
    assert allowed(stage("a{1,3}", min_tokens=9), chain, ids("x"), 0) == ["a", "a", "a", "."]


def test_only_stop_tokens_of_the_request_end_the_output() -> None:
    """The tokenizer's own end is no text; a stop token is the end and no letter."""
    chain = DraftTree(TreeShape.chain(2), ids("xab"))
    other = ids("z")[0]
    assert allowed(stage("a[bz]?", [other]), chain, ids("x"), 0) == ["a", "bz", "z"]
    ending = DraftTree(TreeShape.chain(2), [*ids("xa"), END])
    assert stage("a[bz]?", [other]).prune(ending, ids("x"), 0).token_tuple == tuple(ids("xa"))


class Words:
    """A grammar engine of a few lines: one of several texts, token by token."""

    def __init__(self, texts: list[list[int]], vocab_size: int) -> None:
        self.texts, self.vocab_size = texts, vocab_size

    def matcher(self) -> WordsMatcher:
        return WordsMatcher(self)


class WordsMatcher:
    def __init__(self, words: Words) -> None:
        self._words, self._said = words, []

    def _next(self) -> set[int]:
        here = len(self._said)
        return {text[here] for text in self._words.texts if text[:here] == self._said and len(text) > here}

    def consume(self, token_id: int) -> bool:
        if token_id not in self._next():
            return False
        self._said.append(token_id)
        return True

    def rollback(self, num_tokens: int) -> None:
        assert 0 < num_tokens <= len(self._said)
        del self._said[-num_tokens:]

    def is_complete(self) -> bool:
        return self._said in self._words.texts

    def allowed(self) -> np.ndarray:
        words = np.zeros(-(-self._words.vocab_size // 32), np.uint32)
        for token in self._next():
            words[token // 32] |= np.uint32(1 << token % 32)
        return words


def test_another_engine_can_be_plugged_in(model: LoadedModel) -> None:
    texts = [ids("abc"), ids("abd"), ids("abdabdabd"), ids("zz")]
    grammar = Words(texts, model.target.vocab_size)
    for seed in range(8):
        options: dict[str, Any] = {"grammar": grammar, "temperature": 3.0, "seed": seed}
        (plain,) = td.generate(model, PROMPT, budget=0, **options)
        assert plain.token_ids[:-1] in texts
        for drafter in ("merged", adversary(model, plain.token_ids)):
            (trees,) = td.generate(model, PROMPT, budget=8, drafter=drafter, **options)
            assert trees.token_ids == plain.token_ids
    with pytest.raises(ValueError, match="expected 9 words of 32 for 262 tokens, got shape"):
        td.generate(model, PROMPT, grammar=Words(texts, 999))


@contextmanager
def root_mask() -> Iterator[None]:
    """Every node has the allowed set of the root."""
    original = GrammarMask._walk

    def walk(self: GrammarMask, tree: DraftTree, visit: Any) -> list[int]:
        seen: list[int] = []
        legal = original(self, tree, seen.append)
        for node in seen:
            visit(node)
        return legal

    with mock.patch.object(GrammarMask, "_walk", walk):
        yield


@contextmanager
def forgotten_rollback() -> Iterator[None]:
    """The matcher stays at the last node that it was shown."""
    with mock.patch.object(LLGuidanceMatcher, "rollback"):
        yield


@contextmanager
def rollback_off_by_one() -> Iterator[None]:
    """A sibling is judged from the node before it."""
    original = LLGuidanceMatcher.rollback

    def rollback(self: LLGuidanceMatcher, num_tokens: int) -> None:
        if num_tokens > 1:
            original(self, num_tokens - 1)

    with mock.patch.object(LLGuidanceMatcher, "rollback", rollback):
        yield


@pytest.mark.parametrize("fault", [root_mask, forgotten_rollback, rollback_off_by_one])
def test_planted_faults_are_seen(model: LoadedModel, fault: Any) -> None:
    options: dict[str, Any] = {"max_new_tokens": 150, "grammar": EBNF}
    (plain,) = td.generate(model, PROMPT, budget=0, **options)
    drafter = adversary(model, plain.token_ids)
    assert td.generate(model, PROMPT, drafter=drafter, budget=12, **options)[0].token_ids == plain.token_ids
    tree = DraftTree(TreeShape.from_parents([-1, 0, 0, 1, 2]), ids("xacbd"))
    with fault():
        assert allowed(stage(CASE_31), tree, ids("x"), 0) != ["ac", "b", "d", ".", "."]
        try:
            broken = td.generate(model, PROMPT, drafter=drafter, budget=12, **options)[0].token_ids
        except RuntimeError:  # the engine is told to take what it refuses
            return
        assert broken != plain.token_ids


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (SCHEMA, "json"),
        (json.dumps(SCHEMA), "json"),
        ("[0-9]+", "regex"),
        ("[1]", "regex"),
        ("12", "regex"),
        (EBNF, "ebnf"),
        ('root ::= "a"', "ebnf"),
        (Grammar("choice", '["a"]'), "choice"),
    ],
)
def test_what_kind_a_grammar_is(given: Any, kind: str) -> None:
    assert Grammar.of(given).kind == kind


@pytest.mark.parametrize(
    ("grammar", "error", "words"),
    [
        ("([", ValueError, r"the grammar is not valid \(regex\): .*unclosed character class"),
        ("start: nope", ValueError, r"the grammar is not valid \(ebnf\): .*unknown name"),
        ({"type": "nope"}, ValueError, r"the grammar is not valid \(json\): Invalid type: nope"),
        (3, TypeError, "grammar must be a JSON schema, a text, .*got 3"),
    ],
)
def test_bad_grammars_are_named(model: LoadedModel, grammar: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=re.compile(words, re.DOTALL)):
        td.stream(model, PROMPT, grammar=grammar)


def test_other_bad_input_is_named(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"kind must be one of json, regex, .*got 'xml'"):
        Grammar("xml", "")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="text must be a string, got 3"):
        Grammar("regex", 3)  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match="a grammar ends with a stop token: expected at least one as eos_token_id"
    ):
        td.stream(model, PROMPT, grammar="a", eos_token_id=None)
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(ValueError, match=r"needs llguidance.*pip install 'treedecode\[grammar\]'"):
        td.stream(model, PROMPT, grammar="a")


@pytest.mark.parametrize("text", ["[]", "", "{}", '"the end"', "[1]", '["a", null]', "the|end"])
def test_a_choice_is_a_list_of_texts(text: str) -> None:
    with pytest.raises(ValueError, match="a grammar of kind choice must be a JSON list of at least one text"):
        Grammar("choice", text)
