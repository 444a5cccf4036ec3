"""The `solstice` command: help, version, exit codes, errors, colours."""

import os
import pty
import subprocess
import sys

import pytest
import typer

import solstice
from solstice.cli._app import build_app, run
from solstice.errors import ConfigError

MAIN = "import sys; from solstice.cli import main; sys.exit(main())"


def run_plain(*arguments: str) -> int:
    return run(build_app(rich_help=False), arguments)


def on_a_terminal(arguments: list[str], **environ: str) -> str:
    """What a real terminal would get to see."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", **environ}
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN, *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    seen = b""
    while True:
        try:
            chunk = os.read(ours, 65536)
        except OSError:  # how Linux tells that the other side is closed
            break
        if not chunk:
            break
        seen += chunk
    os.close(ours)
    process.wait(timeout=60)
    return seen.decode()


def failing_app() -> typer.Typer:
    app = typer.Typer(pretty_exceptions_enable=False)

    @app.command()
    def fail() -> None:
        raise ConfigError("option 'port' is 'x'.", remedy="Give a number.")

    return app


def test_help_shows_examples_and_every_command_has_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_plain("--help") == 0
    help_text = capsys.readouterr().out
    for expected in ("Examples", "solstice doctor", "Exit codes"):
        assert expected in help_text
    pubsub = [["pubsub", command] for command in ("emulator", "publish", "pull")]
    for command in (["doctor"], ["demo"], ["pubsub"], *pubsub):
        assert command[0] in help_text
        assert run_plain(*command, "--help") == 0
        assert f"Usage: solstice {' '.join(command)}" in capsys.readouterr().out


def test_help_that_is_piped_has_neither_boxes_nor_escapes() -> None:
    done = subprocess.run(
        [sys.executable, "-c", MAIN, "--help"], capture_output=True, text=True, timeout=60, check=True
    )
    assert "\x1b" not in done.stdout
    assert "│" not in done.stdout
    assert done.stdout.isascii()


def test_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_plain("--version") == 0
    assert capsys.readouterr().out == f"solstice {solstice.__version__}\n"


@pytest.mark.parametrize("arguments", [["doctr"], ["doctor", "--no-such-option"], ["pubsub", "no-such-command"]])
def test_wrong_usage_ends_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_plain(*arguments) == 2
    assert arguments[-1] in capsys.readouterr().err


def test_an_error_is_one_line_with_its_remedy_and_ends_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(failing_app(), []) == 1
    assert capsys.readouterr().err == "error: option 'port' is 'x'. Give a number.\n"


def test_debug_mode_shows_where_an_error_came_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOLSTICE_DEBUG", "1")
    with pytest.raises(ConfigError):
        run(failing_app(), [])


def test_a_terminal_gets_colours_and_no_color_turns_them_off() -> None:
    green = "\x1b[32m"
    assert green in on_a_terminal(["doctor", "--no-spark"], NO_COLOR="")
    assert green not in on_a_terminal(["doctor", "--no-spark"], NO_COLOR="1")


def test_importing_the_command_loads_nothing_that_a_command_may_not_need() -> None:
    script = """
import sys, solstice.cli
assert not {"typer", "rich"} & set(sys.modules), "not even the command line's own libraries"
from solstice.cli._app import build_app
build_app(rich_help=False)
heavy = {"pyspark", "pyarrow", "polars", "pandas", "grpc", "ray", "prometheus_client"} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", script], timeout=60, check=True)
