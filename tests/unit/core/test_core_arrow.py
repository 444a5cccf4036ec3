"""The type mapping against pyspark's own in Python. The integration test holds it against Spark's JVM, which decides.

Where pyspark's Python mapping and ours differ, ours follows the JVM. All differences:

- the precision of ``time``: Spark writes it to the field's metadata and reads it there; pyspark's mapping drops it;
- ``char`` and ``varchar``: the JVM writes strings; pyspark's mapping refuses them;
- calendar intervals: the JVM writes and reads month_day_nano_interval; pyspark's mapping refuses both ways;
- string_view, binary_view and list_view: the JVM reads them; pyspark's mapping refuses them;
- large_list_view and extension types (by their storage): ours reads them like their siblings; pyspark's refuses them;
- decimals of more than 38 digits or with a negative scale: the JVM refuses them; pyspark makes a type that no
  session accepts;
- a field of the null type that is not nullable (Spark's ``array()``): pyspark's mapping ends in an error of pyarrow;
- a struct with two fields of one name: the JVM refuses it; pyspark's mapping does so only when asked to;
- timestamp[ns]: the JVM reads it as a timestamp of nanoseconds, which pyspark's Python has no type for: here both
  mappings give the timestamp of microseconds.
"""

import datetime
import decimal
import inspect
import os
import subprocess
import sys

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkTypeError
from pyspark.sql import types as t
from pyspark.sql.pandas import types as pyspark_mapping

import arrow_schemas as a
from solstice._core.arrow import to_arrow_schema, to_arrow_type, to_spark_schema, to_spark_type
from solstice.errors import ConfigError, UnsupportedTypeError

# The first example imports and compiles things, which says nothing about the others.
without_deadline = settings(deadline=None)

ONLY_HERE = [t.CharType(3), t.VarcharType(7), t.CalendarIntervalType()]
ABSTRACT = {
    "DataType",
    "AtomicType",
    "NumericType",
    "IntegralType",
    "FractionalType",
    "DatetimeType",
    "AnyTimeType",
    "SpatialType",
    "AnsiIntervalType",
    "UserDefinedType",
    "StructField",  # a DataType by accident of its class
}
PARAMETRIC = {
    "DecimalType": t.DecimalType(5, 2),
    "CharType": t.CharType(3),
    "VarcharType": t.VarcharType(7),
    "GeometryType": t.GeometryType(4326),
    "GeographyType": t.GeographyType(4326),
    "ArrayType": t.ArrayType(t.ByteType()),
    "MapType": t.MapType(t.StringType(), t.ByteType()),
    "StructType": t.StructType([]),
}
UNSUPPORTED = {"YearMonthIntervalType"}

arrow_leaves = st.sampled_from(
    [
        pa.null(),
        pa.bool_(),
        pa.int8(),
        pa.int16(),
        pa.int32(),
        pa.int64(),
        pa.float32(),
        pa.float64(),
        pa.string(),
        pa.large_string(),
        pa.binary(),
        pa.large_binary(),
        pa.binary(4),
        pa.date32(),
        pa.decimal128(5, 2),
        pa.decimal256(38, 10),
        pa.decimal32(5, 2),
        pa.decimal64(15, 2),
        pa.dictionary(pa.int8(), pa.string()),
        *(pa.time64(unit) for unit in ("us", "ns")),
        *(pa.duration(unit) for unit in ("s", "ms", "us", "ns")),
        *(pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC", "Europe/Berlin")),
    ]
)
arrow_types = st.recursive(
    arrow_leaves,
    lambda inner: st.one_of(
        inner.map(pa.list_),
        inner.map(pa.large_list),
        inner.map(lambda one: pa.list_(one, 2)),
        inner.map(lambda one: pa.map_(pa.string(), one)),
        st.lists(inner, max_size=3).map(lambda many: pa.struct([(f"f{i}", one) for i, one in enumerate(many)])),
    ),
    max_leaves=5,
)
VIEWS_AND_EXTENSIONS = [
    (pa.string_view(), t.StringType()),
    (pa.binary_view(), t.BinaryType()),
    (pa.list_view(pa.int8()), t.ArrayType(t.ByteType())),
    (pa.large_list_view(pa.field("item", pa.int8(), nullable=False)), t.ArrayType(t.ByteType(), False)),
    (pa.month_day_nano_interval(), t.CalendarIntervalType()),
    (pa.json_(), t.StringType()),
    (pa.uuid(), t.BinaryType()),
]


@without_deadline
@given(a.schemas(t.StringType("UNICODE_CI"), a.PointUDT()))
def test_arrow_schemas_are_those_of_pyspark_but_for_the_precision_of_time(schema):
    theirs = pyspark_mapping.to_arrow_schema(schema, timezone="UTC")
    assert a.without_time_precision(a.describe(to_arrow_schema(schema))) == a.describe(theirs)


@without_deadline
@given(a.schemas())
def test_spark_schemas_are_those_of_pyspark_but_for_the_precision_of_time(schema):
    arrow = to_arrow_schema(schema)
    theirs = pyspark_mapping.from_arrow_schema(arrow)

    def forget_precision(leaf):
        return t.TimeType() if isinstance(leaf, t.TimeType) else leaf

    assert a.replaced(to_spark_schema(arrow), forget_precision) == theirs


@without_deadline
@given(a.schemas(t.CalendarIntervalType()))
def test_a_schema_comes_back_as_it_went(schema):
    assert to_spark_schema(to_arrow_schema(schema)) == schema


@without_deadline
@given(a.schemas(*(before for before, _ in a.CHANGED)))
def test_a_schema_comes_back_without_what_arrow_cannot_hold(schema):
    changes = {str(before): after for before, after in a.CHANGED}
    changes["StringType()"] = t.StringType()

    def forget(leaf):
        return changes.get(str(leaf), leaf)

    assert to_spark_schema(to_arrow_schema(schema)) == a.replaced(schema, forget)


@without_deadline
@given(arrow_types)
def test_any_arrow_type_that_pyspark_reads_is_read_alike(arrow_type):
    assert to_spark_type(arrow_type) == pyspark_mapping.from_arrow_type(arrow_type)


@without_deadline
@given(arrow_types)
def test_the_type_of_an_answer_is_one_that_arrow_can_cast_the_data_to(arrow_type):
    canonical = to_arrow_type(to_spark_type(arrow_type))
    assert to_arrow_type(to_spark_type(canonical)) == canonical
    # No rows: pyarrow itself fails to cast a null struct over a dictionary without entries ("Index 0 out of bounds").
    assert pa.array([], arrow_type).cast(canonical).type == canonical


@pytest.mark.parametrize(
    ("arrow_type", "values"),
    [
        (pa.large_string(), ["x", None]),
        (pa.string_view(), ["x", None]),
        (pa.dictionary(pa.int8(), pa.string()), ["x", "x", None]),
        (pa.struct([("d", pa.dictionary(pa.int8(), pa.string()))]), [{"d": "x"}, {"d": None}, None]),
        (pa.large_list(pa.large_binary()), [[b"x", None], None]),
        (pa.list_(pa.int8(), 2), [[1, 2], [3, None]]),
        (pa.list_view(pa.int16()), [[1], [], None]),
        (pa.decimal256(38, 10), [decimal.Decimal("1.5000000000"), None]),
        (pa.timestamp("s", "Europe/Berlin"), [datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.UTC), None]),
        (pa.duration("ms"), [datetime.timedelta(milliseconds=1), None]),
        (pa.time64("us"), [datetime.time(12, 30, 15, 123456), None]),
        (pa.map_(pa.large_string(), pa.int8()), [[("k", 1)], None]),
    ],
    ids=str,
)
def test_data_that_is_cast_to_the_type_of_the_answer_keeps_its_values(arrow_type, values):
    data = pa.array(values, arrow_type)
    assert data.cast(to_arrow_type(to_spark_type(arrow_type))).to_pylist() == values


@pytest.mark.parametrize(("arrow_type", "spark_type"), VIEWS_AND_EXTENSIONS, ids=lambda one: str(one))
def test_arrow_types_that_pyspark_refuses_and_spark_reads(arrow_type, spark_type):
    assert to_spark_type(arrow_type) == spark_type
    with pytest.raises(PySparkTypeError):
        pyspark_mapping.from_arrow_type(arrow_type)


@pytest.mark.parametrize("spark_type", ONLY_HERE, ids=str)
def test_spark_types_that_pyspark_refuses_and_spark_writes(spark_type):
    assert to_arrow_type(spark_type) is not None
    with pytest.raises(PySparkTypeError):
        pyspark_mapping.to_arrow_type(spark_type)


def test_every_type_of_pyspark_is_mapped_or_refused_with_a_reason():
    classes = {
        name: value
        for name, value in vars(t).items()
        if inspect.isclass(value) and issubclass(value, t.DataType) and name not in ABSTRACT
    }
    refused = set()
    for name, cls in classes.items():
        try:
            to_arrow_type(PARAMETRIC.get(name) or cls())
        except UnsupportedTypeError:
            refused.add(name)
    assert refused == UNSUPPORTED


def test_byte_and_short_keep_their_width():
    assert to_arrow_type(t.ByteType()) == pa.int8()
    assert to_arrow_type(t.ShortType()) == pa.int16()


def test_the_precision_of_a_time_survives_at_every_depth():
    time = t.TimeType(3)
    schema = t.StructType(
        [
            t.StructField("flat", time),
            t.StructField("array", t.ArrayType(time)),
            t.StructField("map", t.MapType(time, time)),
            t.StructField("struct", t.StructType([t.StructField("inner", time)])),
        ]
    )
    assert to_spark_schema(to_arrow_schema(schema)) == schema


def test_what_has_the_null_type_is_nullable_for_arrow_even_where_spark_says_it_is_not():
    assert to_arrow_type(t.ArrayType(t.NullType(), containsNull=False)).value_field.nullable
    assert to_arrow_schema(t.StructType([t.StructField("a", t.NullType(), nullable=False)])).field("a").nullable


def test_metadata_that_is_not_sparks_is_left_out():
    field = pa.field("a", pa.int8(), metadata={b"PARQUET:field_id": b"1"})
    assert to_spark_schema(pa.schema([field], metadata={b"pandas": b"{}"}))["a"].metadata == {}


def test_a_struct_that_only_looks_like_a_variant_stays_a_struct():
    plain = pa.struct([pa.field("value", pa.binary()), pa.field("metadata", pa.binary())])
    assert isinstance(to_spark_type(plain), t.StructType)
    spatial = pa.struct([pa.field("srid", pa.int32()), pa.field("wkb", pa.binary())])
    assert isinstance(to_spark_type(spatial), t.StructType)


def test_a_type_that_arrow_cannot_hold_names_itself_its_column_and_the_way_out():
    months = t.YearMonthIntervalType()
    inner = t.StructType([t.StructField("b", t.MapType(t.StringType(), months))])
    schema = t.StructType([t.StructField("a", t.ArrayType(inner))])
    with pytest.raises(UnsupportedTypeError) as caught:
        to_arrow_schema(schema)
    assert caught.value.column == "a.element.b.value"
    assert caught.value.value == "interval year to month"
    assert str(caught.value).startswith("column 'a.element.b.value': the Spark type 'interval year to month' cannot")
    assert "Cast it in Spark" in caught.value.remedy
    assert isinstance(caught.value, ConfigError)


def test_a_bare_type_that_arrow_cannot_hold_names_no_column():
    with pytest.raises(UnsupportedTypeError, match=r"^the Spark type") as caught:
        to_arrow_type(t.YearMonthIntervalType())
    assert caught.value.column is None


def test_two_fields_of_one_name_in_a_struct_are_refused():
    twice = t.StructType([t.StructField("x", t.ByteType()), t.StructField("x", t.ByteType())])
    with pytest.raises(UnsupportedTypeError, match="column 's': the struct has more than one field named 'x'"):
        to_arrow_schema(t.StructType([t.StructField("s", twice)]))


def test_two_columns_of_one_name_are_left_to_spark_which_allows_them():
    twice = t.StructType([t.StructField("x", t.ByteType()), t.StructField("x", t.ByteType())])
    assert to_arrow_schema(twice).names == ["x", "x"]


@pytest.mark.parametrize(
    ("arrow_type", "remedy"),
    [
        (pa.uint8(), "int16"),
        (pa.uint16(), "int32"),
        (pa.uint32(), "int64"),
        (pa.uint64(), "decimal128"),
        (pa.float16(), "float32"),
        (pa.date64(), "date32"),
        (pa.time32("s"), "time64"),
        (pa.time32("ms"), "time64"),
        (pa.decimal256(40, 2), "decimal128"),
        (pa.decimal128(5, -2), "decimal128"),
        (pa.run_end_encoded(pa.int32(), pa.string()), "string"),
        (pa.dense_union([pa.field("a", pa.int8())]), "string"),
    ],
    ids=str,
)
def test_an_arrow_type_that_spark_lacks_names_its_column_and_a_cast(arrow_type, remedy):
    schema = pa.schema([("a", pa.list_(pa.struct([("b", arrow_type)])))])
    with pytest.raises(UnsupportedTypeError) as caught:
        to_spark_schema(schema)
    assert caught.value.column == "a.element.b"
    assert str(arrow_type) in str(caught.value)
    assert remedy in caught.value.remedy


@pytest.mark.parametrize(
    ("arrow_type", "column"),
    [
        (pa.map_(pa.uint8(), pa.string()), "a.key"),
        (pa.map_(pa.string(), pa.uint8()), "a.value"),
        (pa.large_list(pa.uint8()), "a.element"),
        (pa.dictionary(pa.int8(), pa.uint8()), "a"),
    ],
    ids=str,
)
def test_the_path_to_an_arrow_type_that_spark_lacks_goes_through_maps_and_lists(arrow_type, column):
    with pytest.raises(UnsupportedTypeError) as caught:
        to_spark_schema(pa.schema([("a", arrow_type)]))
    assert caught.value.column == column


@pytest.mark.parametrize("package", ["pyarrow", "pyspark"])
def test_a_missing_package_names_the_extra(package):
    code = f"import sys; sys.modules[{package!r}] = None\n"
    code += "from solstice._core.arrow import to_spark_schema, to_arrow_schema\n"
    code += "to_arrow_schema(None)" if package == "pyarrow" else "to_spark_schema([])"
    environ = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environ, timeout=60)
    assert f"MissingExtraError: the package '{package}' is not installed." in result.stderr
    assert "solstice-spark[spark]" in result.stderr
