"""What a Spark user sees of messages: columns, types, modes, dead letters and peeks, on a real Spark."""

import json
import os
import subprocess
import sys
import time
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from pubsub_queries import SUBSCRIPTION, TOPIC, wait_until
from solstice._core.java import spark_environment
from solstice.pubsub import publish, pull
from solstice.testing import PubSubEmulator

pytestmark = pytest.mark.spark

DEAD = "projects/test/topics/dead"


def send(emulator: PubSubEmulator, payloads: list[str], attributes: dict[str, str] | None = None) -> None:
    pairs = pa.array([list((attributes or {}).items())] * len(payloads), pa.map_(pa.string(), pa.string()))
    publish(TOPIC, pa.table({"data": payloads, "attributes": pairs}), emulator_host=emulator.address)


def options(emulator: PubSubEmulator, **given: str) -> dict[str, str]:
    return {"subscriptionId": SUBSCRIPTION, "emulatorHost": emulator.address, **given}


def stream(spark: Any, emulator: PubSubEmulator, count: int, schema: str | None = None, **given: str) -> pa.Table:
    """Stream ``count`` messages until they are acknowledged; the rows, in the order of their first column."""
    reader = spark.readStream.format("pubsub").options(**options(emulator, **given))
    frame = (reader.schema(schema) if schema else reader).load()
    collected: list[pa.Table] = []
    query = frame.writeStream.foreachBatch(lambda batch, _: collected.append(batch.toArrow())).start()
    try:
        wait_until(lambda: emulator.counters(SUBSCRIPTION)["acked"] == count, query)
    finally:
        query.stop()
    table = pa.concat_tables(collected)
    return table.sort_by(table.column_names[0])


def peek(spark: Any, emulator: PubSubEmulator, schema: str | None = None, **given: str) -> Any:
    reader = spark.read.format("pubsub").options(**options(emulator, **{"availableNowIdle": "500ms", **given}))
    return (reader.schema(schema) if schema else reader).load()


def settled(emulator: PubSubEmulator) -> dict[str, int]:
    counters = emulator.counters(SUBSCRIPTION)
    return {name: counters[name] for name in ("acked", "outstanding", "backlog")}


TYPES = {
    "b BOOLEAN": (True, True),
    "i8 TINYINT": (1, 1),
    "i16 SMALLINT": (2, 2),
    "i32 INT": (3, 3),
    "i64 BIGINT": (4, 4),
    "f32 FLOAT": (1.5, 1.5),
    "f64 DOUBLE": (2.5, 2.5),
    "d DECIMAL(20, 4)": (12.345, Decimal("12.3450")),
    "s STRING": ("żółć", "żółć"),
    "bin BINARY": ("AP8=", b"\x00\xff"),
    "day DATE": ("2024-02-29", date(2024, 2, 29)),
    "ts TIMESTAMP": ("2024-02-29T01:02:03.000004Z", datetime(2024, 2, 29, 1, 2, 3, 4, tzinfo=UTC)),
    "ntz TIMESTAMP_NTZ": ("2024-02-29T01:02:03.000004", datetime(2024, 2, 29, 1, 2, 3, 4)),
    "iv INTERVAL DAY TO SECOND": ("1 02:03:04.5", timedelta(days=1, hours=2, minutes=3, seconds=4.5)),
    "l ARRAY<INT>": ([1, None], [1, None]),
    "m MAP<STRING, DOUBLE>": ({"k": 1.5}, [("k", 1.5)]),
    "st STRUCT<x: BIGINT, y: ARRAY<STRUCT<z: STRING>>>": (
        {"x": 1, "y": [{"z": "w"}]},
        {"x": 1, "y": [{"z": "w"}]},
    ),
    "n BIGINT": (None, None),
}


def test_every_type_is_streamed_from_json_next_to_metadata_and_attributes(spark, emulator) -> None:
    schema = ", ".join((*TYPES, "message_id STRING", "country STRING", "publish_time TIMESTAMP"))
    document = {declared.split()[0]: value for declared, (value, _) in TYPES.items()}
    send(emulator, [json.dumps(document), "{}"], {"country": "PL", "other": "x"})
    given = {"format": "json", "mode": "FAILFAST", "columns": "message_id,publish_time", "attributeColumns": "country"}
    rows = stream(spark, emulator, 2, schema, **given).to_pylist()
    [full] = [row for row in rows if row["b"]]
    [empty] = [row for row in rows if not row["b"]]
    metadata = {"message_id", "country", "publish_time"}
    assert {name: value for name, value in full.items() if name not in metadata} == {
        declared.split()[0]: expected for declared, (_, expected) in TYPES.items()
    }
    assert {name for name, value in empty.items() if value is not None} == metadata
    assert full["country"] == "PL"
    assert full["publish_time"].tzinfo is not None


def test_raw_rows_have_the_chosen_columns_only(spark, emulator) -> None:
    send(emulator, ["a", "b"], {"country": "PL"})
    chosen = {"columns": "data,publish_time", "attributeColumns": "country,city"}
    table = stream(spark, emulator, 2, **chosen)
    assert table.column_names == ["data", "publish_time", "country", "city"]
    assert table["data"].to_pylist() == [b"a", b"b"]
    assert table["country"].to_pylist() == ["PL", "PL"]
    assert table["city"].to_pylist() == [None, None]


def test_bad_rows_stay_with_their_payload_and_are_published_as_dead_letters(spark, emulator) -> None:
    emulator.create_topic(DEAD)
    emulator.create_subscription("projects/test/subscriptions/dead", DEAD)
    send(emulator, ['{"id":1}', '{"id":', '{"id":"three"}'], {"k": "v"})
    schema = "id BIGINT, _corrupt_record BINARY"
    table = stream(spark, emulator, 3, schema, format="json", deadLetterTopic=DEAD)
    expected = [(1, None), (None, b'{"id":'), (None, b'{"id":"three"}')]
    assert sorted(zip(*(column.to_pylist() for column in table.columns), strict=True), key=str) == sorted(
        expected, key=str
    )
    letters: list[dict[str, Any]] = []
    with pull("projects/test/subscriptions/dead", emulator_host=emulator.address, idle_s=10) as puller:
        while len(letters) < 2:
            letters += next(puller).rows.to_pylist()
    assert sorted(letter["data"] for letter in letters) == [b'{"id":', b'{"id":"three"}']
    for letter in letters:
        attributes = dict(letter["attributes"])
        assert attributes["k"] == "v"
        assert attributes["solstice_seq"] == "1"
        assert attributes["solstice_reason"]


def test_peeks_see_every_message_and_acknowledge_none(spark, emulator) -> None:
    send(emulator, [f'{{"id":{number}}}' for number in range(500)] + ["{"])
    raw = peek(spark, emulator, numPartitions="3", columns="data,message_id")
    assert raw.rdd.getNumPartitions() == 3
    assert raw.selectExpr("count(distinct message_id) as ids", "count(*) as rows").first() == (501, 501)
    typed = peek(spark, emulator, "id BIGINT, message_id STRING", format="json", columns="message_id")
    assert typed.selectExpr("sum(id)", "count(*)", "count(message_id)").first() == (124_750, 501, 501)
    dropped = peek(spark, emulator, "id BIGINT", format="json", mode="DROPMALFORMED")
    assert dropped.selectExpr("sum(id)", "count(*)").first() == (124_750, 500)
    with pytest.raises(Exception, match=r"message \d+: no JSON.*PERMISSIVE or DROPMALFORMED"):
        peek(spark, emulator, "id BIGINT", format="json", mode="FAILFAST").collect()
    assert settled(emulator) == {"acked": 0, "outstanding": 0, "backlog": 501}


def test_avro_payloads_become_columns_and_those_that_are_none_nulls(spark, emulator) -> None:
    fields = [
        {"name": "id", "type": "long"},
        {"name": "page", "type": ["null", "string"]},
        {"name": "tags", "type": {"type": "array", "items": {"type": "map", "values": "int"}}},
    ]
    given = {"format": "avro", "avroSchema": json.dumps({"type": "record", "name": "Click", "fields": fields})}
    # Zigzag numbers; the branch of a union before its value; the count of a block before its items, 0 after the last.
    payloads = [b"\x02" + b"\x02\x08home" + b"\x02\x02\x02k\x0e\x00\x00", b"\x04" + b"\x00" + b"\x00", b"\xff"]
    publish(TOPIC, pa.table({"data": pa.array(payloads, pa.binary())}), emulator_host=emulator.address)
    rows = peek(spark, emulator, "id BIGINT, page STRING", **given).collect()
    assert sorted(map(tuple, rows), key=str) == [(1, "home"), (2, None), (None, None)]
    schema = "id BIGINT, page STRING, tags ARRAY<MAP<STRING, INT>>, _corrupt_record BINARY"
    assert stream(spark, emulator, 3, schema, **given).to_pylist() == [
        {"id": 1, "page": "home", "tags": [[("k", 7)]], "_corrupt_record": None},
        {"id": 2, "page": None, "tags": [], "_corrupt_record": None},
        {"id": None, "page": None, "tags": None, "_corrupt_record": b"\xff"},
    ]


def test_a_peek_takes_no_more_than_it_may_and_nothing_from_an_empty_subscription(spark, emulator) -> None:
    assert peek(spark, emulator).collect() == []
    send(emulator, ["x"] * 300)
    started = time.monotonic()
    assert peek(spark, emulator, maxMessages="120", availableNowIdle="60s").count() == 120
    assert time.monotonic() - started < 30, "it waited although it had all it may take"
    assert settled(emulator) == {"acked": 0, "outstanding": 0, "backlog": 300}


def test_a_missing_subscription_is_made_when_that_is_asked_for(spark, emulator) -> None:
    made = "projects/test/subscriptions/made"
    given = {"subscriptionId": made, "createSubscription": "true", "topicId": TOPIC, "ackDeadline": "30s"}
    frame = spark.readStream.format("pubsub").options(**options(emulator, **given)).load()
    collected: list[bytes] = []

    def collect(batch: Any, _: int) -> None:
        collected.extend(batch.toArrow()["data"].to_pylist())

    query = frame.writeStream.foreachBatch(collect).start()
    try:
        wait_until(lambda: emulator.calls().get("StreamingPull", 0) > 0, query)
        send(emulator, ["late"])
        wait_until(lambda: collected == [b"late"], query)
    finally:
        query.stop()


CONNECT = """
import sys, time
from pyspark.sql import SparkSession
address, subscription, topic, relay, folder = sys.argv[1:]
spark = (SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false")
    .config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1").getOrCreate())
assert "connect" in type(spark).__module__, type(spark)
sink = {"topicId": topic, "emulatorHost": address, "format": "json"}
spark.range(1000).write.format("pubsub").options(**sink).mode("append").save()
given = {"subscriptionId": subscription, "emulatorHost": address, "format": "json"}
peek = spark.read.format("pubsub").options(**given, availableNowIdle="500ms").schema("id BIGINT").load()
print("peeked", peek.selectExpr("sum(id)").first()[0], flush=True)
frame = spark.readStream.format("pubsub").options(**given).schema("id BIGINT").load()
query = (frame.writeStream.format("parquet").option("path", folder + "/out")
    .option("checkpointLocation", folder + "/checkpoint").start())
sys.stdin.read()
query.stop()
print("streamed", spark.read.parquet(folder + "/out").selectExpr("sum(id)").first()[0], flush=True)
frame = spark.readStream.schema("id BIGINT").parquet(folder + "/out")
query = (frame.writeStream.format("pubsub").options(**sink | {"topicId": relay})
    .option("checkpointLocation", folder + "/relayed").trigger(availableNow=True).start())
query.awaitTermination()
spark.stop()
"""


def test_it_all_works_from_a_spark_connect_session(emulator, tmp_path) -> None:
    relay = "projects/test/topics/relay"
    emulator.create_topic(relay)
    client = subprocess.Popen(
        [sys.executable, "-c", CONNECT, emulator.address, SUBSCRIPTION, TOPIC, relay, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | spark_environment() | {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1"},  # starts faster
    )
    try:
        deadline = time.monotonic() + 150
        while emulator.counters(SUBSCRIPTION)["acked"] < 1_000:
            assert client.poll() is None, client.communicate()[1].decode()[-4_000:]
            assert time.monotonic() < deadline, "not everything was acknowledged in time"
            time.sleep(0.2)
    finally:
        said, errors = client.communicate(b"")
    assert said.decode().split() == ["peeked", "499500", "streamed", "499500"], errors.decode()[-4_000:]
    assert emulator.published(relay) == 1_000
