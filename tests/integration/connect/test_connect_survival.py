"""What goes wrong around a real server: cuts, Ctrl-C, cancelled tasks, restarts, tokens; and much at once."""

import asyncio
import contextlib
import hashlib
import os
import signal
import threading
import time

import pytest
from connect_server import ENDLESS, CuttingProxy, operation_states, wait_for_states

import solstice.connect as sc
from solstice import errors
from solstice.connect import _local
from solstice.connect import functions as F
from solstice.connect._actions import run

pytestmark = pytest.mark.spark


@pytest.fixture
def proxied(server):
    """Makes a proxy that cuts, and the URL of the server through it."""
    port = int(server.url.split(":")[2].split("/")[0])
    with contextlib.ExitStack() as stack:

        def make(cut_after_bytes, cuts):
            proxy = CuttingProxy(port, cut_after_bytes, cuts)
            stack.callback(proxy.close)
            return proxy, server.url.replace(f":{port}/", f":{proxy.port}/")

        yield make


def hashes(count):
    return f"select id, md5(cast(id as string)) as m from range(0, {count}, 1, 4)"


def assert_exact(rows, count):
    assert len(rows) == count
    assert [row.id for row in rows] == list(range(count))
    assert all(row.m == hashlib.md5(str(row.id).encode()).hexdigest() for row in rows)


def test_1_000_000_rows_are_exact_though_the_connection_is_cut_again_and_again(proxied):
    proxy, url = proxied(cut_after_bytes=2_500_000, cuts=15)
    with sc.connect(url) as session:
        rows = session.sql(hashes(1_000_000)).collect()
    assert proxy.cuts >= 10
    assert_exact(rows, 1_000_000)


def test_awaited_rows_are_exact_though_the_connection_is_cut_again_and_again(proxied):
    proxy, url = proxied(cut_after_bytes=1_200_000, cuts=8)

    async def main():
        async with await sc.connect_async(url) as session:
            return [row async for row in session.sql(hashes(200_000)).iter_rows()]

    assert_exact(asyncio.run(main()), 200_000)
    assert proxy.cuts >= 5


def test_a_cut_while_a_command_runs_does_not_run_it_twice(server, proxied):
    proxy, url = proxied(cut_after_bytes=0, cuts=0)
    session = sc.connect(url)
    watcher = sc.connect(f"{server.url};session_id={session.session_id}")
    cut_while = []

    def cut():
        deadline = time.monotonic() + 30
        while operation_states(watcher) != ["RUNNING"] and time.monotonic() < deadline:
            time.sleep(0.01)
        cut_while.extend(operation_states(watcher))
        proxy.cut_all()

    thread = threading.Thread(target=cut)
    thread.start()
    # Run a second time it would fail: the table is there.
    session.sql("create table once as select id, sha2(repeat(cast(id as string), 99), 512) h from range(150000)")
    thread.join()
    run(watcher._link.driver.close())  # not stop(): the session is the other one's
    assert cut_while == ["RUNNING"]
    assert session.sql("table once").count() == 150_000
    session.stop()


def test_ctrl_c_returns_at_once_and_the_server_stops_working(server):
    with sc.connect(server.url) as session:
        batches = session.sql(ENDLESS).iter_batches()
        assert next(batches).num_rows == 5
        pressed = []

        def press():
            pressed.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)

        threading.Timer(0.3, press).start()
        with pytest.raises(KeyboardInterrupt):
            next(batches)
        assert time.monotonic() - pressed[0] < 0.3
        wait_for_states(session, ["CANCELLED"])
        # Both cores are free again: two tasks run.
        assert session.sql("select sum(id) from range(0, 5, 1, 2)").collect() == [(10,)]


def test_a_cancelled_task_returns_at_once_and_the_server_stops_working(server):
    async def main():
        async with await sc.connect_async(server.url) as session:
            rows = session.sql(ENDLESS).iter_rows()
            assert [await anext(rows) for _ in range(5)] == [(number,) for number in range(5)]
            task = asyncio.create_task(anext(rows))
            await asyncio.sleep(0.3)
            cancelled = time.monotonic()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert time.monotonic() - cancelled < 0.3
            with sc.connect(f"{server.url};session_id={session.session_id}") as watcher:
                wait_for_states(watcher, ["CANCELLED"])
            # The watcher has stopped the session for both.

    asyncio.run(main())
    with sc.connect(server.url) as session:
        assert session.sql("select sum(id) from range(0, 5, 1, 2)").collect() == [(10,)]


def test_an_operation_that_takes_too_long_is_ended_on_the_server(server):
    with sc.connect(server.url, timeout_s=2) as session:
        with pytest.raises(errors.OperationTimeoutError, match="longer than 2 s"):
            session.sql(ENDLESS).collect()
        session.timeout_s = None
        wait_for_states(session, ["CANCELLED"])
        assert session.sql("select sum(id) from range(0, 5, 1, 2)").collect() == [(10,)]


def test_50_queries_at_once_in_one_session(server):
    async def main():
        async with await sc.connect_async(server.url) as session:
            queries = [session.range(1000).select(F.sum(F.col("id") * number)) for number in range(50)]
            return await asyncio.gather(*(query.collect() for query in queries))

    assert asyncio.run(main()) == [[(499_500 * number,)] for number in range(50)]


def test_a_cell_of_150_mb_arrives_whole(spark):
    size = 150 * 1024 * 1024
    [row] = spark.sql(f"select repeat(chr(65 + id), {size}) as cell from range(1)").collect()
    assert len(row.cell) == size
    assert row.cell == "A" * size


def test_200_filters_one_on_another(server):
    with sc.connect(server.url) as session:
        frame = session.range(1000)
        for number in range(200):
            frame = frame.where(F.col("id") != number)
        with pytest.raises(errors.RemoteError, match=r"spark\.sql\.analyzer\.maxIterations"):
            frame.count()
        session.conf.set("spark.sql.analyzer.maxIterations", 1000)
        assert frame.count() == 800


def test_600_levels_are_refused_before_they_are_sent(spark):
    frame = spark.range(10)
    for _ in range(600):
        frame = frame.limit(5)
    for use in (frame.collect, frame.count, lambda: frame.schema):
        with pytest.raises(errors.InvalidPlanError, match="about 512 operations"):
            use()


def test_a_restarted_server_has_lost_the_session_and_the_program_can_go_on(monkeypatch):
    config = {"spark.master": "local[1]", "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
    server = _local.start_server(config)
    session = sc.connect(server.url)
    query = session.sql("select 1 as one")
    assert query.columns == ["one"]
    server.stop()
    monkeypatch.setattr(_local, "_free_port", lambda: server._port)
    monkeypatch.setattr(_local.secrets, "token_urlsafe", lambda length: server._token)
    again = _local.start_server(config)
    try:
        assert again.url == server.url
        for use in (query.collect, query.explain, lambda: session.conf.get("spark.sql.ansi.enabled")):
            with pytest.raises(errors.SessionLostError, match=r"new_session\(\)"):
                use()
        with session.new_session() as renewed:
            assert renewed.sql("select 1 as one").collect() == [(1,)]
        session.stop()
    finally:
        again.stop()


def test_an_expired_token_is_asked_for_again_and_a_wrong_one_fails_once(server):
    url, _, token = server.url.partition(";token=")
    asked = []

    def renewing():
        asked.append("expired" if not asked else token)
        return asked[-1]

    with sc.connect(url, token=renewing) as session:
        assert asked == ["expired", token]
        assert session.sql("select 1").collect() == [(1,)]
    asked.clear()
    with pytest.raises(errors.AuthenticationError):
        sc.connect(url, token=lambda: asked.append("wrong") or "wrong")
    assert asked == ["wrong", "wrong"]  # before the call, and whether there is another
