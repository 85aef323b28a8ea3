"""The import direction of the architecture, and what the package loads."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import treedecode

PACKAGE = Path(treedecode.__path__[0])

# A module may import its own layer and those below. A new top-level module needs a place here.
LAYERS = [
    ["json_text", "topology", "mask", "interchange", "shape", "tree", "batch"],
    [
        "accept",
        "accept_batch",
        "accept_inputs",
        "accept_sampling",
        "drawing",
        "rejection",
        "streams",
        "traversal",
        "walking",
        "expect",
        "acceptance",
        "reliability",
        "cost",
        "roofline",
        "surface",
    ],
    [
        "planner",
        "families",
        "dynamic",
        "allocate",
        "buckets",
        "gains",
        "guard",
        "budget",
        "batch_budget",
        "batch_depth",
        "draft_rest",
        "kv",
        "sweep",
    ],
    ["drafters", "attention", "models", "calibration", "cost_file", "trace", "replay"],
    ["engines", "vllm"],
    ["verify"],
    ["bench", "cli"],
]
LAYER_OF = {name: layer for layer, names in enumerate(LAYERS) for name in names}
ENGINES = LAYER_OF["engines"]
HEAVY_ALLOWED = {"vllm": {"vllm"}, "transformers": {"engines", "drafters", "models", "verify"}}
# what proves samplers on made-up models also proves them on a user's own
USES_TESTING = {"testing", "verify"}
NUMPY_ONLY = {"topology", "mask", "interchange", "shape", "tree", "batch"}
ENTRY_POINTS = {"__init__", "__main__"}


def imported_modules(source: str, package: str) -> list[tuple[str, bool]]:
    """Every module that ``source``, a module inside ``package``, imports, and whether at load time.

    ``if TYPE_CHECKING`` blocks count as imports at another time: they order the reader, not the loader.
    """
    found: list[tuple[str, bool]] = []

    def visit(node: ast.AST, at_load: bool) -> None:
        if isinstance(node, ast.Import):
            found.extend((alias.name, at_load) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, *([base] if base else [])])
            found.extend((f"{base}.{alias.name}", at_load) for alias in node.names)
        deferred = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)) or (
            isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        )
        for child in ast.iter_child_nodes(node):
            visit(child, at_load and not deferred)

    visit(ast.parse(source), True)
    return found


def faults_of(module: str, source: str, is_package: bool = False) -> list[str]:
    """What is wrong with the imports of ``module`` (dotted, below ``treedecode``)."""
    top = module.split(".")[0]
    package = f"treedecode.{module}" if is_package else f"treedecode.{module}".rpartition(".")[0]
    faults = []
    for name, at_load in imported_modules(source, package):
        root, _, rest = name.partition(".")
        if root in HEAVY_ALLOWED and top not in HEAVY_ALLOWED[root]:
            faults.append(f"{module} imports {root}, which only {sorted(HEAVY_ALLOWED[root])} may")
        if root == "torch" and at_load and top in NUMPY_ONLY:
            faults.append(f"{module} imports torch at load time")
        target = rest.split(".")[0]
        if root != "treedecode" or top in ENTRY_POINTS:
            continue
        if target == "testing":
            if top not in USES_TESTING:
                faults.append(f"{module} imports testing, which only tests and verify may")
        elif target in LAYER_OF:
            allowed = ENGINES - 1 if top == "testing" else LAYER_OF.get(top, -1)
            if LAYER_OF[target] > allowed:
                faults.append(f"{module} imports {target}, which is above it")
    return faults


def sources() -> list[tuple[str, Path]]:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found.append((".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts), path))
    return found


@pytest.mark.parametrize(
    ("module", "path"), sources(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_imports_point_down(module, path):
    assert faults_of(module, path.read_text(), path.name == "__init__.py") == []


def test_every_module_has_a_layer():
    known = {*LAYER_OF, *ENTRY_POINTS, "testing"}
    unknown = {module.split(".")[0] for module, _ in sources()} - known
    assert not unknown, f"give {sorted(unknown)} a place in LAYERS"


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("tree", "from treedecode.accept import accept_greedy"),
        ("tree", "from treedecode import accept"),
        ("tree", "import torch"),
        ("accept", "def f():\n    import treedecode.planner"),
        ("kv", "from .drafters import base"),
        ("drafters.merged", "from ..engines import loop"),
        ("drafters.merged", "from ..testing import oracle"),
        ("testing.oracle", "import treedecode.engines.loop"),
        ("engines.loop", "import vllm"),
        ("planner", "from transformers import AutoModel"),
        ("vllm.worker", "from treedecode.cli import main"),
        ("engines.hf", "from treedecode.verify import local"),
        ("cli.verify", "from treedecode.testing.statistics import chi_squared"),
        ("verify.local", "from treedecode.cli.progress import Stages"),
    ],
)
def test_planted_faults_are_found(module, source):
    assert len(faults_of(module, source)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("tree", "def f():\n    import torch"),
        ("mask", "if TYPE_CHECKING:\n    import torch"),
        ("engines.loop", "import transformers\nfrom ..drafters.base import Drafter"),
        ("vllm.worker", "import vllm\nfrom treedecode.tree import DraftTree"),
        ("verify.draws", "from treedecode.testing.statistics import chi_squared"),
        ("testing.toy", "from treedecode.kv import commit_layers\nfrom treedecode.testing import oracle"),
    ],
)
def test_legal_imports_pass(module, source):
    assert faults_of(module, source) == []


def loaded_by(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*{{name.split('.')[0] for name in sys.modules}})"
    command = [sys.executable, "-c", code]
    return set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())


def test_importing_the_package_is_light():
    loaded = loaded_by("import treedecode")
    assert not loaded & {"transformers", "vllm", "torch", "triton"}


@pytest.mark.parametrize("module", sorted(NUMPY_ONLY))
def test_numpy_alone_loads_the_trees(module):
    loaded = loaded_by(f"import treedecode.{module}")
    assert "numpy" in loaded and not loaded & {"transformers", "vllm", "torch"}
