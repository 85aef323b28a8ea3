"""Trees on the command line: by name and numbers, as a list, or in a file."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import typer

from treedecode.shape import TreeShape

FORMS = (
    'reference, chain:4, star:4, widths:2,2,1, leaf-siblings:4x3, a list of rank paths such as "[[0], [1], [0, 0]]" or '
    'of parents such as "[-1, 0, 0, 1]", or a file with such a list (Medusa and EAGLE choices)'
)
# Far above any tree that pays, and small enough to plan in a moment.
MAX_DRAFTED = 1024

_REFERENCE = ((0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 0, 0, 0))


@dataclass(frozen=True)
class NamedTree:
    """A tree and what its user called it."""

    name: str
    shape: TreeShape


def read_tree(text: str) -> NamedTree:
    """The tree that ``text`` says; see ``FORMS``.

    Raises:
        typer.TyperException: It is none of the forms, no tree, too large, or in a file that cannot be read.
    """
    text = text.strip()
    name, colon, numbers = text.partition(":")
    try:
        if text == "reference":
            return NamedTree(text, TreeShape.from_paths(_REFERENCE))
        if colon and name in _NAMED:
            pattern, build = _NAMED[name]
            if not re.fullmatch(pattern, numbers, re.ASCII):
                raise ValueError(f"expected numbers as in {_EXAMPLES[name]}")
            return NamedTree(text, build([int(number) for number in re.findall(r"\d+", numbers)]))
        if text.startswith(("[", "(")):
            return NamedTree("given list", _shape_of(_literal(text)))
        if text and Path(text).is_file():
            content = Path(text).read_text(encoding="utf-8")
            return NamedTree(Path(text).name, _shape_of(_literal(content)))
    except OSError as error:
        raise typer.TyperException(f"--tree {_shortened(text)}: {error.strerror}") from error
    except (ValueError, TypeError) as error:
        raise typer.TyperException(f"--tree {_shortened(text)}: {error}") from error
    raise typer.TyperException(f"--tree {_shortened(text)} is neither a file nor a tree: expected {FORMS}")


def _chain(numbers: list[int]) -> TreeShape:
    _check_size(numbers[0])
    return TreeShape.chain(numbers[0])


def _star(numbers: list[int]) -> TreeShape:
    _check_size(numbers[0])
    return TreeShape.star(numbers[0])


def _widths(numbers: list[int]) -> TreeShape:
    level, total = 1, 0
    for width in numbers:
        level *= width
        total += level
        _check_size(total)
    return TreeShape.from_widths(numbers)


def _leaf_siblings(numbers: list[int]) -> TreeShape:
    depth, width = numbers
    _check_size(depth * width)
    return TreeShape.leaf_siblings(depth, width)


_NAMED: dict[str, tuple[str, Callable[[list[int]], TreeShape]]] = {
    "chain": (r"\d+", _chain),
    "star": (r"\d+", _star),
    "widths": (r"\d+(,\d+)*", _widths),
    "leaf-siblings": (r"\d+x\d+", _leaf_siblings),
}
_EXAMPLES = {
    "chain": "chain:4",
    "star": "star:4",
    "widths": "widths:2,2,1",
    "leaf-siblings": "leaf-siblings:4x3 (depth x width)",
}


def _literal(content: str) -> list:
    """The one list in ``content``: JSON, a Python literal, or a Python file that assigns it to a name."""
    try:
        body = ast.parse(content.strip()).body
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError("expected a list of rank paths or of parents, got something else") from None
    assigned = {
        ast.unparse(statement.targets[0]): statement.value
        for statement in body
        if isinstance(statement, ast.Assign)
    }
    if len(assigned) > 1:
        raise ValueError(
            f"expected one list, got {len(assigned)}: {', '.join(assigned)}; keep one in the file"
        )
    found = list(assigned.values()) or [node.value for node in body if isinstance(node, ast.Expr)]
    try:
        (value,) = (ast.literal_eval(node) for node in found)
    except (ValueError, TypeError):
        value = None
    if not isinstance(value, (list, tuple)) or not value:
        raise ValueError("expected a list of rank paths or of parents with at least one entry")
    return list(value)


def _shape_of(values: list) -> TreeShape:
    _check_size(len(values) - 1)
    if all(isinstance(value, (list, tuple)) for value in values):
        return TreeShape.from_paths(values)
    return TreeShape.from_parents(values)


def _check_size(num_drafted: int) -> None:
    if num_drafted > MAX_DRAFTED:
        raise ValueError(f"expected at most {MAX_DRAFTED} drafted nodes, got {num_drafted}")


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:57]}...")
