"""``spark.readStream.format("pubsub")`` on a real Spark and the emulator."""

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from processes import descendants
from solstice.pubsub import publish
from solstice.testing import PubSubEmulator
from spark_driver import spark_driver

pytestmark = pytest.mark.spark

TOPIC = "projects/test/topics/events"
SUBSCRIPTION = "projects/test/subscriptions/events"


@pytest.fixture
def emulator() -> Iterator[PubSubEmulator]:
    with PubSubEmulator() as emulator:
        emulator.create_topic(TOPIC)
        emulator.create_subscription(SUBSCRIPTION, TOPIC)
        yield emulator


def send(emulator: PubSubEmulator, first: int, count: int) -> set[str]:
    payloads = [f"event-{number}" for number in range(first, first + count)]
    assert publish(TOPIC, pa.table({"data": payloads}), emulator_host=emulator.address).published == count
    return set(payloads)


def source(spark: Any, emulator: PubSubEmulator, **options: str) -> Any:
    given = {"subscriptionId": SUBSCRIPTION, "emulatorHost": emulator.address} | options
    return spark.readStream.format("pubsub").options(**given).load()


def to_parquet(frame: Any, folder: Path) -> Any:
    return (
        frame.selectExpr("cast(data as string) as event", "message_id")
        .writeStream.format("parquet")
        .option("path", str(folder / "out"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start()
    )


def files_of(folder: Path) -> list[str]:
    """The files that Spark has committed: those its log names, not all there are."""
    files = set()
    for entry in sorted((folder / "out" / "_spark_metadata").glob("[0-9]*")):
        files |= {json.loads(line)["path"] for line in entry.read_text().splitlines()[1:]}
    return sorted(file.removeprefix("file://") for file in files)


def stored(folder: Path, column: str = "event") -> list[str]:
    return [value for file in files_of(folder) for value in pq.read_table(file)[column].to_pylist()]


def wait_until(condition: Callable[[], bool], query: Any, seconds: float = 90.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert query.exception() is None, query.exception()
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.1)


def is_settled(emulator: PubSubEmulator, count: int, subscription: str = SUBSCRIPTION) -> bool:
    counters = emulator.counters(subscription)
    return counters["acked"] == count and counters["outstanding"] == counters["backlog"] == 0


def rows_in(folder: Path) -> int:
    return sum(pq.read_metadata(file).num_rows for file in files_of(folder))


@pytest.mark.parametrize("parts", [2, 4])
def test_every_message_is_stored_once_and_acknowledged_soon(spark, emulator, tmp_path, parts) -> None:
    count = 200_000
    events = pa.table({"data": [f"event-{number}" for number in range(count)]})
    sent = publish(TOPIC, events, return_ids=True, emulator_host=emulator.address).message_ids.to_pylist()
    query = to_parquet(source(spark, emulator, numPartitions=str(parts)), tmp_path)
    try:
        wait_until(lambda: rows_in(tmp_path) >= count, query)
        wait_until(lambda: is_settled(emulator, count), query, seconds=2.0)
        wait_until(lambda: counts_of(query).get("received") == count, query)
    finally:
        query.stop()
    assert sorted(stored(tmp_path, "message_id")) == sorted(sent)
    deadline = time.monotonic() + 5
    while descendants("solstice.pubsub._agent"):
        assert time.monotonic() < deadline, "an agent outlived its query"
        time.sleep(0.05)


def counts_of(query: Any) -> dict[str, int]:
    """The agent's counts in the query's progress."""
    progress = query.lastProgress
    return json.loads(progress["sources"][0]["latestOffset"] or "{}") if progress else {}


def test_queries_on_two_subscriptions_get_every_message_each_and_on_one_together(spark, emulator, tmp_path) -> None:
    other = f"{SUBSCRIPTION}-other"
    emulator.create_subscription(other, TOPIC)
    names = ["first", "second", "alone"]
    options: list[dict[str, str]] = [{}, {}, {"subscriptionId": other}]
    queries = [
        to_parquet(source(spark, emulator, maxMessagesPerTrigger="2000", **given), tmp_path / name)
        for name, given in zip(names, options, strict=True)
    ]
    try:
        sent: set[str] = set()
        for wave in range(4):
            sent |= send(emulator, wave * 5_000, 5_000)
        for query in queries:
            wait_until(lambda: is_settled(emulator, len(sent)) and is_settled(emulator, len(sent), other), query)
    finally:
        for query in queries:
            query.stop()
    first, second, alone = (stored(tmp_path / name) for name in names)
    assert sorted(first + second) == sorted(sent) == sorted(alone)


def test_both_sides_of_a_union_of_a_stream_with_itself_see_the_same_rows(spark, emulator, tmp_path) -> None:
    sent = send(emulator, 0, 3_000)
    frame = source(spark, emulator)
    query = to_parquet(frame.union(frame), tmp_path)
    try:
        wait_until(lambda: is_settled(emulator, 3_000), query)
    finally:
        query.stop()
    assert sorted(stored(tmp_path)) == sorted([*sent, *sent])


def test_a_query_goes_on_from_its_checkpoint(spark, emulator, tmp_path) -> None:
    sent = send(emulator, 0, 2_000)
    query = to_parquet(source(spark, emulator), tmp_path)
    try:
        wait_until(lambda: is_settled(emulator, 2_000), query)
    finally:
        query.stop()
    sent |= send(emulator, 2_000, 2_000)
    query = to_parquet(source(spark, emulator), tmp_path)
    try:
        wait_until(lambda: is_settled(emulator, 4_000), query)
    finally:
        query.stop()
    assert sorted(stored(tmp_path)) == sorted(sent)


def test_a_task_that_fails_after_reading_reads_the_same_rows_again(spark, emulator, tmp_path) -> None:
    def fail_first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        yield from batches
        (tmp_path / f"attempt-{context.attemptNumber()}-{context.taskAttemptId()}").touch()
        if context.attemptNumber() == 0:
            raise RuntimeError("the first attempt always fails")

    sent = send(emulator, 0, 1_000)
    frame = source(spark, emulator)
    query = to_parquet(frame.mapInArrow(fail_first, frame.schema), tmp_path)
    try:
        wait_until(lambda: is_settled(emulator, 1_000), query)
    finally:
        query.stop()
    assert sorted(stored(tmp_path)) == sorted(sent)
    assert list(tmp_path.glob("attempt-1-*")), "no second attempt ran"


def test_three_actions_on_a_batch_one_a_self_join_see_the_same_rows(spark, emulator, tmp_path) -> None:
    seen: list[tuple[int, int, int]] = []

    def look(frame: Any, batch_id: int) -> None:
        ids = {row.message_id for row in frame.select("message_id").collect()}
        seen.append((frame.count(), len(ids), frame.join(frame.select("message_id"), "message_id").count()))

    send(emulator, 0, 3_000)
    query = (
        source(spark, emulator)
        .writeStream.foreachBatch(look)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        wait_until(lambda: is_settled(emulator, 3_000), query)
    finally:
        query.stop()
    assert sum(count for count, _, _ in seen) == 3_000
    assert all(len(set(counts)) == 1 for counts in seen)


def test_wrong_options_fail_at_load_and_say_what_to_do(spark, emulator) -> None:
    for options, expected in (
        ({"subscriptionID": SUBSCRIPTION, "maxMessagePerTrigger": "5"}, "maxMessagesPerTrigger"),
        ({"subscriptionId": "events"}, "projectId"),
        ({"subscriptionId": SUBSCRIPTION, "ackDeadline": "1h"}, "ackDeadline"),
    ):
        reader = spark.readStream.format("pubsub").option("emulatorHost", emulator.address).options(**options)
        with pytest.raises(Exception, match=expected):
            reader.load()


def test_a_wrong_subscription_and_a_trigger_that_never_acks_fail_the_query_with_the_fix(
    spark, emulator, tmp_path
) -> None:
    wrong = source(spark, emulator, subscriptionId="projects/test/subscriptions/nobody")
    once = source(spark, emulator)
    for number, (writer, expected) in enumerate(
        (
            (wrong.writeStream, "projects/test/subscriptions/nobody"),
            (once.writeStream.trigger(once=True), "availableNow=True"),
        )
    ):
        query = writer.format("noop").option("checkpointLocation", str(tmp_path / str(number))).start()
        with pytest.raises(Exception, match=expected):
            query.awaitTermination(60)


def test_workers_that_are_not_forked_and_not_reused_lose_nothing(emulator, tmp_path) -> None:
    """These settings belong to a Spark context, so that this needs one of its own."""
    sent = send(emulator, 0, 3_000)
    settings = {"spark.python.use.daemon": "false", "spark.python.worker.reuse": "false"}
    options = {"subscriptionId": SUBSCRIPTION, "emulatorHost": emulator.address}
    with spark_driver(tmp_path, "local[2]", options, settings) as driver:
        driver.wait_until(lambda: is_settled(emulator, 3_000))
    assert sorted(stored(tmp_path)) == sorted(sent)
    # The agent's records are in the driver's log.
    assert re.search(rf"INFO solstice\.native\.agent\.server: agent \S+ pulls from {SUBSCRIPTION}", driver.log())
