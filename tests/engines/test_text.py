from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from tests.engines.tokenizers import END, MAKERS
from treedecode.engines.text import TextStream

TEXTS = {
    "accents": "the café naïve übermut the end",
    "emoji": "the 👩‍👩‍👧‍👦 family 🎉🎉🎉 end",
    "chinese": "你好世界，这是一个很长的句子，没有一个字在词表里。" * 2,
    "mixed": "a你b好c\n\nthe 世界 end… ¿qué?",
    "combining": "e\u0301 the क्षि end",
}


@functools.cache
def tokenizer(name: str) -> Any:
    return MAKERS[name]()


def ids_of(name: str, text: str) -> list[int]:
    return tokenizer(name)(text)["input_ids"]


def pieces(name: str, ids: Sequence[int], stop: Sequence[str] = ()) -> tuple[list[str], int]:
    """What a reader is given token by token, and how many tokens were taken."""
    stream = TextStream(tokenizer(name), stop)
    given_out = []
    for count, token in enumerate(ids, 1):
        if stream.push(token):
            return [*given_out, stream.finish()], count
        given_out.append(stream.take())
    given_out.append(stream.finish())
    assert stream.text == "".join(given_out)
    return given_out, len(ids)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", MAKERS)
def test_characters_stay_whole(name: str, text: str) -> None:
    ids = ids_of(name, TEXTS[text])
    assert len(ids) > len(TEXTS[text].split()) + 3, "characters must fall into several tokens"
    parts, _ = pieces(name, ids)
    assert not any("\ufffd" in part for part in parts)
    assert "".join(parts) == tokenizer(name).decode(ids) == TEXTS[text]
    assert sum(map(bool, parts)) > 5, "text must come as it is known, not at the end"


@pytest.mark.parametrize("name", MAKERS)
@given(text=st.text(st.sampled_from("the end,\né你👩🎉"), min_size=1, max_size=60))
@example(text="你" * 40)
@example(text="x" + "🎉" * 20 + "é" * 20)
def test_pieces_add_up(name: str, text: str) -> None:
    ids = ids_of(name, text)
    parts, _ = pieces(name, ids)
    assert "".join(parts) == tokenizer(name).decode(ids)
    assert "\ufffd" not in "".join(parts)


def test_special_tokens_are_not_text() -> None:
    ids = ids_of("byte-level", "the end")
    assert "".join(pieces("byte-level", [END, *ids, END])[0]) == "the end"


@pytest.mark.parametrize("name", MAKERS)
def test_an_output_that_ends_inside_a_character(name: str) -> None:
    ids = ids_of(name, "the end 🎉")[:-1]
    assert "".join(pieces(name, ids)[0]) == tokenizer(name).decode(ids)


@pytest.mark.parametrize(
    ("stop", "left"),
    [
        (["end"], "the "),  # one token
        (["e en"], "th"),  # straddles tokens, starts inside one
        (["the"], ""),  # at the very start
        (["zzz", "end", "e e"], "th"),  # the first place in the text, not in the list
        (["nd!", "nd"], "the e"),  # one stop string begins another
        (["zzz"], "the end."),
        (["end.."], "the end."),  # begun and never completed: the text is given back
    ],
)
@pytest.mark.parametrize("name", MAKERS)
def test_stop_strings(name: str, stop: list[str], left: str) -> None:
    ids = ids_of(name, "the end.")
    parts, count = pieces(name, ids, stop)
    assert "".join(parts) == left
    first = next(
        (n for n in range(len(ids) + 1) if any(s in tokenizer(name).decode(ids[:n]) for s in stop)), 0
    )
    assert count == (first or len(ids)), "no token is taken after the one that completes a stop string"


@pytest.mark.parametrize("name", MAKERS)
@given(
    text=st.text(st.sampled_from("aben é你"), max_size=30),
    stop=st.text(st.sampled_from("aben é"), min_size=1, max_size=4),
)
def test_no_piece_holds_any_of_a_stop_string(name: str, text: str, stop: str) -> None:
    ids = ids_of(name, text)
    whole = tokenizer(name).decode(ids)
    parts, _ = pieces(name, ids, [stop])
    assert "".join(parts) == whole[: whole.find(stop)] if stop in whole else "".join(parts) == whole


@pytest.mark.parametrize("name", MAKERS)
def test_looking_at_the_rest_changes_nothing(name: str) -> None:
    """Inside a character too."""
    ids = ids_of(name, TEXTS["mixed"])
    stream = TextStream(tokenizer(name), ["zz"])
    given_out = ""
    for token in ids:
        stream.push(token)
        given_out += stream.take()
        assert TEXTS["mixed"].startswith((given_out + stream.rest()).rstrip("\ufffd"))
    assert given_out + stream.finish() == TEXTS["mixed"]


@pytest.mark.parametrize("taken", [True, False])
@pytest.mark.parametrize("name", MAKERS)
def test_a_stop_string_within_the_first_tokens_ends_nothing(name: str, taken: bool) -> None:
    """Only one that is complete after more tokens does, even if it began before; read piece by piece or at the end."""
    text = "an end and an end, the end"
    ids = ids_of(name, text)
    for min_tokens in range(len(ids) + 1):
        stream = TextStream(tokenizer(name), ["end"], min_tokens)
        ended = None
        for count, token in enumerate(ids, 1):
            if stream.push(token):
                ended = count
                break
            if taken:
                stream.take()
        completed = [
            count for count in range(1, len(ids) + 1) if tokenizer(name).decode(ids[:count]).endswith("end")
        ]
        assert ended == next((count for count in completed if count > min_tokens), None)
        stream.finish()
        whole = tokenizer(name).decode(ids[:ended])
        assert stream.text == (whole if ended is None else whole.removesuffix("end"))


def test_cleaning_up_spaces_takes_nothing_back() -> None:
    """With it, "x ." decodes to "x.", after "x " was handed on."""
    words = Tokenizer(models.WordLevel({"<unk>": 0, "x": 1, "\u0120": 2, ".": 3}, unk_token="<unk>"))
    words.decoder = decoders.ByteLevel()
    cleaning = PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="<unk>", clean_up_tokenization_spaces=True
    )
    assert cleaning.decode([1, 2, 3]) == "x."
    stream = TextStream(cleaning)
    parts = []
    for token in (1, 2, 3):
        stream.push(token)
        parts.append(stream.take())
    assert "".join(parts) + stream.finish() == stream.text == "x ."
