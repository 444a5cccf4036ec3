"""Queries, types and errors on a real server."""

import datetime
import subprocess
import sys
import time
from decimal import Decimal

import pytest

import solstice.connect as sc
from solstice import errors
from solstice.connect import functions as F
from solstice.connect import types
from solstice.connect.errors import QueryContextType

pytestmark = pytest.mark.spark


def test_the_version_is_the_servers(spark, spark_version):
    assert spark.version.startswith(spark_version)
    assert spark.session_id in repr(spark)


def test_select_1(spark):
    [row] = spark.sql("select 1 as one").collect()
    assert row == (1,)
    assert row.one == 1


def test_types_round_trip(spark):
    [row] = spark.sql(
        """select true b, 1Y i8, 2S i16, 3 i32, 4L i64, cast(1.5 as float) f32, 2.5D f64,
                  cast('123.4500' as decimal(20, 4)) d, 'żółć' s, X'00ff' bin, date'2024-02-29' day,
                  timestamp_ntz'2024-02-29 01:02:03.000004' ntz, timestamp'2024-02-29 01:02:03.000004Z' ts,
                  interval '1 02:03:04.000005' day to second dt,
                  array(1, null) a, map('k', date'2024-01-01') m, named_struct('x', 1, 'y', array('z')) st,
                  cast(null as int) n, array() e"""
    ).collect()
    instant = datetime.datetime(2024, 2, 29, 1, 2, 3, 4, tzinfo=datetime.UTC)
    assert row.as_dict() == {
        "b": True,
        "i8": 1,
        "i16": 2,
        "i32": 3,
        "i64": 4,
        "f32": 1.5,
        "f64": 2.5,
        "d": Decimal("123.4500"),
        "s": "żółć",
        "bin": b"\x00\xff",
        "day": datetime.date(2024, 2, 29),
        "ntz": datetime.datetime(2024, 2, 29, 1, 2, 3, 4),
        "ts": instant.astimezone().replace(tzinfo=None),
        "dt": datetime.timedelta(days=1, hours=2, minutes=3, seconds=4, microseconds=5),
        "a": [1, None],
        "m": {"k": datetime.date(2024, 1, 1)},
        "st": (1, ["z"]),
        "n": None,
        "e": [],
    }
    assert row.st.y == ["z"]


def test_a_time_of_day_arrives(spark):
    assert spark.sql("select time'23:59:59.123456' as t").collect() == [(datetime.time(23, 59, 59, 123456),)]


def test_the_schema_is_analyzed_without_running_the_query(spark):
    query = spark.sql(
        "select raise_error('it ran') as x, 1 as y, array(named_struct('a', 1L)) as z, 'c' collate UNICODE k"
    )
    assert query.columns == ["x", "y", "z", "k"]
    assert query.schema["y"] == types.StructField("y", types.IntegerType(), nullable=False)
    assert query.schema["z"].data_type.simple_string() == "array<struct<a:bigint>>"
    assert query.schema["k"].data_type == types.StringType("UNICODE")
    assert repr(query) == "DataFrame[x: void, y: int, z: array<struct<a:bigint>>, k: string collate UNICODE]"


def test_count_and_limit_are_the_servers_work(spark):
    query = spark.sql("select id from range(1000000)")
    assert query.count() == 1_000_000
    assert query.limit(7).count() == 7
    assert query.limit(0).collect() == []


def test_a_deep_plan_runs(spark):
    query = spark.sql("select id from range(10)")
    for _ in range(200):
        query = query.limit(5)
    assert query.columns == ["id"]
    assert query.count() == 5


def test_an_empty_result_has_its_columns(spark):
    query = spark.sql("select id, cast(id as string) s from range(0)")
    assert query.collect() == []
    assert query.to_arrow().schema.names == ["id", "s"]
    assert query.to_polars().shape == (0, 2)


def test_a_small_result_becomes_a_polars_frame(spark):
    frame = spark.sql("select id, id * 2 as twice from range(3)").to_polars()
    assert frame.to_dict(as_series=False) == {"id": [0, 1, 2], "twice": [0, 2, 4]}


def test_a_large_result_is_refused_by_polars_until_the_bound_is_lifted(spark):
    query = spark.sql("select id from range(10001)")
    with pytest.raises(errors.ResultTooLargeError, match="max_rows=None"):
        query.to_polars()
    assert query.to_polars(max_rows=None).height == 10_001


def test_batches_come_one_by_one_and_complete(spark):
    batches = list(spark.sql("select id from range(0, 25000, 1, 2)").iter_batches())
    assert len(batches) > 1
    assert sorted(value for batch in batches for value in batch["id"].to_pylist()) == list(range(25_000))


def test_a_command_runs_once_and_gives_its_result(spark):
    spark.sql("-- a view\ncreate temporary view numbers as select id from range(3)")
    with pytest.raises(errors.RemoteError, match="TEMP_TABLE_OR_VIEW_ALREADY_EXISTS"):
        spark.sql("create temporary view numbers as select 1")
    assert spark.sql("table numbers").collect() == [(0,), (1,), (2,)]
    assert spark.sql("from numbers select max(id)").collect() == [(2,)]
    shown = spark.sql("show tables")
    assert [row.tableName for row in shown.collect()] == ["numbers"]
    assert [row.tableName for row in shown.collect()] == ["numbers"]


def test_invalid_sql_names_the_place(spark):
    with pytest.raises(errors.RemoteError, match="PARSE_SYNTAX_ERROR") as failed:
        spark.sql("selec 1")
    assert (failed.value.error_class, failed.value.sql_state) == ("PARSE_SYNTAX_ERROR", "42601")
    assert "^^^" in str(failed.value)
    assert "at org.apache" not in str(failed.value)


def test_a_wrong_column_comes_with_the_right_one(spark):
    with pytest.raises(errors.RemoteError, match=r"Did you mean one of the following\? \[`id`\]") as failed:
        spark.sql("select idd from range(3)").collect()
    assert failed.value.error_class == "UNRESOLVED_COLUMN.WITH_SUGGESTION"
    assert failed.value.parameters == {"objectName": "`idd`", "proposal": "`id`"}
    assert failed.value.fragment == "idd"
    assert "Project" not in str(failed.value)


def test_an_error_while_rows_are_made_is_reported_with_its_place(spark):
    with pytest.raises(errors.RemoteError, match="DIVIDE_BY_ZERO") as failed:
        spark.sql("select 1 / (id - 5) from range(10)").collect()
    assert failed.value.fragment == "1 / (id - 5)"
    assert "\tat org.apache.spark." in failed.value.stack_trace
    [context] = failed.value.getQueryContext()
    assert context.contextType() is QueryContextType.SQL
    assert (context.startIndex(), context.stopIndex(), context.objectName()) == (7, 18, "")
    assert "1 / (id - 5)" in context.summary()
    with pytest.raises(errors.RemoteError, match="DIVIDE_BY_ZERO") as failed:
        spark.range(1).select(F.lit(1) / F.col("id")).collect()
    assert failed.value.getQueryContext() == []


def test_years_and_months_are_refused_by_name_with_the_cast_to_use(spark):
    for query, path in (
        ("select interval '1-2' year to month as ym", "ym"),
        ("select named_struct('ym', interval '1-2' year to month) as s", "s.ym"),
    ):
        for fetch in (spark.sql(query).collect, spark.sql(query).to_polars):
            with pytest.raises(errors.UnsupportedTypeError, match=rf"cast\({path} as string\)") as refusal:
                fetch()
            assert refusal.value.column == path


def test_a_variant_arrives_as_its_two_binary_parts(spark):
    [row] = spark.sql("select parse_json('[1]') as v, to_json(parse_json('[1]')) as j").collect()
    assert sorted(row.v.__fields__) == ["metadata", "value"]
    assert all(isinstance(part, bytes) for part in row.v)
    assert row.j == "[1]"


def test_a_map_with_arrays_as_keys_is_refused_with_what_to_do(spark):
    query = spark.sql("select map(array(1), 2) as m")
    with pytest.raises(errors.UnsupportedTypeError, match="to_arrow"):
        query.collect()
    assert query.to_arrow().num_rows == 1


def test_a_wrong_token_is_refused(server):
    with pytest.raises(errors.AuthenticationError) as refused:
        sc.connect(server.url + "x")
    assert server.url.rpartition("=")[2] not in str(refused.value)


def test_an_unreachable_server_is_reported_soon_with_what_to_check():
    started = time.monotonic()
    with pytest.raises(errors.TransportError, match=r"no Spark Connect server answers at 127\.0\.0\.1:9 ") as failed:
        sc.connect("sc://127.0.0.1:9")
    assert time.monotonic() - started < 10
    assert failed.value.remedy


def test_a_stopped_session_says_so(server):
    session = sc.connect(server.url)
    query = session.sql("select 1")
    assert query.count() == 1
    session.stop()
    with pytest.raises(errors.SessionClosedError):
        query.count()


def test_a_session_that_the_server_ended_is_lost(server):
    session = sc.connect(server.url)
    session.sql("select 1").collect()
    twin = sc.connect(f"{server.url};session_id={session.session_id}")
    twin.stop()
    with pytest.raises(errors.SessionLostError, match="new_session"):
        session.sql("select 1").collect()
    session.stop()


PYSPARK = """
from pyspark.sql.connect.session import SparkSession as Official
theirs = Official(connection=sys.argv[1].replace("127.0.0.1", "localhost"))  # it sends a token to this name only
answers.append(theirs.sql("select named_struct('a', 7) as s").collect()[0].s.a)
"""
OURS = """
import solstice.connect as sc
loaded = "pyspark" in sys.modules
spark = sc.connect(sys.argv[1])
answers.append(spark.sql("select named_struct('a', 42) as s").collect()[0].s.a)
"""
BOTH = """
answers += [spark.range(3).count(), theirs.range(4).count(), spark.range(5).count()]
print(answers, loaded)
spark.stop(), theirs.stop()
"""


@pytest.mark.parametrize("pyspark_comes", ["first", "last"])
def test_pyspark_may_be_used_before_or_after_and_is_not_needed(server, pyspark_comes):
    parts, found = ((PYSPARK, OURS), [7, 42]) if pyspark_comes == "first" else ((OURS, PYSPARK), [42, 7])
    script = "import sys\nanswers = []" + "".join(parts) + BOTH
    command = [sys.executable, "-c", script, server.url]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.stdout.strip() == f"{[*found, 3, 4, 5]} {pyspark_comes == 'first'}", result.stderr


FIRST_ROW = """
import sys
import solstice.connect as sc
spark = sc.connect({url!r})
[row] = spark.sql("select 1 as a").collect()
heavy = ["pyspark", "pyarrow", "numpy", "pandas", "polars", "solstice.connect._local", "solstice.connect.functions"]
print(row.a, [name for name in heavy if name in sys.modules])
"""


def test_the_first_row_needs_no_heavy_package(server):
    script = FIRST_ROW.format(url=server.url)
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert result.stdout.strip() == "1 []", result.stderr
