"""The commands of ``solstice``, put together."""

import os
from collections.abc import Sequence
from typing import Annotated

import typer

import solstice
from solstice.cli import _pubsub
from solstice.cli._demo import demo
from solstice.cli._doctor import doctor
from solstice.cli._output import console
from solstice.cli._pipeline_run import RUN_EXAMPLES
from solstice.cli._pipeline_run import run as run_file
from solstice.cli._pipeline_state import STATUS_EXAMPLES, dlq, gc, status
from solstice.errors import SolsticeError

_EXAMPLES = """Examples:

solstice doctor                   is this machine ready?

solstice demo                     events through Pub/Sub, Spark, workers and Connect

solstice run job.py               run a job of stages, or resume it

solstice status                   how far the jobs here are

solstice pubsub emulator          a Pub/Sub server on this machine

Exit codes: 0 ok, 1 failed, 2 wrong usage. SOLSTICE_DEBUG=1 shows tracebacks, NO_COLOR=1 turns colours off.
"""


def build_app(*, rich_help: bool) -> typer.Typer:
    """The command with all its subcommands; ``rich_help`` draws panels, else help is plain text."""
    app = typer.Typer(
        name="solstice",
        help="Move Arrow data into Spark, out of Spark, and to the person who asks.",
        epilog=_EXAMPLES,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode="rich" if rich_help else None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(_root)
    app.command(epilog="Examples:\n\nsolstice doctor\n\nsolstice doctor --no-spark --json")(doctor)
    app.command(epilog="Examples:\n\nsolstice demo\n\nsolstice demo --events 20000 --output try")(demo)
    app.command("run", epilog=RUN_EXAMPLES)(run_file)
    app.command(epilog=STATUS_EXAMPLES)(status)
    app.add_typer(dlq, name="dlq")
    app.command(epilog="Example: solstice gc clicks")(gc)
    app.add_typer(_pubsub.app, name="pubsub")
    return app


def run(app: typer.Typer, arguments: Sequence[str]) -> int:
    """Run one command; an error of Solstice becomes one line (a traceback under ``SOLSTICE_DEBUG=1``)."""
    try:
        app(args=arguments, prog_name="solstice")
    except SolsticeError as error:
        if os.environ.get("SOLSTICE_DEBUG") == "1":
            raise
        console(stderr=True).print(f"error: {' '.join(str(error).split())}", style="red")
        return 1
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 0


def _root(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.", is_eager=True)] = False,
) -> None:
    if version:
        console().print(f"solstice {solstice.__version__}")
        raise typer.Exit
