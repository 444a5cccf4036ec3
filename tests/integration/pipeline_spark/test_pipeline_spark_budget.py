"""Back-pressure in bytes: Spark waits for workers that are slower, and never for ever."""

import contextlib
import os
import threading
import time
from pathlib import Path

import pytest

from solstice.pipeline import FunctionSink, Job, SparkSourceV2Config
from solstice.pipeline._queue import open_queue
from solstice.pipeline._source_master import SourceContext

pytestmark = pytest.mark.spark

SLOTS = 2  # of the session of the tests
PARTITIONS, SPLITS, SPLIT_BYTES = 4, 4, 64 << 10
TASK_BYTES = SPLITS * SPLIT_BYTES
BUDGET = 2 * SPLIT_BYTES


class PayloadWatch:
    """The most bytes of payload that a job had at a time, on its disk and by its counters, looked at all the time."""

    def __init__(self, job: Job) -> None:
        self.peak_bytes = 0
        self.peak_counted = 0
        self.looks = 0
        self._folder = job.state / "payloads"
        self._queue_url = job.queue
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "PayloadWatch":
        self._thread.start()
        return self

    def __exit__(self, *ignored: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        with contextlib.closing(open_queue(self._queue_url)) as queue:
            while not self._stop.wait(0.005):
                size = 0
                for folder, _, names in os.walk(self._folder):
                    for name in names:
                        with contextlib.suppress(FileNotFoundError):
                            size += os.stat(os.path.join(folder, name)).st_size
                self.peak_bytes = max(self.peak_bytes, size)
                counted = queue.backlog()
                self.peak_counted = max(self.peak_counted, counted.visible_bytes + counted.hidden_bytes)
                self.looks += 1


def rows(session):
    """4 partitions of 256 KiB, of which Spark makes all in well under a second."""
    count = PARTITIONS * TASK_BYTES // 1024
    return session.range(0, count, 1, PARTITIONS).selectExpr("id", "repeat('x', 1008) AS text")


def seconds_of_spark_alone(root: Path) -> float:
    """How long it takes to write all rows when nobody holds it back; the second time, when it is warm."""
    for place in (root / "first", root / "second"):
        target = SourceContext("free", "source", f"sqlite://{place}/queue.db", f"file://{place}/payloads", place)
        place.mkdir(parents=True)
        master = SparkSourceV2Config(dataframe_fn=rows, target_split_bytes=SPLIT_BYTES).master(target)
        started_s = time.monotonic()
        master.start()
        master.join(60.0)
        assert master.over
    return time.monotonic() - started_s


def test_a_sink_that_is_20_times_slower_than_spark_keeps_the_payloads_within_the_budget(spark, tmp_path):
    slow_s = 20 * seconds_of_spark_alone(tmp_path / "free") / (PARTITIONS * SPLITS)
    job = Job("slow", state=tmp_path / "state", payload_budget=BUDGET)
    source = job.source(SparkSourceV2Config(dataframe_fn=rows, target_split_bytes=SPLIT_BYTES))
    source.sink(FunctionSink(lambda table: time.sleep(slow_s)))
    spark_s = []

    def note(stages):
        if stages[0].done and not spark_s:
            spark_s.append(time.monotonic() - started_s)

    started_s = time.monotonic()
    with PayloadWatch(job) as watch:
        result = job.run(on_progress=note)
    with contextlib.closing(open_queue(job.queue)) as queue:
        task_bytes = queue.topic_progress("source").produced_bytes // PARTITIONS
    assert result.stage("sink").settled == PARTITIONS * SPLITS
    assert result.stage("sink").settled_records == PARTITIONS * TASK_BYTES // 1024
    assert BUDGET < watch.peak_counted <= BUDGET + SLOTS * task_bytes
    assert watch.peak_bytes <= BUDGET + SLOTS * task_bytes + task_bytes // SPLITS, "and one that is settled"
    assert watch.looks > 100
    assert spark_s[0] > result.duration_s / 3, "Spark was not held back"


@pytest.mark.parametrize("visibility", ["task", "job"])
def test_a_budget_smaller_than_one_tasks_output_ends(spark, tmp_path, visibility):
    job = Job("tiny", state=tmp_path, payload_budget=1)
    config = SparkSourceV2Config(dataframe_fn=rows, target_split_bytes=SPLIT_BYTES, visibility=visibility)
    job.source(config).map(lambda table: None, name="drop")
    assert job.run().stage("drop").settled == PARTITIONS * SPLITS


def test_a_stream_waits_for_its_workers_too_and_ends(spark, tmp_path):
    events = tmp_path / "events"
    spark.range(0, 400, 1, 4).write.parquet(str(events))
    job = Job("tiny", state=tmp_path / "state", payload_budget=1)

    def files(session):
        return session.readStream.schema("id long").option("maxFilesPerTrigger", 1).parquet(str(events))

    source = job.source(SparkSourceV2Config(dataframe_fn=files, trigger={"availableNow": True}))
    source.map(lambda table: time.sleep(0.1), name="slow")
    seen = []
    result = job.run(on_progress=lambda stages: seen.append(stages[0].produced - stages[1].settled))
    assert result.stage("slow").settled_records == 400
    with contextlib.closing(open_queue(job.queue)) as queue:
        assert queue.backlog().visible_bytes == 0
    assert max(seen) <= 1, "a batch was published while another one waited"
