"""Batch DataFrames through real Spark, real workers and the committing sink."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyarrow.dataset as ds
import pytest

from processes import descendants
from solstice.errors import ConfigError, PlanChangedError
from solstice.pipeline import ExternalSource, Job, ParquetSink, SparkSourceV2Config
from solstice.pipeline._events import read_events
from solstice.pipeline._queue import open_queue
from solstice.pipeline._store import open_store
from waiting import wait_until

pytestmark = pytest.mark.spark


def ids(root: Path) -> list[int]:
    return sorted(ds.dataset(root / "out", format="parquet").to_table(columns=["id"])["id"].to_pylist())


def make_job(root: Path, dataframe_fn, **source) -> Job:
    job = Job("numbers", state=root / "state")
    job.source(SparkSourceV2Config(dataframe_fn=dataframe_fn, **source))
    return job


def test_a_batch_job_gives_every_row_once_though_workers_are_killed(spark, tmp_path):
    job = make_job(tmp_path, lambda spark: spark.range(20_000), parallelism=4, target_split_bytes=20_000)
    killed = {stage: tmp_path / f"killed-{stage}" for stage in ("waits", "sink")}
    first = tmp_path / "first"

    def waits(table):
        """For the kills, so that they come while there is work; but the sink needs a split for its own."""
        while not killed["sink"].exists():
            if killed["waits"].exists() and not first.exists():
                first.touch()
                break
            time.sleep(0.05)
        return table

    job.stages[0].map(waits, workers=2).sink(ParquetSink(tmp_path / "out"))

    def kill() -> None:
        for position, (stage, mark) in enumerate(killed.items(), 1):
            wait_until(lambda p=position: job.progress()[p].in_flight + job.progress()[p].settled, f"work for {stage}")
            os.kill(job.worker_pids()[stage][0], signal.SIGKILL)
            mark.touch()

    killer = threading.Thread(target=kill)
    killer.start()
    result = job.run()
    killer.join()
    died = [event for event in read_events(job.state) if event["event"] == "worker died"]
    assert [event["stage"] for event in died] == ["waits", "sink"]
    assert ids(tmp_path) == list(range(20_000))
    assert result.stage("source").produced > 4
    assert (result.dead, result.stage("sink").settled_records) == (0, 20_000)
    assert list(open_store(job.payloads).keys()) == []


def counted(marks: Path, broken: Path):
    """A DataFrame of 4 partitions that notes which of them are computed, and fails in one while ``broken`` exists."""

    def compute(batches):
        from pyspark import TaskContext

        partition = TaskContext.get().partitionId()
        (marks / f"{partition}-{time.monotonic_ns()}").touch()
        yield from batches
        if partition == 2 and broken.exists():
            raise ValueError("broken partition")

    return lambda spark: spark.range(0, 4000, 1, 4).mapInArrow(compute, "id long")


def test_a_failed_task_leaves_nothing_visible_and_only_missing_partitions_are_computed_again(spark, tmp_path):
    marks, broken = tmp_path / "marks", tmp_path / "broken"
    marks.mkdir()
    broken.touch()

    def job() -> Job:
        job = make_job(tmp_path, counted(marks, broken), target_split_bytes=1000)
        job.stages[0].map(lambda table: table).sink(ParquetSink(tmp_path / "out"))
        return job

    with pytest.raises(Exception, match="broken partition"):
        job().run()
    queue = open_queue(job().queue)
    done = queue.completed_partitions("source", "0")
    assert 2 not in done
    assert queue.topic_progress("source").produced_records == 1000 * len(done)
    broken.unlink()
    for mark in marks.iterdir():
        mark.unlink()
    result = job().run()
    assert {int(mark.name.partition("-")[0]) for mark in marks.iterdir()} == {0, 1, 2, 3} - done
    assert ids(tmp_path) == list(range(4000))
    assert result.stage("sink").settled_records == 4000
    assert list(open_store(job().payloads).keys()) == []
    queue.close()


@contextlib.contextmanager
def files_end_at(size_bytes: int) -> Iterator[None]:
    """As if the disk were full: no Python worker of Spark can make a file larger than this."""
    _limit_files(size_bytes)
    yield
    _limit_files(psutil.RLIM_INFINITY)


def _limit_files(size_bytes: int) -> None:
    workers = descendants("pyspark.daemon", of=os.getpid())
    assert workers
    for worker in workers:
        with contextlib.suppress(psutil.NoSuchProcess):
            worker.rlimit(psutil.RLIMIT_FSIZE, (size_bytes, psutil.RLIM_INFINITY))


def test_a_disk_that_is_full_under_a_task_ends_the_job_with_the_reason_and_the_next_run_goes_on(spark, tmp_path):
    def job() -> Job:
        job = make_job(tmp_path, lambda spark: spark.range(0, 4000, 1, 2).selectExpr("id", "repeat('x', 1000) AS text"))
        job.stages[0].sink(ParquetSink(tmp_path / "out"))
        return job

    spark.range(1).mapInArrow(lambda batches: batches, "id long").collect()  # now there are Python workers
    with files_end_at(1 << 20):
        with pytest.raises(Exception, match="File too large"):
            job().run()
        # The task of the other partition may still be at it.
        wait_until(lambda: not list((tmp_path / "state" / "payloads").rglob("*.*")), "nothing is left")
    assert job().run().stage("sink").settled_records == 4000
    assert ids(tmp_path) == list(range(4000))


def test_a_changed_query_is_refused_once_a_part_is_visible(spark, tmp_path):
    def job(end: int) -> Job:
        job = make_job(tmp_path, lambda spark: spark.range(0, end, 1, 2))
        job.stages[0].sink(ParquetSink(tmp_path / "out"))
        return job

    job(100).run()
    assert job(100).run().stage("sink").settled_records == 100
    with pytest.raises(PlanChangedError, match="to start over, run with --fresh"):
        job(101).run()
    assert ids(tmp_path) == list(range(100))


def test_an_empty_frame_ends_at_once(spark, tmp_path):
    job = make_job(tmp_path, lambda spark: spark.range(0))
    job.stages[0].sink(ParquetSink(tmp_path / "out"))
    assert job.run().stage("sink").settled == 0


def test_what_is_not_a_dataframe_is_refused(spark, tmp_path):
    job = make_job(tmp_path, lambda spark: [1, 2])
    job.stages[0].sink(ParquetSink(tmp_path / "out"))
    with pytest.raises(ConfigError, match="dataframe_fn returned a list"):
        job.run()


def test_a_foreign_spark_job_writes_into_a_stage(spark, tmp_path):
    job = Job("foreign", state=tmp_path / "state")
    job.source(ExternalSource(), name="clicks").sink(ParquetSink(tmp_path / "out"))
    frame = spark.range(0, 300, 1, 3)

    def write(batch: str | None = None) -> None:
        writer = frame.write.format("solstice").mode("append").option("job", "foreign").option("stage", "clicks")
        writer = writer.option("queue", job.queue).option("payloads", job.payloads)
        (writer.option("batch", batch) if batch else writer).save()

    write("monday")
    write("monday")
    queue = open_queue(job.queue)
    assert queue.topic_progress("clicks").produced_records == 300
    assert len(list(open_store(job.payloads).keys())) == 3
    write()
    assert queue.topic_progress("clicks").produced_records == 600
    queue.close()
    stopper = threading.Thread(
        target=lambda: (wait_until(lambda: job.progress()[1].settled_records >= 600, "all rows"), job.stop())
    )
    stopper.start()
    job.run()
    stopper.join()
    assert ids(tmp_path) == sorted([*range(300), *range(300)])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"job": "a", "stage": "b", "quue": "x"}, "Did you mean 'queue'"),
        ({"job": "a"}, "option 'stage' is missing"),
        ({"job": "a", "stage": "b/c"}, "'b/c' is not a name"),
    ],
)
def test_wrong_options_of_the_format_are_refused_with_the_fix(spark, options, message):
    with pytest.raises(Exception, match=message):
        spark.range(1).write.format("solstice").mode("append").options(**options).save()


def test_a_partition_whose_rows_end_in_an_error_of_spark_is_never_visible(spark, tmp_path):
    """Spark then hangs up on the writer, which is not the end of the rows; a repeat would be too late."""

    def rows(session):
        session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1000")
        checked = "if(id = 15000, raise_error('bad row'), id) AS id"
        return session.range(0, 20_000, 1, 1).selectExpr(checked)

    job = make_job(tmp_path, rows, target_split_bytes=8_000)
    job.stages[0].sink(ParquetSink(tmp_path / "out"))
    try:
        with pytest.raises(Exception, match="bad row"):
            job.run()
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    with contextlib.closing(open_queue(job.queue)) as queue:
        assert queue.completed_partitions("source", "0") == set()
        assert queue.topic_progress("source").produced == 0
    assert list(open_store(job.payloads).keys()) == []
