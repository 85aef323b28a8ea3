"""The package's surface: every public name, loaded only when it is used."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import treedecode

ROOT = Path(treedecode.__file__).parents[2]


def test_the_three_lists_of_names_agree():
    tree = ast.parse(Path(treedecode.__file__).read_text())
    (guarded,) = (node for node in tree.body if isinstance(node, ast.If))
    typed = {
        alias.name: node.module.removeprefix("treedecode.")
        for node in guarded.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert typed == treedecode._HOME
    assert treedecode.__all__ == sorted(treedecode._HOME)


@pytest.mark.parametrize("name", treedecode.__all__)
def test_public_names(name):
    assert getattr(treedecode, name).__doc__
    assert name in dir(treedecode)


def test_other_names():
    with pytest.raises(AttributeError, match="module 'treedecode' has no attribute 'nothing'"):
        _ = treedecode.nothing


def modules_after(statement: str) -> int:
    command = [sys.executable, "-c", f"import sys; {statement}; print(len(sys.modules))"]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def test_importing_loads_less_than_numpy():
    assert modules_after("import treedecode") < modules_after("import numpy")


def test_constraints_pin_every_direct_dependency():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["demo"], *extras["bench"], *extras["dev"]]
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {normal(line.split("==")[0]) for line in lines if "==" in line}
    missing = {normal(name) for name in wanted} - pinned - {"treedecode"}
    assert not missing


def normal(requirement: str) -> str:
    name = requirement
    for end in "<>=![; ":
        name = name.split(end)[0]
    return name.lower().replace("_", "-").replace(".", "-")
