"""The projection as Python sees it: schemas in, batches in and out, errors."""

import json

import pyarrow as pa
import pytest
from pyspark.sql import types as st

from solstice._core.arrow import to_arrow_schema
from solstice.errors import ConfigError, CorruptRowError, UnsupportedTypeError
from solstice.pubsub._project import Projection

SCHEMA = st.StructType(
    [
        st.StructField("id", st.LongType(), nullable=False),
        st.StructField("at", st.TimestampType()),
        st.StructField("tags", st.MapType(st.StringType(), st.ArrayType(st.ShortType(), containsNull=False))),
    ]
)
PAYLOADS = [b'{"id":1,"at":"2024-02-29T12:00:00Z","tags":{"a":[1,2]}}', b"{", b'{"id":"x"}', None]


def raw(payloads: list[bytes | None]) -> pa.RecordBatch:
    ids = pa.array([f"m{row}" for row in range(len(payloads))])
    return pa.record_batch({"message_id": ids, "data": pa.array(payloads, pa.binary())})


def test_a_spark_schema_gives_the_columns_that_spark_reads_all_of_them_nullable() -> None:
    projection = Projection("json", SCHEMA)
    expected = to_arrow_schema(SCHEMA)
    assert projection.payload_schema.names == expected.names
    assert projection.payload_schema.field("at") == expected.field("at")
    assert projection.payload_schema.field("id").nullable
    assert projection.payload_schema.field("tags").type.item_field.type.value_field.nullable
    batch, corrupt, _ = projection.project(raw(PAYLOADS))
    assert batch.schema == projection.payload_schema
    assert corrupt == [1, 2]
    assert batch["tags"].to_pylist() == [[("a", [1, 2])], None, None, None]
    assert batch["id"].to_pylist() == [1, None, None, None]


def test_metadata_columns_come_first_and_are_not_copied() -> None:
    batch, _, _ = Projection("json", SCHEMA, metadata=["message_id"]).project(given := raw(PAYLOADS))
    assert batch.schema.names == ["message_id", "id", "at", "tags"]
    kept = [buffer.address for buffer in batch["message_id"].buffers() if buffer]
    assert kept == [buffer.address for buffer in given["message_id"].buffers() if buffer]


def test_a_batch_without_rows_is_one_with_the_same_columns() -> None:
    projection = Projection("json", SCHEMA, metadata=["message_id"])
    batch, corrupt, _ = projection.project(raw(PAYLOADS).slice(0, 0))
    assert (batch.num_rows, corrupt) == (0, [])
    assert batch.schema == projection.project(raw(PAYLOADS)).batch.schema


def test_dropmalformed_drops_the_metadata_of_corrupt_rows_too() -> None:
    batch, corrupt, _ = Projection("json", SCHEMA, mode="dropMalformed", metadata=["message_id"]).project(raw(PAYLOADS))
    assert batch["message_id"].to_pylist() == ["m0", "m3"]
    assert corrupt == [1, 2]


@pytest.mark.parametrize("kind", [st.StringType(), st.BinaryType()])
def test_permissive_keeps_the_payloads_of_corrupt_rows(kind: st.DataType) -> None:
    schema = st.StructType([*SCHEMA.fields, st.StructField("_corrupt_record", kind)])
    batch, _, _ = Projection("json", schema).project(raw([*PAYLOADS, b"\xff"]))
    texts = isinstance(kind, st.StringType)
    expected = [None, "{", '{"id":"x"}', None, "\ufffd"] if texts else [None, b"{", b'{"id":"x"}', None, b"\xff"]
    assert batch["_corrupt_record"].to_pylist() == expected


def test_failfast_raises_an_error_that_names_message_and_reason() -> None:
    projection = Projection("json", SCHEMA, mode="FAILFAST")
    with pytest.raises(CorruptRowError, match=r"message m1: no JSON: no name at byte 1") as raised:
        projection.project(raw(PAYLOADS))
    assert "PERMISSIVE" in (raised.value.remedy or "")
    assert projection.project(raw(PAYLOADS[:1])).batch.num_rows == 1


def test_avro_datums_are_read_with_the_schema_of_their_writer() -> None:
    writer = {
        "type": "record",
        "name": "r",
        "fields": [{"name": "s", "type": "string"}, {"name": "id", "type": "long"}],
    }
    projection = Projection("avro", pa.schema([("id", pa.int64())]), avro_schema=json.dumps(writer))
    batch, corrupt, _ = projection.project(raw([b"\x04ab\x54", b"\x04ab"]))
    assert (batch["id"].to_pylist(), corrupt) == ([42, None], [1])


def test_a_type_that_no_payload_holds_is_refused_with_column_and_fix() -> None:
    with pytest.raises(UnsupportedTypeError, match=r'column "v": variant .* parse_json'):
        Projection("json", st.StructType().add("v", st.VariantType()))
    with pytest.raises(UnsupportedTypeError, match=r'column "i": a calendar interval'):
        Projection("json", st.StructType().add("i", st.CalendarIntervalType()))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"format": "xml"}, 'no payload format "xml"'),
        ({"format": "json", "mode": "LENIENT"}, 'no mode "LENIENT"'),
        ({"format": "avro"}, "needs the schema of the writer"),
        ({"format": "json", "avro_schema": "{}"}, "given for the format json"),
        ({"format": "avro", "avro_schema": "{}"}, "Avro schema cannot be used"),
        ({"format": "json", "metadata": ["message_id", "id"]}, "Leave id out of the metadata columns"),
    ],
)
def test_wrong_arguments_are_refused_with_the_fix(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Projection(schema=SCHEMA, **arguments)  # type: ignore[arg-type]


def test_what_is_no_arrow_data_is_refused_by_type() -> None:
    with pytest.raises(TypeError, match="got list"):
        Projection("json", SCHEMA).project([b"{}"])  # type: ignore[arg-type]


def test_every_type_of_the_mapping_that_a_payload_holds_gives_exactly_the_type_that_spark_reads() -> None:
    kinds = [
        st.NullType(),
        st.BooleanType(),
        st.ByteType(),
        st.ShortType(),
        st.IntegerType(),
        st.LongType(),
        st.FloatType(),
        st.DoubleType(),
        st.DecimalType(38, 18),
        st.StringType(),
        st.VarcharType(3),
        st.BinaryType(),
        st.DateType(),
        st.TimeType(6),
        st.TimestampType(),
        st.TimestampNTZType(),
        st.DayTimeIntervalType(),
        st.ArrayType(st.ArrayType(st.LongType())),
        st.MapType(st.StringType(), st.StructType([st.StructField("x", st.DateType())])),
        st.StructType([]),
    ]
    schema = st.StructType([st.StructField(f"c{place}", kind) for place, kind in enumerate(kinds)])
    assert Projection("json", schema).project(raw([b"{}"])).batch.schema == to_arrow_schema(schema)
