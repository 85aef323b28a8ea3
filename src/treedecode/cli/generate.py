"""``treedecode generate``: text from a prompt, and a comparison with plain decoding."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import treedecode as td
from treedecode.cli.generate_batch import generate_batch
from treedecode.cli.numbers import integer, number
from treedecode.cli.options import Device, Dtype, Revision, parse_budget
from treedecode.cli.outcome import CHECK_FAILED, INTERRUPTED, bad_input, check_output
from treedecode.cli.output import print_json
from treedecode.cli.progress import Stages
from treedecode.cli.prompt import encode_prompt, read_prompts
from treedecode.cli.report import Comparison, closing_line, comparison_lines, to_json
from treedecode.models import quiet_transformers

if TYPE_CHECKING:
    from treedecode.engines.hf import Stream
    from treedecode.trace import TraceWriter


def generate(
    prompt: Annotated[
        list[str] | None,
        typer.Argument(help="Texts to continue, decoded together; or use --file or standard input."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            help="Read the prompt from this file, without its last line break; - is standard input. "
            'Of a .jsonl file every line is a prompt: a JSON text, or an object with one as "prompt".'
        ),
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            help='"default" (Gemma 3 270M, under the Gemma terms of use), a folder in transformers format, or a Hub id.'
        ),
    ] = "default",
    revision: Revision = None,
    device: Device = None,
    dtype: Dtype = None,
    max_new_tokens: Annotated[int, typer.Option(parser=integer, help="Stop after this many tokens.")] = 128,
    budget: Annotated[
        str,
        typer.Option(
            help='Drafted nodes per step: a number, 0 for plain decoding, or "auto" for as many as pay.'
        ),
    ] = "auto",
    calibration: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="What a step costs, as treedecode calibrate saved it; found by itself if not given.",
        ),
    ] = "auto",
    batch_size: Annotated[
        int | None,
        typer.Option(
            parser=integer,
            help="Of several prompts, so many run at once, each with a cache; 16 if not given.",
        ),
    ] = None,
    drafter: Annotated[str, typer.Option(help="merged, recycling, suffix or prompt-lookup.")] = "merged",
    temperature: Annotated[
        float, typer.Option(parser=number, help="0 takes the likeliest token; above, tokens are sampled.")
    ] = 0.0,
    top_k: Annotated[
        int | None, typer.Option(parser=integer, help="Sample among the k likeliest tokens.")
    ] = None,
    top_p: Annotated[
        float | None, typer.Option(parser=number, help="Sample from the smallest set with this probability.")
    ] = None,
    min_p: Annotated[
        float | None, typer.Option(parser=number, help="Drop tokens below this share of the likeliest one.")
    ] = None,
    repetition_penalty: Annotated[
        float | None, typer.Option(parser=number, help="Above 1 discourages tokens seen before.")
    ] = None,
    frequency_penalty: Annotated[
        float | None,
        typer.Option(parser=number, help="Subtract this for every time a token is in the output (-2 to 2)."),
    ] = None,
    presence_penalty: Annotated[
        float | None,
        typer.Option(parser=number, help="Subtract this from all tokens that are in the output (-2 to 2)."),
    ] = None,
    logit_bias: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID=BIAS", help="Add this to a token's logit, -inf to forbid it; may be repeated."
        ),
    ] = None,
    bad_word: Annotated[
        list[str] | None, typer.Option(help="Text that must not be generated; may be repeated.")
    ] = None,
    min_tokens: Annotated[int, typer.Option(parser=integer, help="Do not end before so many tokens.")] = 0,
    json_schema: Annotated[
        Path | None, typer.Option(help="The text must be JSON that fits the schema in this file.")
    ] = None,
    regex: Annotated[str | None, typer.Option(help="The whole text must match this.")] = None,
    grammar: Annotated[
        Path | None, typer.Option(help="The text must be of the grammar in this file: Lark's EBNF, or GBNF.")
    ] = None,
    logprobs: Annotated[
        int | None,
        typer.Option(
            parser=integer,
            help="With --json: log probabilities, with so many of the likeliest tokens' at every place.",
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(parser=integer, help="The same seed gives the same tokens, at every budget.")
    ] = 0,
    stop: Annotated[list[str] | None, typer.Option(help="End before this text; may be repeated.")] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Do not apply the chat template of an instruct model.")
    ] = False,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare", help="Decode plainly as well: is the output identical, and how much slower?"
        ),
    ] = False,
    trace: Annotated[Path | None, typer.Option(help="Write every step to this file as JSON lines.")] = None,
    dense: Annotated[
        bool,
        typer.Option(
            "--dense",
            help="Draft at every output position, for traces that replay can answer most from; slow.",
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per prompt instead of text.")
    ] = False,
) -> int:
    """Generate text with tree speculative decoding.

    The text goes to standard output, what it took to standard error. Several prompts run together, and their outputs
    are printed in order.
    """
    texts = read_prompts(prompt, file)
    inputs = {"file": file, "calibration": calibration, "json_schema": json_schema, "grammar": grammar}
    check_output("--trace", trace, **inputs)
    wanted = _read_grammar(json_schema, regex, grammar)
    options: dict[str, Any] = {
        "max_new_tokens": max_new_tokens,
        "budget": parse_budget(budget),
        "drafter": drafter,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "frequency_penalty": frequency_penalty,
        "presence_penalty": presence_penalty,
        "logit_bias": _parse_bias(logit_bias),
        "bad_words": bad_word,
        "min_tokens": min_tokens,
        "logprobs": logprobs,
        "seed": seed,
        "stop": stop,
        "dense": dense,
    }
    if dense and (trace is None or compare):
        raise typer.TyperException("--dense records a trace: expected --trace FILE, and no --compare")
    if len(texts) > 1 and (trace or compare):
        raise typer.TyperException(
            f"{'--trace' if trace else '--compare'} follows one generation: expected one prompt, got {len(texts)}"
        )
    if compare and options["budget"] == 0:
        raise typer.TyperException(
            "--compare compares with plain decoding, which --budget 0 is: expected a budget above 0"
        )
    if logprobs is not None and not as_json:
        raise typer.TyperException("--logprobs are part of the JSON object: expected --json")
    stages = Stages()
    with stages("Starting"), bad_input():
        _check(options, batch_size)
        quiet_transformers()
    with bad_input():
        loaded = td.load(
            model, device=device, dtype=dtype, revision=revision, progress=stages, calibration=calibration
        )
    prompts = [encode_prompt(loaded.tokenizer, text, raw) for text in texts]
    if wanted is not None:
        from treedecode.engines.guidance import compile_grammar

        with stages("Compiling the grammar"), bad_input():
            options["grammar"] = compile_grammar(wanted, loaded.tokenizer, loaded.target.vocab_size)

    # as given: JSON has neither -inf nor compiled grammars
    shown = options | {"logit_bias": logit_bias, "grammar": wanted and asdict(wanted)}
    if len(texts) > 1:

        def show(index: int, generation: td.Generation) -> None:
            if as_json:
                print_json({"index": index} | to_json(loaded, texts[index], shown, generation, None))
            else:
                print(f"--- {index + 1} of {len(texts)}\n{generation.text}", flush=True)

        code, line = generate_batch(loaded, prompts, batch_size, options, show)
        if not as_json:
            print(line, file=sys.stderr)
        return code

    (text,), (encoded,) = texts, prompts
    echo = _no_text if as_json else _print_text
    with td.TraceWriter(trace) if trace else nullcontext() as writer:
        running = _start(loaded, encoded, options, writer)
        if sys.stdout.isatty() and isinstance(encoded, str):
            echo(f"\x1b[2m{encoded}\x1b[0m")
        generation = _finish(running, echo)
    echo("\n")
    interrupted = generation.finish_reason == "interrupted"
    comparison = None
    if compare and not interrupted:
        # no moving display here: it would take time from plain decoding only
        print("Decoding plainly, to compare ...", file=sys.stderr)
        plain = _finish(_start(loaded, encoded, {**options, "budget": 0}), _no_text)
        interrupted = plain.finish_reason == "interrupted"
        comparison = None if interrupted else Comparison(generation, plain)

    if as_json:
        print_json(to_json(loaded, text, shown, generation, comparison))
    else:
        lines = [] if options["budget"] != "auto" else [f"cost of a step: {loaded.cost_source}"]
        lines += comparison_lines(comparison) if comparison else [closing_line(generation)]
        print(*lines, sep="\n", file=sys.stderr)
    if interrupted:
        return INTERRUPTED
    return CHECK_FAILED if comparison and not comparison.identical else 0


def _parse_bias(texts: list[str] | None) -> dict[int, float] | None:
    if not texts:
        return None
    try:
        return {int(token): float(bias) for token, bias in (text.split("=") for text in texts)}
    except ValueError:
        raise typer.TyperException(
            f"--logit-bias must be a token id, = and a number, such as 13=-2.5, got {' '.join(texts)!r}"
        ) from None


def _read_grammar(json_schema: Path | None, regex: str | None, grammar: Path | None) -> td.Grammar | None:
    if sum(source is not None for source in (json_schema, regex, grammar)) > 1:
        raise typer.TyperException(
            "the text can be of one grammar only: expected one of --json-schema, --regex and --grammar"
        )
    with bad_input():
        if json_schema is not None:
            return td.Grammar("json", json_schema.read_text("utf-8"))
        if grammar is not None:
            return td.Grammar("ebnf", grammar.read_text("utf-8"))
    return None if regex is None else td.Grammar("regex", regex)


def _check(options: dict[str, Any], batch_size: int | None) -> None:
    """The checks of ``treedecode.stream`` that need no model, so that a typing error costs no loading time."""
    from treedecode.drafters import check_drafter
    from treedecode.engines.bad_words import check_texts
    from treedecode.engines.params import SamplingParams, check_count
    from treedecode.engines.request import check_budget

    check_count("max_new_tokens", options["max_new_tokens"])
    if batch_size is not None:
        check_count("batch_size", batch_size, 1)
    check_budget(options["budget"])
    if options["logprobs"] is not None:
        check_count("logprobs", options["logprobs"])
    check_drafter(options["drafter"])
    if options["bad_words"] is not None:
        check_texts("bad_words", options["bad_words"])
    if options["stop"] is not None:
        check_texts("stop", options["stop"])
    SamplingParams(**{name: options[name] for name in SamplingParams.__dataclass_fields__ if name in options})


def _start(
    model: td.LoadedModel, prompt: str | list[int], options: dict[str, Any], trace: TraceWriter | None = None
) -> Stream:
    with bad_input():
        return td.stream(model, prompt, trace=trace, **options)


def _finish(running: Stream, echo: Callable[[str], None]) -> td.Generation:
    """Runs to the end and echoes the text as it comes; Ctrl-C is an end as well, and keeps what there is."""
    num_shown = 0
    try:
        for chunk in running:
            echo(chunk.text)
            num_shown += len(chunk.text)
    except KeyboardInterrupt:
        running.close()
    generation = running.generation
    echo(generation.text[num_shown:])
    return generation


def _print_text(text: str) -> None:
    print(text, end="", flush=True)


def _no_text(_text: str) -> None: ...
