"""The Spark sink without Spark: what is refused when a write is planned, and what a task publishes."""

import contextlib
import pickle
import socket
import time
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as st

from solstice._core.arrow import to_arrow_schema
from solstice.errors import (
    ConfigError,
    NotFoundError,
    PermissionDeniedError,
    PublishError,
    UnavailableError,
    UnknownOptionError,
    UnsupportedTypeError,
)
from solstice.pubsub import pull
from solstice.pubsub._options import SINK_OPTIONS
from solstice.pubsub._project import Projection
from solstice.pubsub._sink import Published, Sink
from solstice.pubsub._source import PubSubDataSource
from solstice.testing import PubSubEmulator

TOPIC, SUBSCRIPTION = "projects/test/topics/events", "projects/test/subscriptions/events"
TEXT_MAP = st.MapType(st.StringType(), st.StringType())
DATA = {"data": st.StringType()}


@pytest.fixture
def emulator() -> Iterator[PubSubEmulator]:
    with PubSubEmulator() as emulator:
        emulator.create_topic(TOPIC)
        emulator.create_subscription(SUBSCRIPTION, TOPIC, enable_message_ordering=True)
        yield emulator


def struct(columns: dict[str, st.DataType]) -> st.StructType:
    return st.StructType([st.StructField(name, kind) for name, kind in columns.items()])


def sink(columns: dict[str, st.DataType], *, overwrite: bool = False, **options: str) -> Sink:
    """A sink as a task gets it."""
    options = {"topicId": TOPIC, "emulatorHost": "127.0.0.1:1"} | options
    return pickle.loads(pickle.dumps(Sink(struct(columns), overwrite, SINK_OPTIONS.parse(options))))


def pulled(emulator: PubSubEmulator) -> pa.Table:
    """All that was published."""
    batches: list[pa.RecordBatch] = []
    with pull(SUBSCRIPTION, emulator_host=emulator.address, idle_s=10) as puller:
        while sum(batch.num_rows for batch in batches) < emulator.published(TOPIC):
            batch = next(puller)
            batches.append(batch.rows)
            batch.ack()
    return pa.Table.from_batches(batches)


def received(emulator: PubSubEmulator) -> list[dict[str, Any]]:
    return pulled(emulator).to_pylist(maps_as_pydicts="strict")


@pytest.mark.parametrize(
    ("columns", "options", "expected"),
    [
        ({"id": st.LongType(), **DATA}, {}, "column 'id' is no part of a message.*format to json"),
        ({"attributes": TEXT_MAP}, {}, "no column 'data'.*format to json"),
        ({"data": st.LongType()}, {}, "'data' is bigint; it must be binary or string"),
        ({**DATA, "Data": st.StringType()}, {}, "two columns 'data'"),
        ({**DATA, "attributes": st.StringType()}, {}, "'attributes' is string; it must be map<string,string>"),
        (
            {"a": st.LongType(), "Attributes": st.MapType(st.StringType(), st.LongType())},
            {"format": "json"},
            "'Attributes' is map<string,bigint>.*rename",
        ),
        ({**DATA, "ordering_key": st.LongType()}, {"enableMessageOrdering": "true"}, "'ordering_key' is bigint"),
        ({**DATA, "ordering_key": st.StringType()}, {}, "Set the option enableMessageOrdering to true"),
        ({"attributes": TEXT_MAP}, {"format": "json"}, "no column is left for the payload"),
        (DATA, {"dedupAttribute": "googid"}, "dedupAttribute is 'googid'"),
        (DATA, {"dedupAttribute": "x" * 257}, "1 to 256 bytes"),
        (DATA, {"topicId": "events"}, "Set projectId"),
        (DATA, {"emulatorHost": "nowhere"}, "host:port"),
        (DATA, {"endpoint": "pubsub.example:443"}, "two places"),
        (DATA, {"format": "avro"}, "'format' is 'avro'"),
        (DATA, {"batchSize": "1001"}, "batchSize"),
    ],
)
def test_what_cannot_be_published_is_refused_when_the_write_is_planned(columns, options, expected) -> None:
    with pytest.raises(ConfigError, match=expected):
        sink(columns, **options)


def test_two_payload_columns_of_one_name_are_refused() -> None:
    twice = st.StructType([st.StructField("a", st.LongType()), st.StructField("a", st.LongType())])
    with pytest.raises(ConfigError, match="two columns 'a'"):
        Sink(twice, False, SINK_OPTIONS.parse({"topicId": TOPIC, "format": "json"}))


def test_overwriting_is_refused_with_the_mode_that_fits() -> None:
    source = PubSubDataSource({"topicId": TOPIC})
    for make in (source.writer, source.streamWriter):
        with pytest.raises(ConfigError, match=r'mode\("append"\)'):
            make(struct(DATA), True)


def test_unknown_options_are_refused_and_those_of_spark_are_not() -> None:
    with pytest.raises(UnknownOptionError, match="topicId"):
        PubSubDataSource({"topicID": TOPIC, "topic": "x"}).writer(struct(DATA), False)
    PubSubDataSource({"topicId": TOPIC, "checkpointLocation": "/c", "queryName": "q"}).streamWriter(struct(DATA), False)


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        (st.VariantType(), "c"),
        (st.ArrayType(st.VariantType()), "c.element"),
        (st.YearMonthIntervalType(), "c"),
        (st.CalendarIntervalType(), "c"),
        (st.GeometryType(4326), "c"),
        (st.MapType(st.DateType(), st.LongType()), "c.key"),
        (st.MapType(st.DoubleType(), st.LongType()), "c.key"),
    ],
)
def test_a_type_without_a_place_in_json_is_refused_with_its_column(kind, place) -> None:
    with pytest.raises(UnsupportedTypeError, match=rf"['\"]{place}['\"]"):
        sink({"a": st.LongType(), "c": kind}, format="json")


def test_every_part_of_a_message_is_published_whatever_the_case_of_its_column(emulator) -> None:
    columns = {"Attributes": TEXT_MAP, "ORDERING_KEY": st.StringType(), "Data": st.BinaryType()}
    batch = pa.record_batch(
        {
            "Attributes": pa.array([[("a", "x")], None], pa.map_(pa.string(), pa.string())),
            "ORDERING_KEY": ["k", None],
            "Data": pa.array([b"\x00\xff", b"y"], pa.large_binary()),
        }
    )
    done = sink(columns, emulatorHost=emulator.address, enableMessageOrdering="true").publish([batch], "q/0", 3)
    assert done == Published(3, 2)
    rows = {row["data"]: (row["attributes"], row["ordering_key"] or "") for row in received(emulator)}
    assert rows == {b"\x00\xff": ({"a": "x"}, "k"), b"y": ({}, "")}


def test_a_partition_without_rows_does_not_even_connect() -> None:
    nowhere = sink(DATA)
    assert nowhere.publish([], "q/0", 0) == Published(0, 0)
    assert nowhere.publish([pa.record_batch({"data": pa.array([], pa.string())})], "q/0", 1) == Published(1, 0)


def test_json_has_all_columns_but_attributes_and_ordering_key(emulator) -> None:
    columns = {"id": st.LongType(), "data": st.StringType(), "attributes": TEXT_MAP}
    attributes = pa.array([[("a", "x")], [("b", "y")]], pa.map_(pa.string(), pa.string()))
    batch = pa.record_batch({"id": [1, None], "data": ["x", None], "attributes": attributes})
    sink(columns, emulatorHost=emulator.address, format="json").publish([batch], "q/0", 0)
    rows = {row["data"]: row["attributes"] for row in received(emulator)}
    assert rows == {b'{"id":1,"data":"x"}': {"a": "x"}, b"{}": {"b": "y"}}


def test_what_is_written_as_json_is_read_back_with_the_same_values(emulator) -> None:
    columns = {
        "i": st.LongType(),
        "f": st.FloatType(),
        "d": st.DoubleType(),
        "n": st.DecimalType(38, 18),
        "s": st.StringType(),
        "b": st.BinaryType(),
        "day": st.DateType(),
        "at": st.TimestampType(),
        "local": st.TimestampNTZType(),
        "clock": st.TimeType(),
        "span": st.DayTimeIntervalType(),
        "list": st.ArrayType(st.StructType([st.StructField("x", st.ShortType()), st.StructField("y", TEXT_MAP)])),
    }
    schema = to_arrow_schema(struct(columns))
    limit = 2**63 - 1
    values: dict[str, list[Any]] = {
        "i": [limit, -limit - 1, 0],
        "f": [3.4028234663852886e38, 1.401298464324817e-45, -0.0],
        "d": [1.7976931348623157e308, 5e-324, 0.1],
        "n": [Decimal("12345678901234567890.123456789012345678"), Decimal("1E-18"), Decimal("-0.5")],
        "s": ['a"b\\\n\x01', "é😀\u2028", ""],
        "b": [b"\x00\xff", b"", b"xyz"],
        "day": [2932897, -719529, 19782],
        "at": [1_709_210_096_789_012, -1, 253_402_300_800_000_000],
        "local": [1_709_210_096_789_000, -62_135_596_800_000_001, 0],
        "clock": [0, 86_399_999_999_000, 45_296_500_000_000],
        "span": [93_784_500_000, -5, limit],
        "list": [[{"x": 1, "y": [("k", None), ("l", "v")]}, None], [], [{"x": None, "y": None}]],
    }
    arrays = []
    for field in schema:
        if pa.types.is_temporal(field.type):
            ints = pa.int32() if pa.types.is_date32(field.type) else pa.int64()
            arrays.append(pa.array([*values[field.name], None], ints).cast(field.type))
        else:
            arrays.append(pa.array([*values[field.name], None], field.type))
    batch = pa.record_batch(arrays, schema=schema)
    sink(columns, emulatorHost=emulator.address, format="json").publish([batch], "q/0", 0)
    [raw] = pulled(emulator).combine_chunks().to_batches()
    assert Projection("json", struct(columns), mode="FAILFAST").project(raw).batch.equals(batch)


def test_requests_keep_to_the_sizes_asked_for(emulator) -> None:
    rows = pa.record_batch({"data": ["x" * 1_000] * 100})
    for options, requests in (({"batchSize": "7"}, 15), ({"maxBatchBytes": "10300"}, 10)):
        before = emulator.calls().get("Publish", 0)
        sink(DATA, emulatorHost=emulator.address, **options).publish([rows], "q/0", 0)
        assert emulator.calls()["Publish"] - before == requests


def test_a_request_that_is_not_full_waits_for_as_long_as_asked_for(emulator) -> None:
    def rows() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"data": ["x"]})
        time.sleep(0.2)  # far longer than a request waits by itself
        yield pa.record_batch({"data": ["y"]})

    sink(DATA, emulatorHost=emulator.address, lingerMs="60000").publish(rows(), "q/0", 0)
    assert emulator.calls()["Publish"] == 1


@pytest.mark.parametrize(("compression", "bytes_sent"), [("none", range(50_000, 100_000)), ("gzip", range(5_000))])
def test_requests_are_compressed_where_that_is_asked_for(compression, bytes_sent) -> None:
    """A server that takes what comes and never answers: of a large request it gets what HTTP/2 lets pass at first."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        options = {"emulatorHost": f"127.0.0.1:{server.getsockname()[1]}", "publishTimeout": "1s"}
        writer = sink(DATA, **options, compression=compression)
        with pytest.raises(UnavailableError):
            writer.publish([pa.record_batch({"data": ["x" * 1_000] * 100})], "q/0", 0)
        connection, _ = server.accept()
        with connection:
            connection.settimeout(0.2)
            taken = 0
            with contextlib.suppress(TimeoutError):
                while piece := connection.recv(1 << 20):
                    taken += len(piece)
    assert taken in bytes_sent


def test_the_dedup_attribute_is_the_same_at_every_attempt_and_another_for_every_row(emulator) -> None:
    writer = sink(DATA, emulatorHost=emulator.address, dedupAttribute="id")
    whole = [pa.record_batch({"data": ["same", "same", "other"]}), pa.record_batch({"data": ["last"]})]
    for batches in (whole, whole, [pa.concat_batches(whole)]):
        writer.publish(batches, "query/7", 3)
    stamps: dict[str, list[bytes]] = {}
    for row in received(emulator):
        stamps.setdefault(row["attributes"]["id"], []).append(row["data"])
    assert sorted(stamp.rsplit("/", 1)[0] for stamp in stamps) == [f"query/7/3/{row}" for row in range(4)]
    assert all(len(copies) == 3 and len(set(copies)) == 1 for copies in stamps.values())


def test_another_row_in_the_same_place_has_another_dedup_attribute(emulator) -> None:
    """Rows may come in another order at the next attempt: dropping repeats must not drop a row that is none."""
    writer = sink(DATA, emulatorHost=emulator.address, dedupAttribute="id")
    for rows in (["a", "b"], ["b", "a"]):
        writer.publish([pa.record_batch({"data": rows})], "query/7", 3)
    assert len({row["attributes"]["id"] for row in received(emulator)}) == 4


def test_an_attribute_that_is_there_already_is_no_dedup_attribute(emulator) -> None:
    writer = sink({**DATA, "attributes": TEXT_MAP}, emulatorHost=emulator.address, dedupAttribute="id")
    attributes = pa.array([[], [("id", "mine")]], pa.map_(pa.string(), pa.string()))
    with pytest.raises(ConfigError, match=r"row 1 of column 'attributes'.*dedupAttribute"):
        writer.publish([pa.record_batch({"data": ["x", "y"], "attributes": attributes})], "q/0", 0)
    assert emulator.published(TOPIC) == 0


def test_rows_that_pubsub_would_refuse_are_named_with_partition_column_and_reason(emulator) -> None:
    writer = sink(DATA, emulatorHost=emulator.address)
    good = pa.record_batch({"data": ["x"] * 10})
    bad = pa.record_batch({"data": ["y", "z" * 10_000_001, None]})
    with pytest.raises(PublishError, match="partition 5: published 10 of 13 rows") as caught:
        writer.publish([good, bad], "q/0", 5)
    message = str(caught.value)
    assert "row 11 of column 'data': a message of 100000" in message
    assert "row 12 of column 'data': neither data nor attributes" in message
    assert "Correct these rows" in message


@pytest.mark.parametrize(
    ("prepare", "error", "expected"),
    [
        (lambda e: {"topicId": "projects/test/topics/nobody"}, NotFoundError, "projects/test/topics/nobody.*create it"),
        (lambda e: e.deny("pubsub.topics.publish"), PermissionDeniedError, "roles/pubsub.publisher"),
        # The second text where the process still has a connection to an earlier emulator at the same port.
        (lambda e: e.stop(), UnavailableError, "no Pub/Sub answers at.*correct emulatorHost|is it running at"),
        (lambda e: e.faults.delay("Publish", 60, times=100), UnavailableError, "within 1"),
        (lambda e: e.faults.answer("Publish", "UNAVAILABLE", times=1_000), UnavailableError, "within 1"),
    ],
    ids=["no topic", "no permission", "no emulator", "no answer", "unavailable"],
)
def test_a_service_that_does_not_take_the_rows_fails_the_task_within_seconds(emulator, prepare, error, expected):
    options = {"emulatorHost": emulator.address, "publishTimeout": "1s"} | (prepare(emulator) or {})
    start = time.monotonic()
    with pytest.raises(error, match=expected):
        sink(DATA, **options).publish([pa.record_batch({"data": ["x"] * 5_000})], "q/0", 0)
    assert time.monotonic() - start < 5


def test_what_the_driver_found_in_its_environment_holds_in_the_tasks(emulator, monkeypatch) -> None:
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", emulator.address)
    made = Sink(struct(DATA), False, SINK_OPTIONS.parse({"topicId": TOPIC}))
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", f"127.0.0.1:{unused.getsockname()[1]}")
        assert made.publish([pa.record_batch({"data": ["x"]})], "q/0", 0).messages == 1


def test_an_input_that_fails_stops_the_sending(emulator) -> None:
    def rows() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"data": ["x"] * 10})
        raise RuntimeError("the input failed")

    emulator.faults.delay("Publish", 30, times=100)
    start = time.monotonic()
    with pytest.raises(RuntimeError, match="the input failed"):
        sink(DATA, emulatorHost=emulator.address, lingerMs="0").publish(rows(), "q/0", 0)
    assert time.monotonic() - start < 5
    assert emulator.published(TOPIC) == 0
