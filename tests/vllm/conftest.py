"""One engine with trees and one run of stock vLLM for all tests; nothing is collected where vLLM is not installed."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.vllm.cases import ENGINE, ENVIRONMENT, GROUPS
from tests.vllm.running import Answer, from_plain

_NEEDS_NO_VLLM = {"test_config.py", "test_command.py", "test_counts.py"}
_REFERENCE_SOURCES = ("cases.py", "running.py", "reference.py")
ROOT = Path(__file__).parents[2]
BUDGET = 24

if importlib.util.find_spec("vllm") is None:
    collect_ignore = [
        path.name for path in Path(__file__).parent.glob("test_*.py") if path.name not in _NEEDS_NO_VLLM
    ]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """vLLM and what it loads warn of their own affairs."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore"))


@pytest.fixture(scope="session")
def model_dir() -> str:
    from treedecode.models import resolve_model

    return str(resolve_model("default"))


@pytest.fixture(scope="session")
def reference(model_dir: str, pytestconfig: pytest.Config) -> dict[str, list[list[Answer]]]:
    """Stock vLLM's answers by group; kept between runs while the cases and vLLM stay the same."""
    from treedecode.vllm.compat import vllm_version

    sources = [
        ROOT / "tests/e2e/prompts.py",
        *(Path(__file__).with_name(name) for name in _REFERENCE_SOURCES),
    ]
    key = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    file = pytestconfig.cache.mkdir("vllm") / f"{Path(model_dir).name}-{vllm_version()}-{key}.json"
    if not file.exists():
        scratch = file.with_suffix(f".{os.getpid()}")
        command = [sys.executable, "-m", "tests.vllm.reference", model_dir, str(scratch)]
        subprocess.run(command, check=True, cwd=ROOT)
        scratch.rename(file)
    return {name: from_plain(answers) for name, answers in json.loads(file.read_text()).items()}


@pytest.fixture(scope="session")
def llm(model_dir: str) -> Any:
    """vLLM with trees, in this process."""
    os.environ.update(ENVIRONMENT)
    from vllm import LLM

    from treedecode.vllm import engine_args

    arguments = engine_args(BUDGET, drafter="tests.vllm.drafters:make", max_depth=8, cost="off")
    return LLM(model_dir, **ENGINE, **arguments, disable_log_stats=False)


@pytest.fixture
def truth(llm: Any, reference: dict[str, list[list[Answer]]]) -> list[tuple[list[int], list[int]]]:
    """Prompts and stock outputs of all greedy requests, for the drafters that hide them."""
    tokenizer = llm.get_tokenizer()
    return [
        (case.token_ids(tokenizer), answers[0].token_ids)
        for name, cases in GROUPS.items()
        for case, answers in zip(cases, reference[name], strict=True)
    ]


@pytest.fixture
def counts(llm: Any) -> Any:
    """The engine's counters, from zero."""
    return runner_of(llm).reset_counts()


def runner_of(llm: Any) -> Any:
    """The model runner inside an engine of this process."""
    return llm.llm_engine.model_executor.driver_worker.worker.model_runner
