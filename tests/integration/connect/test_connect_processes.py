"""Servers that end, are killed or start again; and what a session, or its process, leaves behind: nothing."""

import collections
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

import solstice.connect as sc
from solstice import errors
from solstice.connect import _local

pytestmark = pytest.mark.spark

CONFIG = {"spark.master": "local[1]", "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
CLIENT = f"""
import sys
import solstice.connect as sc

spark = sc.local({CONFIG!r})
print(spark._on_stop.peek()[1].__self__._home, flush=True)
sys.stdin.readline()
"""


def gone(process):
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def wait_until_gone(processes, home):
    deadline = time.monotonic() + 20
    while not (all(gone(process) for process in processes) and not home.exists()):
        assert time.monotonic() < deadline, f"left behind: {[p for p in processes if not gone(p)]}, {home}"
        time.sleep(0.05)


def server_of(session):
    """The server that ``local()`` started for a session, and its processes."""
    server = session._on_stop.peek()[1].__self__
    supervisor = psutil.Process(server._supervisor.pid)
    return server, [supervisor, *supervisor.children(recursive=True)]


def test_a_killed_client_leaves_no_process_and_no_folder():
    process = subprocess.Popen([sys.executable, "-c", CLIENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        home = Path(process.stdout.readline().strip())
        family = psutil.Process(process.pid).children(recursive=True)
        assert any("java" in member.name() for member in family)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    wait_until_gone(family, home)


@pytest.fixture(scope="module")
def killed():
    """A server that is killed under a query of the session that started it, and a visitor's session on it."""
    with sc.local(CONFIG) as owner:
        server, family = server_of(owner)
        visitor = sc.connect(server.url)
        query = visitor.sql("select 1 as one")
        assert query.columns == ["one"]
        running = owner.sql("select id from range(0, 400000000, 1, 400)").iter_batches()
        next(running)
        [java] = [member for member in family if "java" in member.name()]
        java.kill()
        yield SimpleNamespace(server=server, owner=owner, running=running, visitor=visitor, query=query)
        visitor.stop()


def test_a_killed_server_fails_the_next_query_soon_with_the_reason(killed):
    started = time.monotonic()
    with pytest.raises(errors.TransportError, match=r"has ended: .*killed by signal 9.*spark\.driver\.memory"):
        collections.deque(killed.running, maxlen=0)  # reads what had arrived already, then fails
    with pytest.raises(errors.TransportError, match="has ended"):
        killed.owner.sql("select 1").collect()
    assert time.monotonic() - started < 10  # not the two minutes of a server that may come back


def test_a_restarted_server_has_lost_the_session_and_stop_leaves_nothing(killed, monkeypatch):
    monkeypatch.setattr(_local, "_free_port", lambda: killed.server._port)
    monkeypatch.setattr(_local.secrets, "token_urlsafe", lambda length: killed.server._token)
    with sc.local(CONFIG) as again:
        server, family = server_of(again)
        assert server.url == killed.server.url
        visitor = killed.visitor
        for use in (killed.query.collect, killed.query.explain, lambda: visitor.conf.get("spark.sql.ansi.enabled")):
            with pytest.raises(errors.SessionLostError, match=r"new_session\(\)"):
                use()
        with visitor.new_session() as renewed:
            assert renewed.sql("select 1 as one").collect() == [(1,)]
        again.stop()
        # It has waited for the server's end: nothing to poll for.
        assert len(family) > 1
        assert all(gone(member) for member in family)
        assert not server._home.exists()
