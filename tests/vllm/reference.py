"""``python -m tests.vllm.reference MODEL FILE``: what stock vLLM answers without speculation, in its own process."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from tests.vllm.cases import ENGINE, ENVIRONMENT, FIRST_TURN, GROUPS, SECOND_TURN, Case
from tests.vllm.running import run_cases, to_plain


def main(model: str, file: str) -> None:
    os.environ.update(ENVIRONMENT)
    from vllm import LLM

    # every prompt is computed in full: the reference of the prefix cache's test
    llm = LLM(model, **ENGINE, enable_prefix_caching=False)
    answers = {name: to_plain(run_cases(llm, cases)) for name, cases in GROUPS.items()}
    [[first]] = run_cases(llm, [FIRST_TURN])
    prompt = FIRST_TURN.token_ids(llm.get_tokenizer()) + first.token_ids
    second = run_cases(llm, [Case(prompt, SECOND_TURN)])
    answers["turns"] = to_plain([[first], *second])
    Path(file).write_text(json.dumps(answers))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
