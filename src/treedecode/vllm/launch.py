"""``python -m treedecode.vllm.launch``: vLLM's own command, after the fixes that it needs to start."""

from __future__ import annotations

from treedecode.vllm.fixes import name_of_the_cpu_build


def main() -> None:
    """Run vLLM's command on this process's arguments."""
    name_of_the_cpu_build()
    from vllm.entrypoints.cli.main import main as vllm_main

    vllm_main()


if __name__ == "__main__":
    main()
