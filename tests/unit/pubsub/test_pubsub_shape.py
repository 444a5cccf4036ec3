"""The shape of rows: what options and schema ask for, what is decoded for it, what comes out of raw batches."""

import json
import pickle
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as st
from pyspark.sql.pandas.types import to_arrow_schema as sparks_arrow_schema
from pyspark.sql.streaming.datasource import ReadMaxRows

from solstice.errors import ConfigError, CorruptRowError, NotFoundError, PubSubError, UnsupportedTypeError
from solstice.pubsub import publish, pull
from solstice.pubsub._options import parse_source
from solstice.pubsub._reader import PubSubStreamReader
from solstice.pubsub._shape import RAW_SCHEMA, Shape
from solstice.testing import PubSubEmulator

AT = datetime(2024, 2, 29, 12, tzinfo=UTC)
ATTRIBUTES = [("country", "PL"), ("googclient_schemaencoding", "JSON")]
PAYLOADS = [b'{"id":1,"name":"a"}', b"{", b'{"id":"x","name":"c"}', b'{"id":4}']
USER = st.StructType([st.StructField("id", st.LongType()), st.StructField("name", st.StringType())])
PART = {"epoch": "life", "seq": "7", "part": "0"}


def shape(schema: st.StructType | None = None, **options: str) -> Shape:
    given = {"subscriptionId": "projects/p/subscriptions/s", "emulatorHost": "127.0.0.1:1"}
    return Shape.of(parse_source({**given, **options}), schema)


def with_fields(*fields: tuple[str, st.DataType]) -> st.StructType:
    return st.StructType([*USER.fields, *(st.StructField(name, kind) for name, kind in fields)])


def raw(selected: Shape, payloads: list[bytes] = PAYLOADS, first: int = 0) -> pa.RecordBatch:
    """A batch as the agent would decode it for the shape, in the order of its selection."""
    count = len(payloads)
    everything: dict[str, Any] = {
        "message_id": pa.array([f"m{first + row}" for row in range(count)]),
        "publish_time": pa.array([AT] * count, pa.timestamp("us", tz="UTC")),
        "data": pa.array(payloads, pa.binary()),
        "attributes": pa.array([ATTRIBUTES] * count, pa.map_(pa.string(), pa.string())),
        "ordering_key": pa.array(["k"] * count),
        "delivery_attempt": pa.array([None] * count, pa.int32()),
    }
    selection = selected.selection()
    columns = {name: everything[name] for name in selection.columns}
    named = {name: pa.array([dict(ATTRIBUTES).get(name)] * count, pa.string()) for name in selection.attribute_columns}
    return pa.record_batch(columns | named)


def rows(selected: Shape, payloads: list[bytes] = PAYLOADS) -> list[dict[str, Any]]:
    """What a worker yields, checked as Spark checks it."""
    selected = pickle.loads(pickle.dumps(selected))
    yielded = list(selected.rows([raw(selected, payloads)], PART))
    for batch in yielded:
        assert sparks_arrow_schema(selected.schema, timezone="UTC").equals(batch.schema)
    return [row for batch in yielded for row in batch.to_pylist()]


def test_without_options_the_rows_are_the_raw_messages() -> None:
    assert shape() == Shape()
    assert shape().schema == RAW_SCHEMA
    assert shape(RAW_SCHEMA) == Shape()
    assert [row["data"] for row in rows(shape())] == PAYLOADS


def test_columns_and_attributes_are_chosen_and_nothing_else_is_decoded() -> None:
    chosen = shape(columns="data,message_id", attributeColumns="country,city")
    assert chosen.schema.simpleString() == "struct<data:binary,message_id:string,country:string,city:string>"
    assert chosen.selection().columns == ("data", "message_id")
    assert chosen.selection().attribute_columns == ("country", "city")
    assert rows(chosen)[0] == {"data": PAYLOADS[0], "message_id": "m0", "country": "PL", "city": None}


def test_what_is_always_decoded_is_not_shown() -> None:
    chosen = shape(columns="data")
    assert chosen.selection(always=("message_id", "data")).columns == ("data", "message_id")
    batch = raw(shape(columns="message_id,data"))
    assert [batch.schema.names for batch in chosen.rows([batch], PART)] == [["data"]]


def test_a_batch_that_was_kept_before_the_query_asked_for_a_column_says_so() -> None:
    kept = raw(shape(columns="data"))
    with pytest.raises(ConfigError, match=r"without the column 'country'.*Run the query as it was"):
        list(shape(columns="data", attributeColumns="country").rows([kept], PART))


def test_payloads_become_columns_next_to_chosen_metadata_in_the_order_of_the_schema() -> None:
    schema = st.StructType(
        [
            st.StructField("publish_time", st.TimestampType()),
            *USER.fields,
            st.StructField("country", st.StringType()),
            st.StructField("_corrupt_record", st.BinaryType()),
            st.StructField("message_id", st.StringType()),
        ]
    )
    chosen = shape(schema, format="json", columns="message_id,publish_time", attributeColumns="country")
    assert chosen.selection().columns == ("message_id", "publish_time", "data")
    good, broken, partial, short = rows(chosen)
    common = {"publish_time": AT, "country": "PL", "_corrupt_record": None}
    assert good == {**common, "id": 1, "name": "a", "message_id": "m0"}
    assert broken == {**common, "id": None, "name": None, "_corrupt_record": b"{", "message_id": "m1"}
    assert partial == {**common, "id": None, "name": "c", "_corrupt_record": PAYLOADS[2], "message_id": "m2"}
    assert short == {**common, "id": 4, "name": None, "message_id": "m3"}
    assert list(good) == schema.names


def test_the_payload_as_it_came_can_stand_next_to_its_columns() -> None:
    chosen = shape(with_fields(("data", st.BinaryType())), format="json", columns="data")
    assert [row["data"] for row in rows(chosen)] == PAYLOADS


def test_dropmalformed_leaves_rows_out_and_a_batch_of_nothing_else_is_not_sent() -> None:
    chosen = shape(USER, format="json", mode="DROPMALFORMED")
    assert [row["id"] for row in rows(chosen)] == [1, 4]
    assert rows(chosen, [b"{"]) == []


def test_failfast_names_the_message_and_the_fix() -> None:
    chosen = shape(USER, format="json", mode="FAILFAST")
    assert "message_id" in chosen.selection().columns
    with pytest.raises(CorruptRowError, match=r"message m1: no JSON.*PERMISSIVE or DROPMALFORMED"):
        rows(chosen)


def test_avro_is_read_with_the_schema_of_its_writer() -> None:
    writer = {"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"}]}
    chosen = shape(USER, format="avro", avroSchema=json.dumps(writer))
    assert rows(chosen, [b"\x54"]) == [{"id": 42, "name": None}]


EVERY_TYPE = {
    "true": st.BooleanType(),
    "1": st.ByteType(),
    "2": st.ShortType(),
    "3": st.IntegerType(),
    "4": st.LongType(),
    "1.5": st.FloatType(),
    "2.5": st.DoubleType(),
    "12.34": st.DecimalType(9, 2),
    '"s"': st.StringType(),
    '"AP8="': st.BinaryType(),
    '"2024-02-29"': st.DateType(),
    '"2024-02-29T12:00:00Z"': st.TimestampType(),
    '"2024-02-29T12:00:00"': st.TimestampNTZType(),
    '"12:34:56.789"': st.TimeType(3),
    '"1 02:03:04.5"': st.DayTimeIntervalType(),
    "[1,null]": st.ArrayType(st.LongType()),
    '{"k":{"x":1}}': st.MapType(st.StringType(), st.StructType([st.StructField("x", st.IntegerType())])),
    '{"a":[{"b":"c"}]}': st.StructType(
        [st.StructField("a", st.ArrayType(st.StructType([st.StructField("b", st.StringType())])))]
    ),
}


def test_every_type_comes_out_as_spark_expects_it() -> None:
    schema = st.StructType([st.StructField(f"c{i}", kind) for i, kind in enumerate(EVERY_TYPE.values())])
    payload = "{" + ",".join(f'"c{i}":{value}' for i, value in enumerate(EVERY_TYPE)) + "}"
    [row] = rows(shape(schema, format="json", mode="FAILFAST"), [payload.encode()])
    assert None not in row.values()
    [nothing] = rows(shape(schema, format="json", mode="FAILFAST"), [b"{}"])
    assert set(nothing.values()) == {None}


@pytest.mark.parametrize(
    ("schema", "options", "says"),
    [
        (USER, {}, r"the rows of the source are .*Set the option format to json or avro"),
        (None, {"format": "json"}, r"needs to know the columns.*\.schema\("),
        (None, {"columns": "message_id,datum"}, r"'datum'.*message_id, publish_time.*attributeColumns"),
        (None, {"attributeColumns": "data"}, r"'data', which is reserved.*the column attributes"),
        (USER, {"format": "json", "attributeColumns": "Ack_Id"}, r"'Ack_Id', which is reserved"),
        (with_fields(("id", st.StringType())), {"format": "json"}, r"more than one column 'id'"),
        (
            with_fields(("publish_time", st.TimestampType())),
            {"format": "json"},
            r"'publish_time'.*in the option columns",
        ),
        (with_fields(("ack_id", st.StringType())), {"format": "json"}, r"'ack_id'.*reserved.*Rename the field"),
        (with_fields(("Data", st.StringType())), {"format": "json"}, r"'Data'.*reserved"),
        (
            USER,
            {"format": "json", "columns": "message_id"},
            r"message_id, which is not in the schema.*`message_id` string",
        ),
        (
            with_fields(("publish_time", st.StringType())),
            {"format": "json", "columns": "publish_time"},
            r"publish_time, which is string in the schema.*timestamp",
        ),
        (
            with_fields(("country", st.LongType())),
            {"format": "json", "attributeColumns": "country"},
            r"country.*string",
        ),
        (
            st.StructType([st.StructField("l", st.ArrayType(st.LongType(), containsNull=False))]),
            {"format": "json"},
            r"NOT NULL in 'l' \(array<bigint>\)",
        ),
        (with_fields(("_corrupt_record", st.LongType())), {"format": "json"}, r"_corrupt_record.*STRING or BINARY"),
        (USER, {"format": "avro", "avroSchema": "{"}, r"[Ss]chema"),
    ],
)
def test_a_schema_that_does_not_fit_the_options_says_the_fix(
    schema: st.StructType | None, options: dict[str, str], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        shape(schema, **options)


def test_a_type_that_payloads_cannot_have_is_refused_before_anything_runs() -> None:
    with pytest.raises(UnsupportedTypeError, match="variant"):
        shape(with_fields(("v", st.VariantType())), format="json")


@pytest.fixture
def emulator() -> Iterator[PubSubEmulator]:
    with PubSubEmulator() as emulator:
        emulator.create_topic("projects/p/topics/dead")
        emulator.create_subscription(
            "projects/p/subscriptions/dead", "projects/p/topics/dead", enable_message_ordering=True
        )
        yield emulator


def test_the_agent_serves_what_the_shape_selects_and_nothing_else(emulator) -> None:
    publish("projects/p/topics/dead", pa.table({"data": ['{"id":1}']}), emulator_host=emulator.address)
    options = {"format": "json", "attributeColumns": "country", "emulatorHost": emulator.address}
    given = {"subscriptionId": "projects/p/subscriptions/dead", **options}
    values = parse_source(given)
    reader = PubSubStreamReader(values, Shape.of(values, with_fields(("country", st.StringType()))))
    try:
        start = reader.initialOffset()
        end, deadline = start, time.monotonic() + 20
        while end == start:
            assert time.monotonic() < deadline, "nothing came"
            end = reader.latestOffset(start, ReadMaxRows(10))
        [part] = reader.partitions(start, end)
        assert part.open().schema.names == ["data", "country"]
        assert [batch.to_pylist() for batch in reader.read(part)] == [[{"id": 1, "name": None, "country": None}]]
    finally:
        reader.stop()


def dead_letters(emulator: PubSubEmulator, count: int) -> list[dict[str, Any]]:
    """So many as there have to be; no more are there."""
    letters: list[dict[str, Any]] = []
    with pull("projects/p/subscriptions/dead", emulator_host=emulator.address, idle_s=10) as puller:
        while len(letters) < count:
            letters += next(puller).rows.to_pylist()
    assert emulator.published("projects/p/topics/dead") == len(letters) == count
    return letters


@pytest.mark.parametrize(("mode", "kept"), [("PERMISSIVE", [1, None, None, 4] * 2), ("DROPMALFORMED", [1, 4] * 2)])
def test_messages_that_do_not_fit_are_published_with_part_row_and_reason(emulator, mode, kept) -> None:
    options = {"format": "json", "mode": mode, "deadLetterTopic": "dead", "projectId": "p"}
    chosen = pickle.loads(pickle.dumps(shape(USER, emulatorHost=emulator.address, **options)))
    yielded = list(chosen.rows([raw(chosen), raw(chosen, first=4)], PART))
    assert [value for batch in yielded for value in batch["id"].to_pylist()] == kept
    assert all(batch.schema.names == ["id", "name"] for batch in yielded)
    assert emulator.published("projects/p/topics/dead") == 4  # when the part has ended, not some time later
    letters = sorted(dead_letters(emulator, 4), key=lambda letter: dict(letter["attributes"])["solstice_row"])
    assert [letter["data"] for letter in letters] == [PAYLOADS[1], PAYLOADS[2]] * 2
    assert {letter["ordering_key"] for letter in letters} == {"k"}
    attributes = dict(letters[3]["attributes"])
    assert attributes.pop("solstice_reason").startswith('field "id"')
    assert attributes == {
        "country": "PL",
        "solstice_epoch": "life",
        "solstice_seq": "7",
        "solstice_part": "0",
        "solstice_row": "6",
        "solstice_message_id": "m6",
    }


def test_a_dead_letter_that_cannot_be_published_fails_the_part(emulator) -> None:
    options = {"format": "json", "deadLetterTopic": "nobody", "projectId": "p", "emulatorHost": emulator.address}
    chosen = shape(USER, **options)
    with pytest.raises(PubSubError, match="nobody"):
        list(chosen.rows([raw(chosen)], PART))
    assert [batch.num_rows for batch in chosen.rows([raw(chosen, PAYLOADS[:1])], PART)] == [1]


def test_a_dead_letter_has_room_for_its_origin_beside_any_attributes(emulator) -> None:
    chosen = shape(USER, format="json", deadLetterTopic="projects/p/topics/dead", emulatorHost=emulator.address)
    full = raw(chosen, [b"{" + b"\xff" * 2_000])
    many = pa.array([[(f"a{number}", "v") for number in range(100)]], pa.map_(pa.string(), pa.string()))
    full = full.set_column(full.schema.get_field_index("attributes"), "attributes", many)
    list(chosen.rows([full], PART))
    [letter] = dead_letters(emulator, 1)
    assert len(letter["attributes"]) == 100
    assert dict(letter["attributes"])["solstice_row"] == "0"


LARGEST = 10_000_000 - 100  # what a publisher could just send


@pytest.mark.parametrize(
    ("length", "pairs", "kept", "truncated"),
    [
        (9_000_000, [("k", "v" * 1_000)], [("k", "v" * 1_000)], None),
        (LARGEST - 60_000, [(f"k{number}", "v" * 1_000) for number in range(60)], [], None),
        (LARGEST, [("k", "v")], [], str(LARGEST)),
    ],
)
def test_a_dead_letter_of_any_size_can_be_published(emulator, length, pairs, kept, truncated) -> None:
    chosen = shape(USER, format="json", deadLetterTopic="projects/p/topics/dead", emulatorHost=emulator.address)
    payload = b"{" + b"x" * (length - 1)
    large = raw(chosen, [payload])
    given = pa.array([pairs], pa.map_(pa.string(), pa.string()))
    large = large.set_column(large.schema.get_field_index("attributes"), "attributes", given)
    list(chosen.rows([large], PART))
    [letter] = dead_letters(emulator, 1)
    attributes = dict(letter["attributes"])
    assert [pair for pair in letter["attributes"] if not pair[0].startswith("solstice_")] == kept
    assert attributes.get("solstice_truncated") == truncated
    assert payload.startswith(letter["data"])
    assert (len(letter["data"]) == length) == (truncated is None)
    assert len(letter["data"]) > 9_900_000 or length == 9_000_000


@contextmanager
def reading_with(emulator: PubSubEmulator, dead_letter_topic: str) -> Iterator[Callable[[], Any]]:
    """Asks once for a batch of the subscription ``dead``."""
    given = {"subscriptionId": "projects/p/subscriptions/dead", "emulatorHost": emulator.address, "format": "json"}
    values = parse_source(given | {"deadLetterTopic": dead_letter_topic})
    reader = PubSubStreamReader(values, Shape.of(values, USER))
    try:
        yield lambda: reader.latestOffset(reader.initialOffset(), ReadMaxRows(10))
    finally:
        reader.stop()


NOTHING = {"epoch": "", "seq": 0}


def test_a_dead_letter_topic_that_is_not_there_fails_the_query_at_its_start(emulator) -> None:
    with reading_with(emulator, "projects/p/topics/nobody") as ask:
        with pytest.raises(NotFoundError, match=r"deadLetterTopic is projects/p/topics/nobody.*topics create"):
            ask()
        # Who may publish and not read finds out with the first letter.
        emulator.deny("pubsub.topics.get")
        assert ask() == NOTHING


def test_a_dead_letter_topic_that_is_the_subscriptions_own_is_refused(emulator) -> None:
    with reading_with(emulator, "projects/p/topics/dead") as ask:
        with pytest.raises(ConfigError, match=r"topic of the subscription itself.*Give a topic of its own"):
            ask()
        emulator.deny("pubsub.subscriptions.get")  # then nobody can tell
        assert ask() == NOTHING
