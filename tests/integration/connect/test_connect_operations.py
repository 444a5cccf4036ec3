"""Settings, tags, interrupts, progress and copies of sessions on a real server."""

import asyncio
import queue
import threading

import pytest
from connect_server import ENDLESS, operations

import solstice.connect as sc
from solstice import errors

pytestmark = pytest.mark.spark


def test_settings_of_the_session(server, spark):
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    spark.conf.set("spark.sql.shuffle.partitions", 7)
    assert spark.conf.get("spark.sql.shuffle.partitions") == spark.conf.getAll["spark.sql.shuffle.partitions"] == "7"
    spark.conf.unset("spark.sql.shuffle.partitions")
    assert spark.conf.get("spark.sql.shuffle.partitions") != "7"
    assert spark.conf.get("spark.nothing.of.the.kind", "else") == "else"
    assert spark.conf.get("spark.nothing.of.the.kind", None) is None
    with pytest.raises(errors.NoSuchElementError, match=r"spark\.nothing"):
        spark.conf.get("spark.nothing.of.the.kind")
    assert spark.conf.isModifiable("spark.sql.shuffle.partitions")
    assert not spark.conf.isModifiable("spark.driver.memory")
    with pytest.raises(errors.AnalysisError, match="CANNOT_MODIFY"):
        spark.conf.set("spark.driver.memory", "1g")


class Running:
    """An endless query in a thread of its own, with a tag; it runs when this is made."""

    def __init__(self, session, tag):
        self._session, self._tag = session, tag
        self.error = None
        self.operation_ids = queue.Queue()
        session.clear_progress_handlers()
        session.register_progress_handler(self._progress)
        self._has_rows = threading.Event()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        assert self._has_rows.wait(30)

    def _run(self):
        self._session.add_tag(self._tag)
        try:
            for _ in self._session.sql(ENDLESS).iter_batches():
                self._has_rows.set()
        except errors.SolsticeError as error:
            self.error = error

    def _progress(self, stages, inflight_tasks, operation_id, done):
        self.operation_ids.put(operation_id)

    def assert_interrupted(self):
        self.thread.join(30)
        assert not self.thread.is_alive()
        assert isinstance(self.error, errors.OperationInterruptedError), self.error


def assert_both_cores_are_free(session):
    assert session.sql("select sum(id) from range(0, 5, 1, 2)").collect() == [(10,)]


def test_operations_are_interrupted_by_tag_by_id_and_all_together(server):
    def by_tag(session, query):
        assert session.interrupt_tag("others") == []
        return session.interrupt_tag("mine")

    def by_id(session, query):
        return session.interrupt_operation(query.operation_ids.get(timeout=30))

    with sc.connect(server.url) as session:
        for interrupt in (by_tag, by_id, lambda session, query: session.interrupt_all()):
            query = Running(session, "mine")
            interrupted = interrupt(session, query)
            query.assert_interrupted()
            states = operations(session)
            assert states is None or states[interrupted[-1]] == "CANCELLED"
            assert_both_cores_are_free(session)


def test_one_task_interrupts_another(server):
    async def main():
        async with await sc.connect_async(server.url) as session:
            rows = session.sql(ENDLESS).iter_rows()
            await anext(rows)

            async def rest():
                async for _ in rows:
                    pass

            task = asyncio.create_task(rest())
            assert len(await session.interrupt_all()) == 1
            with pytest.raises(errors.OperationInterruptedError):
                await task
            return await session.sql("select sum(id) from range(0, 5, 1, 2)").collect()

    assert asyncio.run(main()) == [(10,)]


def test_handlers_see_a_query_proceed(server):
    told = []

    def handler(stages, inflight_tasks, operation_id, done):
        told.append((sum(s.num_completed_tasks for s in stages), sum(s.num_tasks for s in stages), done))

    with sc.connect(server.url) as session:
        session.registerProgressHandler(handler)
        slow = "select sum(length(sha2(cast(id as string), 512))) from range(0, 1000000, 1, 20)"
        assert session.sql(slow).collect() == [(1_000_000 * 128,)]
    assert told[-1][2]
    assert [done for _, _, done in told].count(True) == 1
    assert any(completed < total for completed, total, done in told if not done)


def test_a_clone_has_what_the_session_had_and_goes_its_own_way(server):
    with sc.connect(server.url) as session:
        session.sql("create temporary view v as select 1 as one")
        session.conf.set("spark.sql.shuffle.partitions", 9)
        with session.cloneSession() as clone:
            assert clone.sql("table v").collect() == [(1,)]
            assert clone.conf.get("spark.sql.shuffle.partitions") == "9"
            clone.sql("create temporary view w as select 2")
            with pytest.raises(errors.AnalysisError, match="TABLE_OR_VIEW_NOT_FOUND"):
                session.sql("table w").collect()
        with session.newSession() as fresh, pytest.raises(errors.AnalysisError, match="TABLE_OR_VIEW_NOT_FOUND"):
            fresh.sql("table v").collect()
        assert session.sql("table v").collect() == [(1,)]


def test_an_awaited_session_does_what_a_blocking_one_does(server, capsys):
    import polars as pl

    async def main():
        async with await sc.connect_async(server.url) as spark:
            await spark.execute("create temporary view numbers as select id, id * 2 as twice from range(100)")
            numbers = spark.table("numbers")
            assert await numbers.columns() == ["id", "twice"]
            assert await numbers.dtypes() == [("id", "bigint"), ("twice", "bigint")]
            assert await numbers.count() == 100
            assert await numbers.group_by((numbers.id % 2).alias("odd")).sum("twice").sort("odd").collect() == [
                (0, 4900),
                (1, 5000),
            ]
            assert (await numbers.limit(2).to_polars()).to_dict(as_series=False) == {"id": [0, 1], "twice": [0, 2]}
            local = await spark.create_dataframe(pl.DataFrame({"a": [1, 2]}))
            assert await local.join(numbers, local.a == numbers.id).select("twice").collect() == [(2,), (4,)]
            assert await (await local.cache()).is_cached()
            assert not await (await local.unpersist(blocking=True)).is_cached()
            await local.create_or_replace_temp_view("local")
            assert await spark.sql("select max(a) from local").first() == (2,)
            assert await local.stat.corr("a", "a") == pytest.approx(1.0)
            assert await numbers.tail(1) == [(99, 198)]
            assert await numbers.same_semantics(spark.table("numbers"))
            assert not await numbers.is_empty()
            await numbers.limit(1).show()
            await numbers.explain("formatted")
            await numbers.print_schema()
            return sum([batch.num_rows async for batch in numbers.iter_batches()])

    assert asyncio.run(main()) == 100
    printed = capsys.readouterr().out
    assert all(text in printed for text in ("|  0|    0|", "Physical Plan", "|-- twice: long"))


def test_explain_has_all_modes(spark, capsys):
    query = spark.range(10).where("id > 5")
    for mode, mark in {
        "simple": "Physical Plan",
        "extended": "Parsed Logical Plan",
        "codegen": "Generated code",
        "cost": "Statistics",
        "formatted": "Filter",
    }.items():
        query.explain(mode=mode)
        assert mark in capsys.readouterr().out, mode


def test_arrow_readers_take_a_dataframe(spark):
    import polars as pl

    query = spark.range(0, 25_000, 1, 2)
    assert pl.DataFrame(query)["id"].sum() == sum(range(25_000))
    assert sum(row.id for row in query.iter_rows()) == sum(range(25_000))
