"""The type mapping against Spark itself: the JVM's mapping by property, and what crosses in real jobs.

Where ours and the JVM's differ, and why:

- ``interval year to month``: the JVM writes Arrow's month interval, which pyarrow has no arrays for: ours refuses it;
- a field of the null type that is not nullable: pyarrow cannot make one, ours is nullable;
- the zone of a timestamp: mapInArrow labels it with the session's zone, ours and toArrow with UTC. The numbers are
  the same instants either way;
- timestamp[ns] and other units of time, large and fixed-size lists, fixed-size binary, decimals of 32 and 64 bits: ours
  reads them like pyspark's Python, so that the data can be cast; the JVM reads timestamp[ns] with nanoseconds and
  refuses the others;
- the order of the entries in a field's metadata: the JVM's is that of a hash map.

``DataFrame.toArrow`` casts to pyspark's Python mapping, whose own differences the unit test of the mapping lists.
"""

import datetime
import decimal
import json

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import types as t

import arrow_schemas as a
from solstice._core.arrow import to_arrow_schema, to_arrow_type, to_spark_schema, to_spark_type

pytestmark = pytest.mark.spark

without_job = settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])
# Each example costs a job, so a failing one is shown as it is: making it smaller would run hundreds of jobs.
with_job = settings(
    deadline=None,
    max_examples=4,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

# Not the user-defined type: its class exists in Python only.
STRINGS_AND_INTERVALS = [before for before, _ in a.CHANGED if not isinstance(before, t.UserDefinedType)]

SAMPLES = {
    t.NullType: None,
    t.BooleanType: True,
    t.ByteType: -128,
    t.ShortType: -32768,
    t.IntegerType: 2**31 - 1,
    t.LongType: 2**63 - 1,
    t.FloatType: 0.5,
    t.DoubleType: 0.1,
    t.StringType: "tekst ☃",
    t.BinaryType: b"\x00\xff",
    t.DateType: datetime.date(2024, 2, 29),
    t.TimestampType: datetime.datetime(2024, 2, 29, 12, 30, 15, 123456),
    t.TimestampNTZType: datetime.datetime(2024, 2, 29, 12, 30, 15, 123456),
    t.TimeType: datetime.time(12, 30, 15),
    t.DayTimeIntervalType: datetime.timedelta(days=1, hours=2),
    t.VariantType: t.VariantVal.parseJson('{"a": [1, "x"]}'),
}
# Spark takes these from Python rows; the others are made by SQL below.
ROW_TYPES = [one for one in a.KEPT if type(one) in SAMPLES]
row_leaves = st.one_of(st.sampled_from(ROW_TYPES), a.decimals, st.integers(0, 6).map(t.TimeType))
# mapInArrow itself fails on columns with a dot or a backtick in the name: it looks them up as expressions.
column_names = a.texts.filter(lambda name: not set(name) & set(".`*"))  # a column called * is all columns
row_schemas = a.structs(a.types(row_leaves), min_size=12, max_size=24, names=column_names)

SQL_COLUMNS = """
    make_interval(1, 2, 3, 4) AS calendar_interval,
    array(make_interval(1)) AS calendar_intervals,
    array() AS no_elements,
    CAST('x' AS STRING COLLATE UNICODE_CI) AS collated,
    time'12:30:15.5' AS time_of_day,
    INTERVAL '5' HOUR AS hours,
    map('k', parse_json('[1]')) AS variants,
    CAST(NULL AS VOID) AS nothing,
    named_struct('s', CAST(1 AS SMALLINT), 'b', CAST(1 AS TINYINT)) AS small
"""


def sample(spark_type):
    """One value of the type, without nulls where the type allows none."""
    match spark_type:
        case t.DecimalType():
            return decimal.Decimal((0, (1,) * spark_type.precision, -spark_type.scale))
        case t.ArrayType():
            return [sample(spark_type.elementType)]
        case t.MapType():
            return {sample(spark_type.keyType): sample(spark_type.valueType)}
        case t.StructType():
            return tuple(sample(field.dataType) for field in spark_type)
    return SAMPLES[type(spark_type)]


def jvm_arrow_schema(spark, schema):
    """What Spark's JVM writes for the schema, read from its IPC form."""
    parsed = spark._jsparkSession.parseDataType(schema.json())
    utils = spark._jvm.org.apache.spark.sql.util.ArrowUtils
    # After the zone: refuse duplicate names, no large types, no structs in place of intervals and nanoseconds.
    written = utils.toArrowSchema(parsed, "UTC", True, False, False)
    return pa.ipc.read_schema(pa.py_buffer(bytes(written.serializeAsMessage())))


def jvm_spark_schema(spark, schema):
    """What Spark's JVM reads from the schema in its IPC form."""
    jvm = spark._jvm
    message = jvm.java.nio.ByteBuffer.wrap(bytearray(schema.serialize().to_pybytes()))
    arrow = jvm.org.apache.arrow.vector.types.pojo.Schema.deserializeMessage(message)
    return t.StructType.fromJson(json.loads(jvm.org.apache.spark.sql.util.ArrowUtils.fromArrowSchema(arrow).json()))


def seen_by_map_in_arrow(df):
    """The schema of the batches that a mapInArrow function gets."""

    def report(batches):
        for batch in batches:
            yield pa.record_batch({"schema": pa.array([batch.schema.serialize().to_pybytes()], pa.binary())})

    rows = df.mapInArrow(report, "schema binary").collect()
    assert rows
    return pa.ipc.read_schema(pa.py_buffer(bytes(rows[0].schema)))


@without_job
@given(
    schema=a.schemas(t.CalendarIntervalType(), *(before for before, _ in a.CHANGED if type(before) is not a.PointUDT))
)
def test_arrow_schemas_are_those_of_the_jvm(spark, schema):
    assert a.describe(to_arrow_schema(schema)) == a.describe(jvm_arrow_schema(spark, schema))


@pytest.fixture(scope="module")
def utc(spark):
    """The session, with its zone set to the one that Arrow timestamps have here."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    yield spark
    spark.conf.set("spark.sql.session.timeZone", before)


@without_job
@given(schema=a.schemas(t.CalendarIntervalType()))
def test_spark_schemas_are_those_of_the_jvm(spark, schema):
    arrow = to_arrow_schema(schema)
    assert to_spark_schema(arrow) == jvm_spark_schema(spark, arrow)


def test_a_metadata_entry_is_written_byte_for_byte_as_the_jvm_writes_it(spark):
    metadata = {"zażółć": {"list": ['"☃"', "\n"]}}
    schema = t.StructType([t.StructField("c", t.ByteType(), True, metadata)])
    assert to_arrow_schema(schema).field("c").metadata == jvm_arrow_schema(spark, schema).field("c").metadata


def test_views_and_months_are_read_like_the_jvm_reads_them(spark):
    months = jvm_arrow_schema(spark, t.StructType([t.StructField("m", t.YearMonthIntervalType())])).field("m").type
    fields = [pa.string_view(), pa.binary_view(), pa.list_view(pa.int8()), pa.large_string(), pa.large_binary(), months]
    schema = pa.schema([pa.field(f"c{number}", one) for number, one in enumerate(fields)])
    assert to_spark_schema(schema) == jvm_spark_schema(spark, schema)


@with_job
@given(schema=row_schemas)
def test_jobs_see_the_arrow_schema_that_is_foretold(utc, schema):
    df = utc.createDataFrame([sample(schema)], schema)
    assert df.schema == schema
    foretold = a.describe(to_arrow_schema(schema))
    assert a.describe(seen_by_map_in_arrow(df)) == foretold
    assert a.describe(df.toArrow().schema) == a.without_time_precision(foretold)


@with_job
@given(schema=row_schemas)
def test_arrow_data_of_the_foretold_schema_goes_through_spark_unchanged(utc, schema):
    df = utc.createDataFrame([sample(schema)], schema)
    through = df.mapInArrow(lambda batches: batches, schema)
    assert through.schema == schema
    table = through.toArrow()
    assert table.cast(to_arrow_schema(schema)).equals(df.toArrow().cast(to_arrow_schema(schema)))
    assert table.num_rows == 1


def test_types_that_only_sql_can_make_arrive_as_foretold(utc):
    df = utc.sql(f"SELECT {SQL_COLUMNS}")
    foretold = to_arrow_schema(df.schema)
    seen = seen_by_map_in_arrow(df)
    expected = a.describe(foretold)
    # The one exception: the elements of array(), which pyarrow reads but cannot make.
    index = foretold.names.index("no_elements")
    assert not seen.field(index).type.value_field.nullable
    assert a.describe(seen)[:index] + a.describe(seen)[index + 1 :] == expected[:index] + expected[index + 1 :]
    assert foretold.field("calendar_interval").type == pa.month_day_nano_interval()
    assert foretold.field("small").type == pa.struct(
        [pa.field("s", pa.int16(), nullable=False), pa.field("b", pa.int8(), nullable=False)]
    )


def test_spark_refuses_what_is_refused_here(spark):
    df = spark.sql("SELECT INTERVAL '1-2' YEAR TO MONTH AS m")
    with pytest.raises(ValueError, match="column 'm'"):
        to_arrow_schema(df.schema)
    with pytest.raises(Exception, match="UNSUPPORTED_DATA_TYPE_FOR_ARROW_CONVERSION"):
        df.toArrow()
    months = df.selectExpr("CAST(CAST(m AS INTERVAL MONTH) AS INT) AS m")  # what the remedy says
    assert months.toArrow().to_pylist() == [{"m": 14}]


def test_a_spark_table_from_arrow_has_the_schema_that_is_foretold(spark):
    arrow = pa.schema(
        [
            pa.field("small", pa.int16(), nullable=False),
            pa.field("large", pa.large_string()),
            pa.field("words", pa.dictionary(pa.int8(), pa.string())),
            pa.field("when", pa.timestamp("ns", "UTC")),
            pa.field("wall", pa.timestamp("ms")),
            pa.field("list", pa.large_list(pa.int8())),
        ]
    )
    wall = datetime.datetime(2024, 2, 29, 12)
    row = {"small": 1, "large": "x", "words": "y", "when": wall, "wall": wall, "list": [1, None]}
    table = pa.Table.from_pylist([row], schema=arrow)
    # With the schema: without one, Spark reads a timestamp without a zone by the session's spark.sql.timestampType.
    df = spark.createDataFrame(table, to_spark_schema(arrow))
    assert df.schema == to_spark_schema(arrow)
    canonical = to_arrow_schema(df.schema)
    back = df.toArrow()
    assert back.schema == canonical
    assert back.to_pylist() == table.cast(canonical).to_pylist()


def test_the_zone_of_a_session_is_a_label_that_leaves_the_instants_alone(utc):
    df = utc.sql("SELECT TIMESTAMP '2024-02-29 12:00:00Z' AS at")
    foretold = to_arrow_schema(df.schema)

    def first_as_number(batches):
        for batch in batches:
            number = batch.column("at").cast(pa.int64())
            yield pa.record_batch({"zone": [batch.schema.field("at").type.tz], "number": number})

    utc.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        row = df.mapInArrow(first_as_number, "zone string, number long").first()
    finally:
        utc.conf.set("spark.sql.session.timeZone", "UTC")
    assert row.zone == "Europe/Berlin"
    assert foretold.field("at").type == pa.timestamp("us", "UTC")
    assert df.toArrow().column("at").cast(pa.int64()).to_pylist() == [row.number]


def test_a_bare_type_and_a_column_agree():
    for spark_type in a.KEPT:
        column = to_arrow_schema(t.StructType([t.StructField("c", spark_type)])).field("c").type
        assert to_arrow_type(spark_type) == column
        assert to_spark_type(column) == spark_type
