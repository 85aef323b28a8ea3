"""The ``treedecode`` command: its subcommands, and how errors leave it.

Exit codes: 0 fine, 1 a check failed, 2 bad input (one line on standard error), 130 interrupted.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from treedecode import __version__
from treedecode.cli.calibrate import calibrate
from treedecode.cli.doctor import doctor
from treedecode.cli.generate import generate
from treedecode.cli.outcome import BAD_INPUT
from treedecode.cli.output import drop_output, open_streams, output_fault
from treedecode.cli.plan import plan
from treedecode.cli.replay import replay
from treedecode.cli.serve import serve
from treedecode.cli.verify import verify
from treedecode.models.default import LICENSE_NOTE

_EPILOG = f"The default model: {LICENSE_NOTE}"

app = typer.Typer(
    name="treedecode",
    help="Exact tree speculative decoding: several tokens per forward pass, the same output as plain decoding.",
    epilog=_EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(epilog=_EPILOG)(generate)
app.command(epilog=_EPILOG)(calibrate)
app.command(epilog=_EPILOG)(doctor)
app.command(epilog=_EPILOG)(verify)
app.command()(plan)
app.command()(replay)
app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(serve)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"treedecode {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None: ...


def main(args: list[str] | None = None) -> int:
    """Runs the command line and returns its exit code.

    Args:
        args: Arguments after the program's name; None takes those of the process.
    """
    open_streams()
    try:
        code = app(args, prog_name="treedecode", standalone_mode=False) or 0
        sys.stdout.flush()
        return code
    except typer.TyperException as error:
        return _refuse(error.format_message())  # without arguments the help is the message
    except BrokenPipeError:  # the reader of our output has seen enough
        drop_output()
        return 1
    except (OSError, UnicodeEncodeError) as error:
        return _refuse(output_fault(error))


def _refuse(message: str) -> int:
    if line := " ".join(message.split()):
        print(f"treedecode: {line}", file=sys.stderr)
    return BAD_INPUT
