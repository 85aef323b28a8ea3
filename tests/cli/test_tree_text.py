"""Trees as people write them."""

from __future__ import annotations

import pytest
import typer

import treedecode as td
from treedecode.cli.tree_text import MAX_DRAFTED, read_tree


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("chain:4", td.TreeShape.chain(4)),
        ("chain:0", td.TreeShape.chain(0)),
        (" star:3 ", td.TreeShape.star(3)),
        ("widths:2,2,1", td.TreeShape.from_widths([2, 2, 1])),
        ("leaf-siblings:4x3", td.TreeShape.leaf_siblings(4, 3)),
        ("[[0], [1], [0, 0]]", td.TreeShape.from_paths([(0,), (1,), (0, 0)])),
        ("[(0,), (0, 1)]", td.TreeShape.from_paths([(0,), (0, 1)])),
        ("[-1, 0, 0, 1]", td.TreeShape.from_parents([-1, 0, 0, 1])),
        (f"chain:{MAX_DRAFTED}", td.TreeShape.chain(MAX_DRAFTED)),
    ],
)
def test_forms(text, shape):
    assert read_tree(text).shape == shape


def test_the_reference_tree():
    tree = read_tree("reference")
    assert tree.name == "reference"
    assert tree.shape.mask()[9].nonzero()[0].tolist() == [0, 1, 3, 6, 9]
    assert tree.shape.mask()[5].nonzero()[0].tolist() == [0, 2, 5]


@pytest.mark.parametrize(
    "content",
    [
        "[[0], [0, 0], [1]]",
        "[(0,),\n (0, 0),  # the spine\n (1,)]\n",
        "# choices\nmc_sim = [[0], [0, 0], [1]]\n",
        '"""Choices of one model."""\nmc_sim = [[0], [0, 0], [1]]\n',
    ],
)
def test_files(tmp_path, content):
    file = tmp_path / "choices.py"
    file.write_text(content)
    tree = read_tree(str(file))
    assert tree.name == "choices.py"
    assert tree.shape == td.TreeShape.from_paths([(0,), (1,), (0, 0)])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["neither a file nor a tree", "leaf-siblings:4x3"]),
        ("oak", ["oak", "neither a file nor a tree", "chain:4"]),
        ("/no/such/file", ["/no/such/file", "neither a file nor a tree"]),
        ("/", ["neither a file nor a tree"]),
        ("x" * 5000, ["xxx...': File name too long"]),
        ("chain:", ["expected numbers as in chain:4"]),
        ("chain:-1", ["expected numbers as in chain:4"]),
        ("chain:4,4", ["expected numbers as in chain:4"]),
        ("star:two", ["expected numbers as in star:4"]),
        ("widths:2,,1", ["expected numbers as in widths:2,2,1"]),
        ("widths:2,0,1", ["width of depth 1 must be at least 1"]),
        ("leaf-siblings:4", ["expected numbers as in leaf-siblings:4x3"]),
        ("leaf-siblings:4x0", ["width must be at least 1"]),
        ("chain:1025", ["at most 1024", "1025"]),
        ("star:99999999999", ["at most 1024"]),
        ("widths:9,9,9,9,9,9,9,9,9", ["at most 1024"]),
        ("leaf-siblings:9999x9999", ["at most 1024"]),
        ("[[0], [0, 1, 1]]", ["parent", "(0, 1)"]),
        ("[[0], 1]", ["parent"]),
        ("[0, 1]", ["parent"]),
        ("[[-1]]", ["-1"]),
        ("[[0.5]]", ["integer"]),
        ("[['0']]", ["integer"]),
        ("[]", ["at least one entry"]),
        ("[[0], [1]", ["expected a list of rank paths"]),
        ("[open('x')]", ["expected a list of rank paths"]),
        ("[" * 500, ["expected a list of rank paths"]),
    ],
)
def test_what_is_no_tree(text, words):
    with pytest.raises(typer.TyperException) as caught:
        read_tree(text)
    message = caught.value.format_message()
    assert "--tree" in message and "\n" not in message and len(message) < 400
    assert all(word in message for word in words), message


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["expected a list"]),
        (b"once upon a time", ["expected a list"]),
        (b"a = [[0]]\nb = [[1]]\n", ["expected one list, got 2: a, b"]),
        (b"[[0]]\n[[1]]\n", ["expected a list"]),
        (b"caf\xe9", ["utf-8"]),
        (b"\x00", ["expected a list"]),
    ],
)
def test_files_without_a_tree(tmp_path, content, words):
    file = tmp_path / "choices.py"
    file.write_bytes(content)
    with pytest.raises(typer.TyperException) as caught:
        read_tree(str(file))
    message = caught.value.format_message()
    assert all(word in message for word in ["--tree", *words]), message
