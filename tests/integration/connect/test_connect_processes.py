"""What is left behind when a session, or the process that had it, is gone: nothing."""

import collections
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

import solstice.connect as sc
from solstice import errors

pytestmark = pytest.mark.spark

CLIENT = """
import os, sys
import solstice.connect as sc

spark = sc.local({"spark.master": "local[1]", "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"})
print(spark.version, spark._on_stop.peek()[1].__self__._home, flush=True)
sys.stdin.readline()
spark.stop()
print("stopped", flush=True)
sys.stdin.readline()
"""


def gone(process):
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def wait_until_gone(processes, home):
    deadline = time.monotonic() + 20
    while not (all(gone(process) for process in processes) and not home.exists()):
        assert time.monotonic() < deadline, f"left behind: {[p for p in processes if not gone(p)]}, {home}"
        time.sleep(0.05)


@pytest.fixture
def client():
    process = subprocess.Popen([sys.executable, "-c", CLIENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    _, home = process.stdout.readline().split()
    family = psutil.Process(process.pid).children(recursive=True)
    assert any("java" in member.name() for member in family)
    yield process, family, Path(home)
    process.kill()
    process.communicate()


def test_stop_leaves_no_process_and_no_folder(client):
    process, family, home = client
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "stopped\n"
    # stop() has waited for it: nothing to poll for.
    assert all(gone(member) for member in family)
    assert not home.exists()
    assert process.poll() is None


def test_a_killed_client_leaves_no_process_and_no_folder(client):
    process, family, home = client
    process.send_signal(signal.SIGKILL)
    wait_until_gone(family, home)


def test_a_killed_server_fails_the_next_query_soon_with_the_reason():
    with sc.local({"spark.master": "local[1]", "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}) as spark:
        family = psutil.Process(spark._on_stop.peek()[1].__self__._supervisor.pid).children(recursive=True)
        [java] = [member for member in family if "java" in member.name()]
        running = spark.sql("select id from range(0, 400000000, 1, 400)").iter_batches()
        next(running)
        java.kill()
        started = time.monotonic()
        with pytest.raises(errors.TransportError, match=r"has ended: .*killed by signal 9.*spark\.driver\.memory"):
            collections.deque(running, maxlen=0)  # reads what had arrived already, then fails
        with pytest.raises(errors.TransportError, match="has ended"):
            spark.sql("select 1").collect()
        assert time.monotonic() - started < 2
