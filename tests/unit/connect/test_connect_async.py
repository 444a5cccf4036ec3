"""Sessions that are awaited, over real gRPC, against a server that answers by a script."""

import asyncio
import inspect
import subprocess
import sys
import threading
import time
from pathlib import Path

import grpc
import pytest
from connect_scripted_server import ScriptedServer, abort, error_details, once

import solstice.connect as sc
from solstice import errors
from solstice.connect import _actions
from solstice.connect import functions as F


@pytest.fixture
def server():
    scripted = ScriptedServer()
    yield scripted
    scripted.stop()


def test_rows_are_awaited_and_lazy_methods_are_not(server):
    async def main():
        async with await sc.connect_async(server.url("token=t1;x-team=data")) as spark:
            query = spark.sql("select n").where(F.col("n") > 0).withColumn("m", F.lit(1)).limit(5)
            assert not server.requests("ExecutePlan")
            assert await query.collect() == [(1,), (2,), (3,)]
            assert (await query.to_arrow()).num_rows == (await query.toPandas()).shape[0] == 3
            assert [row.n async for row in query.iter_rows()] == [1, 2, 3]
            assert [row.n async for row in query.toLocalIterator()] == [1, 2, 3]
            assert [batch.num_rows async for batch in query.iter_batches()] == [2, 1]
            assert (await query.first(), await query.head(), await query.head(2)) == ((1,), (1,), [(1,), (2,), (3,)])
        assert server.requests("ReleaseSession")

    asyncio.run(main())
    for _, _, metadata in server.calls:
        assert (metadata["authorization"], metadata["x-team"]) == ("Bearer t1", "data")


def test_every_method_of_one_session_is_in_the_other():
    for ours, theirs, only_here in (
        (sc.DataFrame, sc.AsyncDataFrame, {"__arrow_c_stream__"}),
        (sc.Session, sc.AsyncSession, {"builder", "active", "get_active_session", "getActiveSession"}),
    ):
        names = {name for name in dir(ours) if not name.startswith("_")}
        others = {name for name in dir(theirs) if not name.startswith("_")}
        assert names - others == only_here - {"__arrow_c_stream__"}
        assert others - names <= {"execute"}


def test_what_blocks_is_a_plain_function_and_what_is_awaited_a_coroutine_function_with_the_same_signature():
    for name in ("collect", "count", "show", "cache", "same_semantics"):
        blocking, awaited = getattr(sc.DataFrame, name), getattr(sc.AsyncDataFrame, name)
        assert inspect.isfunction(blocking)
        assert inspect.iscoroutinefunction(inspect.unwrap(awaited))
        assert inspect.signature(blocking) == inspect.signature(awaited)
        assert blocking.__doc__ == awaited.__doc__ != ""
    assert isinstance(inspect.getattr_static(sc.DataFrame, "schema"), property)
    assert inspect.iscoroutinefunction(sc.AsyncDataFrame.schema)


def test_a_coroutine_that_needs_a_loop_is_not_run_without_one():
    with pytest.raises(RuntimeError, match="event loop"):
        _actions.run(asyncio.sleep(1))


def test_the_blocking_client_works_within_a_running_loop(server):
    # As in a notebook, whose cells run in a loop.
    async def main():
        with sc.connect(server.url()) as spark:
            batches = spark.sql("select n").iter_batches()
            next(batches)
            batches.close()
            return spark.sql("select n").collect()

    assert asyncio.run(main()) == [(1,), (2,), (3,)]


def test_a_cancelled_task_ends_the_operation_at_once(server):
    ended = threading.Event()

    def hang(request, context):
        context.add_callback(ended.set)
        ended.wait(30)
        return ()

    server.hooks["ExecutePlan"] = hang

    async def main():
        async with await sc.connect_async(server.url()) as spark:
            task = asyncio.create_task(spark.sql("select n").collect())
            await asyncio.to_thread(server.wait_for, "ExecutePlan")
            started = time.monotonic()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert time.monotonic() - started < 2  # the real server's time is measured in the integration test
            server.assert_ended(server.requests("ExecutePlan")[0].operation_id)

    asyncio.run(main())
    assert ended.wait(5), "the stream is still open"


def test_an_iterator_that_is_left_ends_the_operation(server):
    server.batches = [[number] for number in range(100)]

    async def main():
        async with await sc.connect_async(server.url()) as spark:
            async for row in spark.sql("select n").iter_rows():
                assert row == (0,)
                break
            await asyncio.to_thread(server.wait_for, "ReleaseExecute")
            server.assert_ended(server.requests("ExecutePlan")[0].operation_id)

    asyncio.run(main())


def test_a_stream_that_breaks_is_continued_behind_the_last_response(server):
    def half(request, context):
        yield server.response(0, [1, 2])
        context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")

    server.hooks["ExecutePlan"] = once(half)

    async def main():
        async with await sc.connect_async(server.url()) as spark:
            return await spark.sql("select n").collect()

    assert asyncio.run(main()) == [(1,), (2,), (3,)]
    [reattach] = server.requests("ReattachExecute")
    assert reattach.last_response_id == "0"


def test_stopping_in_another_task_ends_a_running_query_with_the_reason(server):
    released = threading.Event()

    def hang(request, context):
        context.add_callback(released.set)
        released.wait(30)
        return ()

    server.hooks["ExecutePlan"] = hang

    async def main():
        spark = await sc.connect_async(server.url())
        query = spark.sql("select n")
        task = asyncio.create_task(query.collect())
        await asyncio.to_thread(server.wait_for, "ExecutePlan")
        await spark.stop()
        with pytest.raises(errors.SessionClosedError):
            await task
        for use in (query.count, query.schema):
            with pytest.raises(errors.SessionClosedError):
                await use()
        with pytest.raises(errors.SessionClosedError):
            spark.sql("select 1")

    asyncio.run(main())


def test_errors_are_those_of_the_blocking_client(server):
    details = error_details("by zero", ErrorInfo={"metadata": {"errorClass": "DIVIDE_BY_ZERO", "sqlState": "22012"}})
    server.hooks["ExecutePlan"] = abort(grpc.StatusCode.INTERNAL, "by zero", details)

    async def main():
        async with await sc.connect_async(server.url(), max_rows=1) as spark:
            with pytest.raises(errors.RemoteError, match="by zero") as failed:
                await spark.sql("select n").collect()
            assert failed.value.sql_state == "22012"
            del server.hooks["ExecutePlan"]
            with pytest.raises(errors.ResultTooLargeError, match="max_rows=None"):
                await spark.sql("select n").collect()

    asyncio.run(main())
    with pytest.raises(errors.TransportError, match="no Spark Connect server answers"):
        asyncio.run(sc.connect_async("sc://127.0.0.1:9"))


def test_statements_are_executed_and_not_put_off(server):
    async def main():
        async with await sc.connect_async(server.url()) as spark:
            with pytest.raises(errors.InvalidPlanError, match=r"await spark\.execute"):
                spark.sql("drop table t")
            assert not server.requests("ExecutePlan")
            result = await spark.execute("drop table t where x = :x", {"x": 1})
            assert [r.plan.WhichOneof("op_type") for r in server.requests("ExecutePlan")] == ["command"]
            assert isinstance(result, sc.AsyncDataFrame)

    asyncio.run(main())


def test_what_needs_the_schema_without_awaiting_says_to_ask_for_it_before(server):
    async def main():
        async with await sc.connect_async(server.url()) as spark:
            query = spark.sql("select n")
            for use in (lambda: query[0], lambda: query.sort(1), lambda: query.group_by("n").sum()):
                with pytest.raises(errors.InvalidPlanError, match=r"await df\.schema"):
                    use()
            assert "await schema()" in repr(query)
            assert await query.columns() == ["n"]
            assert query.sort(1).group_by("n").sum() is not None
            assert repr(query) == "AsyncDataFrame[n: int]"
            with pytest.raises(errors.InvalidPlanError, match="StructType"):
                spark.read.json(query, schema="a INT")

    asyncio.run(main())


def test_a_task_has_the_tags_of_the_one_that_started_it_and_its_own(server):
    async def main():
        async with await sc.connect_async(server.url()) as spark:
            spark.add_tag("all")

            async def tagged(tag):
                spark.add_tag(tag)
                await spark.sql("select n").collect()

            await asyncio.gather(tagged("one"), tagged("two"))
            assert spark.get_tags() == {"all"}
            assert await spark.interrupt_tag("one") == ["one"]

    asyncio.run(main())
    assert sorted(list(r.tags) for r in server.requests("ExecutePlan")) == [["all", "one"], ["all", "two"]]


def test_settings_are_awaited(server):
    async def main():
        async with await sc.connect_async(server.url()) as spark:
            await spark.conf.set("spark.sql.a", 1)
            assert await spark.conf.get("spark.sql.a") == "1"
            assert await spark.conf.getAll() == {"spark.sql.a": "1"}

    asyncio.run(main())


def test_a_token_may_be_awaited(server):
    async def token():
        await asyncio.sleep(0)
        return "awaited"

    async def main():
        async with await sc.connect_async(server.url(), token=token) as spark:
            await spark.sql("select n").collect()

    asyncio.run(main())
    assert {metadata["authorization"] for _, _, metadata in server.calls} == {"Bearer awaited"}
    with pytest.raises(errors.ConfigError, match="connect_async"):
        sc.connect(server.url(), token=token)


def test_an_operation_that_takes_too_long_is_ended(server):
    released = threading.Event()

    def hang(request, context):
        context.add_callback(released.set)
        released.wait(30)
        return ()

    server.hooks["ExecutePlan"] = hang

    async def main():
        async with await sc.connect_async(server.url(), timeout_s=0.3) as spark:
            with pytest.raises(errors.OperationTimeoutError):
                await spark.sql("select n").collect()
            await asyncio.to_thread(server.assert_ended, server.requests("ExecutePlan")[0].operation_id)

    asyncio.run(main())


def test_arrow_readers_take_a_dataframe_of_the_blocking_client(server):
    import polars as pl
    import pyarrow as pa

    with sc.connect(server.url()) as spark:
        assert pa.table(spark.sql("select n")).column("n").to_pylist() == [1, 2, 3]
        assert pl.DataFrame(spark.sql("select n"))["n"].to_list() == [1, 2, 3]
        server.batches = [[number] for number in range(100)]
        reader = pa.RecordBatchReader.from_stream(spark.sql("select n"))
        reader.read_next_batch()
        del reader
        server.wait_for("ReleaseExecute", 3)
        assert server.requests("ReleaseExecute")[-1].WhichOneof("release") == "release_all"


def test_type_checkers_see_what_blocks_and_what_is_awaited():
    use = Path(__file__).with_name("connect_typed_use.py")
    command = [sys.executable, "-m", "mypy", str(use)]
    checked = subprocess.run(command, capture_output=True, text=True, check=False, cwd=use.parents[3])
    assert checked.returncode == 0, checked.stdout
