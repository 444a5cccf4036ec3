"""``df.write`` and ``df.writeStream`` with ``format("pubsub")`` on a real Spark and the emulator."""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest

from pubsub_queries import SUBSCRIPTION, TOPIC
from solstice._core.java import spark_environment
from solstice.pubsub import pull
from solstice.testing import PubSubEmulator
from waiting import wait_until

pytestmark = pytest.mark.spark


@pytest.fixture
def emulator() -> Iterator[PubSubEmulator]:
    with PubSubEmulator() as emulator:
        emulator.create_topic(TOPIC)
        emulator.create_subscription(SUBSCRIPTION, TOPIC, enable_message_ordering=True)
        yield emulator


def write(frame: Any, emulator: PubSubEmulator, **options: str) -> None:
    given = {"topicId": TOPIC, "emulatorHost": emulator.address} | options
    frame.write.format("pubsub").mode("append").options(**given).save()


def start(frame: Any, emulator: PubSubEmulator, folder: Path, *, source: str = "pubsub", **options: str) -> Any:
    given = {"topicId": TOPIC, "emulatorHost": emulator.address, "checkpointLocation": str(folder)} | options
    return frame.writeStream.format(source).options(**given).queryName("sink").trigger(availableNow=True).start()


def received(emulator: PubSubEmulator, count: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    with pull(SUBSCRIPTION, emulator_host=emulator.address, idle_s=5) as puller:
        for batch in puller:
            rows += batch.rows.to_pylist(maps_as_pydicts="strict")
            batch.ack()
            if len(rows) >= count:
                break
    return rows


def test_every_row_is_published_once_also_of_partitions_that_have_none(spark, emulator) -> None:
    frame = spark.range(0, 37_500, 1, 3).where("id < 25000")
    frame = frame.selectExpr(
        "cast(id as string) as Data",
        "map('half', cast(id % 2 as string)) as attributes",
        "cast(id % 7 as string) as ordering_key",
    )
    write(frame, emulator, enableMessageOrdering="true")
    rows = received(emulator, 25_000)
    assert emulator.published(TOPIC) == 25_000
    assert Counter(int(row["data"]) for row in rows) == Counter(range(25_000))
    assert all(row["attributes"] == {"half": str(int(row["data"]) % 2)} for row in rows)
    assert all(row["ordering_key"] == str(int(row["data"]) % 7) for row in rows)
    for key in range(7):
        of_first_partition = [number for row in rows if (number := int(row["data"])) % 7 == key and number < 12_500]
        assert of_first_partition == sorted(of_first_partition)
    write(frame.where("false"), emulator, enableMessageOrdering="true")
    assert emulator.published(TOPIC) == 25_000


def test_what_is_wrong_with_a_write_is_said_with_the_fix(spark, emulator) -> None:
    text = spark.range(0, 10, 1, 1).selectExpr("cast(id as string) as data")
    huge = spark.range(0, 3, 1, 1).selectExpr(
        "repeat('x', int(id * 5500000)) as data", "map('n', string(id)) as attributes"
    )
    missing = {"topicId": "projects/test/topics/nobody"}
    for frame, options, expected in (
        (spark.range(10), {}, "column 'id' is no part of a message.*format to json"),
        (text, {"topic": "x"}, "topicId"),
        (text, missing, "projects/test/topics/nobody.*create it"),
        (huge, {}, "partition 0: published 0 of 3 rows.*row 2 of column 'data'.*at most 10000000.*Correct these rows"),
    ):
        with pytest.raises(Exception, match=f"(?s){expected}"):
            write(frame, emulator, **options)
    with pytest.raises(Exception, match=r'mode\("append"\)'):
        text.write.format("pubsub").mode("overwrite").option("topicId", TOPIC).save()
    assert emulator.published(TOPIC) == 0


def test_json_goes_through_pubsub_and_comes_back_as_the_same_rows(spark, emulator) -> None:
    from solstice.pubsub._project import Projection

    frame = spark.range(0, 2_000, 1, 2).selectExpr(
        "id",
        "timestamp_micros(id * 1000001) as at",
        "named_struct('n', id / 8, 't', array(string(id), null)) as s",
        "if(id % 3 = 0, null, cast(id as decimal(10,2))) as price",
    )
    write(frame, emulator, format="json")
    batches: list[pa.RecordBatch] = []
    with pull(SUBSCRIPTION, emulator_host=emulator.address, idle_s=10) as puller:
        while sum(batch.num_rows for batch in batches) < 2_000:
            batches.append(next(puller).rows)
    back = [Projection("json", frame.schema).project(raw) for raw in batches]
    assert all(projected.corrupt == [] for projected in back)
    expected = frame.orderBy("id").toArrow()
    assert (
        pa.Table.from_batches([projected.batch for projected in back]).sort_by("id").to_pylist() == expected.to_pylist()
    )


def test_a_replayed_batch_and_a_retried_task_repeat_rows_under_the_same_dedup_attribute(
    spark, emulator, tmp_path
) -> None:
    spark.range(0, 4_000, 1, 2).write.parquet(str(tmp_path / "in"))
    spark.dataSource.register(failing_source())
    frame = spark.readStream.schema("id long").parquet(str(tmp_path / "in")).selectExpr("cast(id as string) as data")
    for source in ("failing_pubsub", "pubsub"):
        query = start(frame, emulator, tmp_path / "checkpoint", source=source, dedupAttribute="id")
        assert query.awaitTermination(60)
        for entry in (tmp_path / "checkpoint" / "commits").glob("*0*"):
            entry.unlink()  # so that the next run replays the batch
    assert emulator.published(TOPIC) == 6_000 + 4_000, "a task twice, then the whole batch"
    found: dict[str, list[int]] = {}
    for row in received(emulator, 10_000):
        found.setdefault(row["attributes"]["id"], []).append(int(row["data"]))
    assert sorted(numbers[0] for numbers in found.values()) == list(range(4_000))
    assert all(len(set(numbers)) == 1 for numbers in found.values())
    assert Counter(len(numbers) for numbers in found.values()) == {2: 2_000, 3: 2_000}
    places = {tuple(stamp.split("/")[:3]) for stamp in found}
    assert places == {(str(query.id), "0", "0"), (str(query.id), "0", "1")}


def failing_source() -> type:
    """The data source, whose first attempt at the first partition fails when all is published."""
    from pyspark import TaskContext

    from solstice.pubsub._sink import PubSubStreamWriter
    from solstice.pubsub._source import PubSubDataSource

    class FailingWriter(PubSubStreamWriter):
        def write(self, iterator: Iterator[pa.RecordBatch]) -> Any:
            done = super().write(iterator)
            task = TaskContext.get()
            if task.partitionId() == 0 and task.attemptNumber() == 0:
                raise RuntimeError("the first attempt always fails")
            return done

    class FailingSource(PubSubDataSource):
        @classmethod
        def name(cls) -> str:
            return "failing_pubsub"

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:
            return FailingWriter(self._sink(schema, overwrite))

    return FailingSource


def workers_connected_to(port: int) -> list[int]:
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if any(place.raddr and place.raddr.port == port for place in process.net_connections("tcp")):
                found.append(process.pid)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def test_a_stopped_query_leaves_nobody_publishing(spark, emulator, tmp_path) -> None:
    emulator.faults.delay("Publish", 20, times=1_000)
    spark.range(0, 1_000, 1, 2).write.parquet(str(tmp_path / "in"))
    frame = spark.readStream.schema("id long").parquet(str(tmp_path / "in")).selectExpr("cast(id as string) as data")
    query = start(frame, emulator, tmp_path / "checkpoint")
    try:
        wait_until(lambda: emulator.calls().get("Publish", 0) > 0)
        assert workers_connected_to(emulator.port)
    finally:
        began = time.monotonic()
        query.stop()
    wait_until(lambda: not workers_connected_to(emulator.port), seconds=10)
    assert time.monotonic() - began < 10
    assert emulator.published(TOPIC) == 0


def test_workers_that_are_not_forked_and_not_reused_publish_everything(emulator, tmp_path) -> None:
    """These settings belong to a Spark context, so that this needs one of its own."""
    program = """
import sys
from pyspark.sql import SparkSession
address, topic = sys.argv[1:]
spark = (SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    .config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
    .config("spark.python.use.daemon", "false").config("spark.python.worker.reuse", "false").getOrCreate())
frame = spark.range(0, 1000, 1, 1).selectExpr("id", "id * 2 as twice")
(frame.write.format("pubsub").mode("append").option("topicId", topic).option("emulatorHost", address)
    .option("format", "json").option("dedupAttribute", "id").save())
"""
    run = subprocess.run(
        [sys.executable, "-c", program, emulator.address, TOPIC],
        cwd=tmp_path,
        env=os.environ | spark_environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-4_000:]
    rows = received(emulator, 1_000)
    assert sorted(json.loads(row["data"])["twice"] for row in rows) == list(range(0, 2_000, 2))
    assert len({row["attributes"]["id"] for row in rows}) == 1_000
