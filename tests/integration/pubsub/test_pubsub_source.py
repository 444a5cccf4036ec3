"""``spark.readStream.format("pubsub")`` on a real Spark and the emulator."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pubsub_queries import SUBSCRIPTION, TOPIC, agents_of, files_of, is_settled, send, stored, wait_for_end, wait_until
from solstice.pubsub import publish
from solstice.testing import PubSubEmulator

pytestmark = pytest.mark.spark


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
        agents = agents_of(query)
        last = max((tmp_path / "out" / "_spark_metadata").glob("[0-9]*"), key=lambda entry: int(entry.stem)).stem
        wait_until((tmp_path / "checkpoint" / "commits" / last).exists, query)
        wait_until(lambda: is_settled(emulator, count), query, seconds=2.0)
        wait_until(lambda: counts_of(query).get("received") == count, query)
    finally:
        query.stop()
    assert sorted(stored(tmp_path, "message_id")) == sorted(sent)
    wait_for_end(agents)


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


def test_a_stream_that_is_joined_with_itself_is_two_sources_and_finds_no_pairs(spark, emulator, tmp_path) -> None:
    frame = source(spark, emulator)
    query = to_parquet(frame.join(frame.select("message_id"), "message_id"), tmp_path)
    try:
        wait_until(lambda: len(agents_of(query)) == 2, query)
        send(emulator, 0, 3_000)
        wait_until(lambda: is_settled(emulator, 3_000), query)
        assert len(query.lastProgress["sources"]) == 2
    finally:
        query.stop()
    assert stored(tmp_path) == []


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
