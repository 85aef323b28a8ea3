"""Several prompts of ``treedecode generate``: decoded together, printed in order, and never lost once finished."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import treedecode as td
from treedecode.cli.outcome import INTERRUPTED, bad_input
from treedecode.cli.progress import Bar
from treedecode.cli.report import batch_line

if TYPE_CHECKING:
    from treedecode.engines.hf_batch import BatchStream

# Told the place of a prompt and its output.
Show = Callable[[int, td.Generation], None]


def generate_batch(
    model: td.LoadedModel,
    prompts: Sequence[Any],
    batch_size: int | None,
    options: dict[str, Any],
    show: Show,
) -> tuple[int, str]:
    """Decodes all prompts.

    An output is shown once it and all before it are finished. Whatever ends the run early, what is finished is shown
    first, in order; after Ctrl-C also what is not, as far as it came.

    Args:
        model: From ``treedecode.load``.
        prompts: As for ``treedecode.stream_batch``.
        batch_size: Likewise.
        options: Likewise.
        show: Prints one output.

    Returns:
        The exit code and the closing line.
    """
    with bad_input():
        running = td.stream_batch(model, prompts, batch_size, **options)
    began, left = time.perf_counter(), list(range(len(prompts)))
    bar = Bar("Generating", len(prompts))
    interrupted = False
    try:
        with bar:
            for index, _ in running:
                if running.is_finished(index):
                    bar.advance()
                while left and running.is_finished(left[0]):
                    with bar.out_of_the_way():
                        show(left[0], running.generation(left[0]))
                    del left[0]
                bar.refresh()
    except KeyboardInterrupt:
        interrupted = True
        running.close()
    finally:
        _show_rest(running, left, show, interrupted)
    line = batch_line(running.generations, time.perf_counter() - began)
    return (INTERRUPTED if interrupted else 0), line


def _show_rest(running: BatchStream, left: Sequence[int], show: Show, interrupted: bool) -> None:
    for index in left:
        generation = running.generation(index)
        if running.is_finished(index) or (interrupted and generation.token_ids):
            show(index, generation)
