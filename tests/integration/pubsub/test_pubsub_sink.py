"""``df.write`` and ``df.writeStream`` with ``format("pubsub")`` on a real Spark and the emulator."""

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest

from solstice._core.java import spark_environment
from solstice.pubsub import pull
from solstice.testing import PubSubEmulator

pytestmark = pytest.mark.spark

TOPIC = "projects/test/topics/events"
SUBSCRIPTION = "projects/test/subscriptions/events"


@pytest.fixture
def emulator() -> Iterator[PubSubEmulator]:
    with PubSubEmulator() as emulator:
        emulator.create_topic(TOPIC)
        emulator.create_subscription(SUBSCRIPTION, TOPIC, enable_message_ordering=True)
        yield emulator


def write(frame: Any, emulator: PubSubEmulator, **options: str) -> None:
    given = {"topicId": TOPIC, "emulatorHost": emulator.address} | options
    frame.write.format("pubsub").mode("append").options(**given).save()


def start(frame: Any, emulator: PubSubEmulator, folder: Path, **options: str) -> Any:
    given = {"topicId": TOPIC, "emulatorHost": emulator.address, "checkpointLocation": str(folder)} | options
    return frame.writeStream.format("pubsub").options(**given).queryName(folder.name).trigger(availableNow=True).start()


def received(emulator: PubSubEmulator, count: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    with pull(SUBSCRIPTION, emulator_host=emulator.address, idle_s=5) as puller:
        for batch in puller:
            rows += batch.rows.to_pylist(maps_as_pydicts="strict")
            batch.ack()
            if len(rows) >= count:
                break
    return rows


def wait_until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.05)


def test_every_row_is_published_once_also_of_partitions_that_have_none(spark, emulator) -> None:
    frame = spark.range(0, 25_000, 1, 3).selectExpr(
        "cast(id as string) as Data",
        "map('half', cast(id % 2 as string)) as attributes",
        "cast(id % 7 as string) as ordering_key",
    )
    write(
        frame.where("Data != '0' or Data = '0'").unionByName(frame.where("false")),
        emulator,
        enableMessageOrdering="true",
    )
    rows = received(emulator, 25_000)
    assert emulator.published(TOPIC) == 25_000
    assert Counter(int(row["data"]) for row in rows) == Counter(range(25_000))
    assert all(row["attributes"] == {"half": str(int(row["data"]) % 2)} for row in rows)
    assert all(row["ordering_key"] == str(int(row["data"]) % 7) for row in rows)
    write(frame.where("false"), emulator, enableMessageOrdering="true")
    assert emulator.published(TOPIC) == 25_000


def test_what_is_wrong_with_a_write_is_said_with_the_fix(spark, emulator) -> None:
    text = spark.range(10).selectExpr("cast(id as string) as data")
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
    emulator.deny("pubsub.topics.publish")
    with pytest.raises(Exception, match=r"roles/pubsub\.publisher"):
        write(text, emulator)
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
    with pull(SUBSCRIPTION, emulator_host=emulator.address, idle_s=0.5) as puller:
        batches = [batch.rows for batch in puller]
    back = [Projection("json", frame.schema).project(raw) for raw in batches]
    assert all(projected.corrupt == [] for projected in back)
    expected = frame.orderBy("id").toArrow()
    assert (
        pa.Table.from_batches([projected.batch for projected in back]).sort_by("id").to_pylist() == expected.to_pylist()
    )


def stamps(rows: list[dict[str, Any]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for row in rows:
        found.setdefault(row["attributes"]["id"], []).append(int(row["data"]))
    return found


def test_a_replayed_batch_and_a_retried_task_repeat_rows_under_the_same_dedup_attribute(
    spark, emulator, tmp_path
) -> None:
    spark.range(0, 4_000, 1, 2).write.parquet(str(tmp_path / "in"))
    failed, published = tmp_path / "failed", tmp_path / "published"

    def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Fails one task once, when some of its rows are published."""
        for batch in batches:
            for first in range(0, batch.num_rows, 100):
                yield batch.slice(first, 100)
        try:
            failed.touch(exist_ok=False)
        except FileExistsError:
            return
        deadline = time.monotonic() + 60
        while not published.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        raise RuntimeError("after some rows were published")

    def watch() -> None:
        wait_until(lambda: failed.exists() and emulator.published(TOPIC) > 2_000, 60)
        published.touch()

    before = spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "200")
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        source = spark.readStream.schema("id long").parquet(str(tmp_path / "in")).mapInArrow(fail_once, "id long")
        frame = source.selectExpr("cast(id as string) as data")
        options = {"dedupAttribute": "id", "batchSize": "100"}
        query = start(frame, emulator, tmp_path / "checkpoint", **options)
        assert query.awaitTermination(60)
        after_retry = emulator.published(TOPIC)
        assert after_retry > 4_000, "nothing was published twice"
        (tmp_path / "checkpoint" / "commits" / "0").unlink()
        (tmp_path / "checkpoint" / "commits" / ".0.crc").unlink(missing_ok=True)
        query = start(frame, emulator, tmp_path / "checkpoint", **options)
        assert query.awaitTermination(60)
    finally:
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", before)
        watcher.join()
    assert emulator.published(TOPIC) == after_retry + 4_000
    found = stamps(received(emulator, after_retry + 4_000))
    assert sorted(numbers[0] for numbers in found.values()) == list(range(4_000))
    assert all(len(set(numbers)) == 1 and len(numbers) >= 2 for numbers in found.values())
    assert {stamp.rsplit("/", 4)[0] for stamp in found} == {str(query.id)}
    assert {tuple(stamp.split("/")[1:3]) for stamp in found} == {("0", "0"), ("0", "1")}


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
    wait_until(lambda: emulator.calls().get("Publish", 0) > 0)
    assert workers_connected_to(emulator.port)
    began = time.monotonic()
    query.stop()
    wait_until(lambda: not workers_connected_to(emulator.port), 10)
    assert time.monotonic() - began < 10
    assert emulator.published(TOPIC) == 0


def test_workers_that_are_not_forked_and_not_reused_publish_everything(emulator, tmp_path) -> None:
    """These settings belong to a Spark context, so that this needs one of its own."""
    program = """
import sys
from pyspark.sql import SparkSession
address, topic = sys.argv[1:]
spark = (SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    .config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
    .config("spark.python.use.daemon", "false").config("spark.python.worker.reuse", "false").getOrCreate())
frame = spark.range(0, 1000, 1, 3).selectExpr("id", "id * 2 as twice")
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
