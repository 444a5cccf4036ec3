"""`solstice pubsub emulator`: what it prints, and how it ends."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from google.cloud import pubsub_v1

from solstice.cli._app import build_app, run

MAIN = "import sys; from solstice.cli import main; sys.exit(main())"


@pytest.fixture
def command() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN, "pubsub", "emulator", "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    yield process
    if process.poll() is None:
        process.kill()
    process.communicate()


def exported_address(process: subprocess.Popen[str]) -> str:
    lines = [process.stdout.readline(), process.stdout.readline()]
    address = re.fullmatch(r"export PUBSUB_EMULATOR_HOST=(127\.0\.0\.1:\d+)\n", lines[1])[1]
    assert address in lines[0]
    return address


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_it_is_told_to_end_and_exits_with_0(command, end, monkeypatch):
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", exported_address(command))
    publisher = pubsub_v1.PublisherClient()
    publisher.create_topic(name="projects/p/topics/events")
    command.send_signal(end)
    assert command.wait(timeout=10) == 0
    publisher.transport.close()


def test_a_taken_port_is_one_line_with_the_fix(emulator, capsys):
    assert run(build_app(rich_help=False), ["pubsub", "emulator", "--port", str(emulator.port)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert f"127.0.0.1:{emulator.port}" in line
    assert "Choose another host or port; port 0 takes a free one." in line


def test_the_signals_are_as_before_when_it_could_not_start(emulator):
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    run(build_app(rich_help=False), ["pubsub", "emulator", "--port", str(emulator.port)])
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
