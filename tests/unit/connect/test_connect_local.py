"""The supervisor with a small stand-in for the server: what counts is who outlives whom."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

import solstice.connect as sc
from solstice._core import java
from solstice.connect import _local, _local_supervisor
from solstice.connect._descriptors import Pyspark
from solstice.errors import MachineError, MissingExtraError

# Says that it runs, and does not care about being asked to end.
STUBBORN = "import pathlib, signal, time; signal.signal(15, signal.SIG_IGN); pathlib.Path('up').touch(); time.sleep(60)"
OWNER = """
import subprocess, sys
supervisor = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, start_new_session=True)
print(supervisor.pid, flush=True)
supervisor.wait()
"""


def wait_until(condition, what, timeout_s=20):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.02)


@pytest.fixture
def home(tmp_path):
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


def command(home, script, grace_s=0.2):
    return [sys.executable, "-I", _local_supervisor.__file__, str(home), str(grace_s), sys.executable, "-c", script]


def gone(process):
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


@pytest.fixture
def family(home, tmp_path):
    """An owner, its supervisor and the server, all running; what is left of them is ended afterwards."""
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, *command(home, STUBBORN)], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    supervisor = psutil.Process(int(owner.stdout.readline()))
    wait_until((tmp_path / "up").exists, "the server runs")
    [server] = supervisor.children()
    yield owner, supervisor, server
    for process in (psutil.Process(owner.pid), supervisor, server):
        if process.is_running():
            process.kill()
    owner.wait()
    owner.stdout.close()


def test_a_killed_owner_takes_the_server_with_it(family, home):
    owner, supervisor, server = family
    os.kill(owner.pid, signal.SIGKILL)
    wait_until(lambda: gone(server) and gone(supervisor), "server and supervisor are gone")
    assert not home.exists()


def test_a_killed_supervisor_takes_the_server_with_it(family):
    _, supervisor, server = family
    supervisor.kill()
    wait_until(lambda: gone(server), "the server is gone")


def test_letting_go_of_the_pipe_ends_a_server_that_ignores_requests(home, tmp_path):
    supervisor = subprocess.Popen(command(home, STUBBORN), stdin=subprocess.PIPE, cwd=tmp_path)
    wait_until((tmp_path / "up").exists, "the server runs")
    [server] = psutil.Process(supervisor.pid).children()
    supervisor.stdin.close()
    assert supervisor.wait(20) == 256 - signal.SIGKILL
    assert gone(server)
    assert not home.exists()


def test_a_server_that_ends_by_itself_leaves_its_log_until_the_owner_lets_go(home):
    script = "import sys; print('why'); sys.exit(3)"
    with subprocess.Popen(command(home, script), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as supervisor:
        assert supervisor.stdout.read() == b""
        assert supervisor.poll() is None
        assert (home / "server.log").read_text().split("\n") == ["why", "", "the process ended with code 3", ""]
        supervisor.stdin.close()
        assert supervisor.wait(20) == 3
    assert not home.exists()


def test_without_java_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(java, "_system_candidates", list)
    monkeypatch.setattr(java, "_bundled", lambda: None)
    with pytest.raises(MachineError, match=r"solstice-spark\[java\]"):
        sc.local()


def test_the_light_install_has_no_server_and_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(_local, "find_pyspark", lambda: Pyspark(tmp_path, "4.3.0"))
    with pytest.raises(MissingExtraError, match=r"solstice-spark\[spark\]"):
        sc.local()


@pytest.fixture
def failing_spark(monkeypatch, tmp_path):
    """A pyspark whose server says something and ends."""

    def install(last_words):
        (tmp_path / "bin").mkdir()
        (tmp_path / "jars").mkdir()
        submit = tmp_path / "bin" / "spark-submit"
        submit.write_text(f"#!/bin/sh\necho started >> {tmp_path}/starts\necho '{last_words}'\nexit 1\n")
        submit.chmod(0o755)
        monkeypatch.setattr(_local, "find_pyspark", lambda: Pyspark(tmp_path, "4.3.0"))
        monkeypatch.setattr(_local.tempfile, "mkdtemp", lambda prefix: str(_make(tmp_path / "home")))
        return tmp_path

    return install


def _make(path: Path) -> Path:
    path.mkdir()
    return path


def test_a_server_that_does_not_start_is_reported_with_its_last_words(failing_spark):
    place = failing_spark("java.lang.OutOfMemoryError: Java heap space")
    with pytest.raises(MachineError, match="Java heap space"):
        sc.local()
    assert (place / "starts").read_text() == "started\n"
    assert not (place / "home").exists()


def test_a_port_that_was_taken_meanwhile_is_tried_again_a_few_times(failing_spark):
    place = failing_spark("java.net.BindException: Address already in use")
    with pytest.raises(MachineError, match="Address already in use"):
        sc.local()
    assert (place / "starts").read_text() == "started\n" * 3


def test_a_server_that_ended_by_itself_leaves_nothing_once_its_owner_is_killed(family, home):
    owner, supervisor, server = family
    server.kill()
    wait_until(lambda: "killed by signal 9" in (home / "server.log").read_text(), "the end is in the log")
    assert not gone(supervisor)
    os.kill(owner.pid, signal.SIGKILL)
    wait_until(lambda: gone(supervisor) and not home.exists(), "supervisor and folder are gone")


def test_a_server_knows_of_its_end_and_of_its_last_words(home):
    script = "import sys; print('Error: of a query'); print('x'); print('y'); sys.stdin.read(); sys.exit(3)"
    with subprocess.Popen(command(home, script), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as supervisor:
        os.set_blocking(supervisor.stdout.fileno(), False)
        server = _local.LocalServer(supervisor, home, 1, "t")
        wait_until(lambda: server.end() is not None, "the server has ended")
        assert server.end() == "x | y | the process ended with code 3"
        server.stop()
        assert server.end() is None
    assert not home.exists()


def test_a_server_stops_though_a_forked_child_of_its_owner_lives(home, tmp_path):
    with subprocess.Popen(command(home, STUBBORN), stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=tmp_path) as own:
        server = _local.LocalServer(own, home, 1, "t")
        wait_until((tmp_path / "up").exists, "the server runs")
        child = os.fork()  # holds what this process holds, as a worker of multiprocessing does
        if child == 0:
            signal.pause()
            os._exit(0)
        killer = threading.Timer(10, os.kill, (child, signal.SIGKILL))  # then what waits for its end goes on
        killer.start()
        try:
            server.stop()
            server.stop()
            assert psutil.Process(child).status() != psutil.STATUS_ZOMBIE
        finally:
            killer.cancel()
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    assert not home.exists()


def test_a_server_whose_supervisor_was_killed_can_be_stopped(home):
    with subprocess.Popen(command(home, STUBBORN), stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=home) as own:
        server = _local.LocalServer(own, home, 1, "t")
        own.kill()
        own.wait()
        server.stop()
    assert not home.exists()
