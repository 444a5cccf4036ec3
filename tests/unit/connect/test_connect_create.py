"""Local data on its way to a server: types, errors, and uploads of what is large."""

import datetime
import decimal
import hashlib
import time

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from connect_recorder import SETTINGS, session

from solstice.connect import types as T
from solstice.connect._infer import infer_schema
from solstice.connect._plan import CachedLocalRelation, ChunkedCachedLocalRelation, LocalRelation, ToDF
from solstice.errors import ArgumentTypeError, InvalidPlanError


def table_of(relation):
    return pa.ipc.open_stream(relation.data).read_all()


def sent(data, schema=None, settings=SETTINGS):
    relation = session(settings).create_dataframe(data, schema)._relation
    return relation.input if isinstance(relation, ToDF) else relation


def test_a_polars_frame_arrives_in_types_that_spark_has():
    frame = pl.DataFrame(
        {
            "u8": pl.Series([255], dtype=pl.UInt8),
            "u64": pl.Series([2**64 - 1], dtype=pl.UInt64),
            "s": ["x"],
            "c": pl.Series(["y"], dtype=pl.Categorical),
            "l": [[1]],
            "d": [datetime.date(2024, 2, 29)],
            "t": [datetime.timedelta(seconds=1)],
        }
    )
    table = table_of(sent(frame))
    assert [str(field.type) for field in table.schema] == [
        "int16",
        "decimal128(20, 0)",
        "string",
        "string",
        "list<element: int64>",
        "date32[day]",
        "duration[us]",
    ]
    assert table.column("u64")[0].as_py() == 2**64 - 1


def test_a_time_without_a_zone_is_in_the_sessions():
    instant = table_of(sent(pa.table({"t": pa.array([datetime.datetime(2024, 7, 1, 12)])})))["t"][0].as_py()
    assert instant == datetime.datetime(2024, 7, 1, 10, tzinfo=datetime.UTC)
    plain = SETTINGS | {"spark.sql.timestampType": "TIMESTAMP_NTZ"}
    kept = table_of(sent(pa.table({"t": pa.array([datetime.datetime(2024, 7, 1, 12)])}), settings=plain))
    assert kept["t"][0].as_py() == datetime.datetime(2024, 7, 1, 12)


def test_a_time_without_a_zone_is_in_the_sessions_also_inside_of_others():
    noon, map_type = datetime.datetime(2024, 7, 1, 12), pa.map_(pa.string(), pa.timestamp("us"))
    data = pa.table(
        {
            "list": pa.array([[0], [noon, None], None, []], pa.large_list(pa.timestamp("ns"))),
            "struct": [None, {"at": noon, "zoned": noon.replace(tzinfo=datetime.UTC)}, None, {"at": None}],
            "map": pa.array([None, [("k", noon)], None, []], map_type),
            "deep": [None, [{"lists": [[noon]]}], [None], None],
        }
    ).slice(1)
    instant = datetime.datetime(2024, 7, 1, 10, tzinfo=datetime.UTC)
    assert table_of(sent(data)).to_pydict() == {
        "list": [[instant, None], None, []],
        "struct": [{"at": instant, "zoned": noon.replace(tzinfo=datetime.UTC)}, None, {"at": None, "zoned": None}],
        "map": [[("k", instant)], None, []],
        "deep": [[{"lists": [[instant]]}], [None], None],
    }


def test_a_datetime_of_python_without_a_zone_is_in_that_of_this_process(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "America/New_York")
        time.tzset()
        table = table_of(sent([(datetime.datetime(2024, 7, 1, 12),)], ["t"]))
    time.tzset()
    assert table.column(0).to_pylist() == [datetime.datetime(2024, 7, 1, 16, tzinfo=datetime.UTC)]


def test_an_hour_that_comes_twice_is_the_second_one_and_one_that_the_clocks_skip_is_refused():
    twice, skipped = datetime.datetime(2024, 10, 27, 2, 30), datetime.datetime(2024, 3, 31, 2, 30)
    for data in (pa.table({"t": [twice]}), pl.DataFrame({"t": [twice]}), pd.DataFrame({"t": [twice]})):
        [instant] = table_of(sent(data)).column(0).to_pylist()
        assert instant == datetime.datetime(2024, 10, 27, 1, 30, tzinfo=datetime.UTC)
    with pytest.raises(ArgumentTypeError, match=r"column 't' does not become timestamp: .*Europe/Warsaw"):
        sent(pa.table({"t": [skipped]}))


def test_arrow_data_has_the_names_and_types_of_its_schema():
    schema = T.StructType().add("a", "integer").add("b", "string")
    for data in (pa.table({"a": [1], "b": ["x"]}), pl.DataFrame({"a": [1], "b": ["x"]})):
        relation = session().create_dataframe(data, schema)._relation
        assert isinstance(relation, LocalRelation)
        assert relation.schema == schema.json()
        assert table_of(relation).schema.types == [pa.int32(), pa.string()]


def test_no_row_is_needed_for_a_schema():
    schema = T.StructType().add("a", "integer")
    for data in ([], pd.DataFrame(), pd.DataFrame({"a": []}), pl.DataFrame({"a": []}), pa.table({"a": []})):
        assert session().create_dataframe(data, schema)._relation == LocalRelation(schema=schema.json())


def test_nested_rows_become_structs_arrays_and_maps():
    rows = [({"k": [1, None]}, (1, {"x": decimal.Decimal("1.5")}), None)]
    schema = T.StructType(
        [
            T.StructField("m", T.MapType(T.StringType(), T.ArrayType(T.IntegerType()))),
            T.StructField(
                "s", T.StructType().add("a", "long").add("b", T.MapType(T.StringType(), T.DecimalType(5, 2)))
            ),
            T.StructField("n", T.StringType()),
        ]
    )
    [row] = table_of(sent(rows, schema)).to_pylist()
    assert row == {"m": [("k", [1, None])], "s": {"a": 1, "b": [("x", decimal.Decimal("1.50"))]}, "n": None}


def test_columns_of_the_same_name_are_kept_apart():
    relation = session().create_dataframe([(1, 2)], ["a", "a"])._relation
    assert relation.column_names == ("a", "a")
    assert table_of(relation.input).num_columns == 2


def test_rows_may_miss_what_others_have():
    assert infer_schema([{"a": 1}, {"b": "x"}], None).simple_string() == "struct<a:bigint,b:string>"
    assert table_of(sent([{"a": 1}, {"b": "x"}])).to_pylist() == [{"a": 1, "b": None}, {"a": None, "b": "x"}]


@pytest.mark.parametrize(
    ("rows", "schema", "reason"),
    [
        ([(1,), ([2],)], None, "both"),
        ([(object(),)], None, "no type"),
        ([("x",)], "long", "not bigint"),
        ([(2**70,)], "long", "not bigint"),
        ([(1,)], "decimal(5,2)", r"column 'a' .* not decimal"),
        ([(decimal.Decimal("1E9"),)], "decimal(5,2)", r"column 'a' .* not decimal"),
        ([(datetime.date(2020, 1, 1),)], "timestamp", r"column 'a' .* not timestamp"),
        ([("x",)], "binary", r"column 'a' .* not binary"),
        ([(5,)], "binary", r"column 'a' .* not binary"),
        (pa.table({"a": ["x"]}), "long", r"column 'a' does not become bigint"),
        (pa.table({"a": [[datetime.datetime(2024, 1, 1)]]}), "long", r"column 'a' does not become bigint"),
        (pa.table({"a": [{"x": datetime.datetime(2024, 1, 1)}]}), T.ArrayType(T.LongType()), r"'a' does not become"),
        (pa.table({"a": [2**40]}), "integer", r"column 'a' does not become int"),
    ],
)
def test_values_of_another_type_are_refused_by_the_columns_name(rows, schema, reason):
    struct = None if schema is None else T.StructType().add("a", schema)
    with pytest.raises(ArgumentTypeError, match=reason):
        session().create_dataframe(rows, struct)


@pytest.mark.parametrize("value", [None, []])
def test_a_type_that_no_value_tells_is_refused_by_the_columns_name(value):
    with pytest.raises(InvalidPlanError, match="'_1' cannot be told"):
        session().create_dataframe([(value,)])


@pytest.mark.parametrize(
    ("data", "schema"),
    [
        ([], None),
        ([], ["a"]),
        (iter([]), None),
        ([(1, 2)], T.StructType().add("a", "long")),
        ([(1,)], ["a", "b"]),
        ([(None,)], T.StructType([T.StructField("a", T.LongType(), False)])),
        (pa.table({"a": [1]}), ["a", "b"]),
        (pa.table({"a": [1]}), T.StructType().add("b", "long")),
        (pa.table({"a": [1], "b": [2]}), T.StructType().add("b", "long").add("a", "long")),
        (pa.table({"a": [1], "b": [2]}), T.StructType().add("a", "long")),
    ],
)
def test_data_and_schema_that_do_not_match_are_refused(data, schema):
    with pytest.raises(InvalidPlanError) as caught:
        session().create_dataframe(data, schema)
    assert caught.value.remedy


def test_a_lazy_frame_is_refused_with_what_to_do():
    with pytest.raises(InvalidPlanError, match=r"LazyFrame is not computed yet.*collect\(\)"):
        sent(pl.LazyFrame({"a": [1]}))


def test_a_schema_of_another_kind_is_a_type_error():
    with pytest.raises(TypeError, match="not a schema"):
        session().create_dataframe([(1,)], 3)


def test_small_data_is_in_the_plan():
    spark = session()
    assert isinstance(spark.create_dataframe([(1,)])._relation, LocalRelation)
    assert spark._link.driver.uploads == {}


def test_large_data_is_uploaded_in_chunks_by_their_hashes():
    spark = session()
    relation = spark.create_dataframe(pa.table({"a": range(950)}))._relation.input
    assert isinstance(relation, ChunkedCachedLocalRelation)
    uploads = spark._link.driver.uploads
    assert [f"cache/{name}" for name in relation.dataHashes] == list(uploads)
    assert all(name == f"cache/{hashlib.sha256(data).hexdigest()}" for name, data in uploads.items())
    tables = [pa.ipc.open_stream(data).read_all() for data in uploads.values()]
    assert max(table.num_rows for table in tables) <= 100
    assert pa.concat_tables(tables)["a"].to_pylist() == list(range(950))


def test_the_schema_of_large_rows_is_uploaded_too():
    spark = session()
    relation = spark.create_dataframe([(i,) for i in range(900)], T.StructType().add("a", "long"))._relation
    assert spark._link.driver.uploads[f"cache/{relation.schemaHash}"].startswith(b'{"fields"')


def test_a_server_that_knows_no_chunks_gets_the_relation_whole():
    old = {key: value for key, value in SETTINGS.items() if "Chunk" not in key}
    spark = session(old)
    relation = spark.create_dataframe(pa.table({"a": range(900)}))._relation.input
    assert isinstance(relation, CachedLocalRelation)
    assert list(spark._link.driver.uploads) == [f"cache/{relation.hash}"]


def test_data_beyond_the_servers_limit_is_refused_before_all_of_it_is_sent():
    spark = session()
    with pytest.raises(InvalidPlanError, match="localRelationSizeLimit"):
        spark.create_dataframe(pa.table({"a": range(100_000)}))
    assert sum(map(len, spark._link.driver.uploads.values())) < 200_000


def test_a_moment_of_pandas_is_a_moment_and_not_a_day():
    schema = infer_schema([(pd.Timestamp("2024-01-01 10:30"),)], ["at"])
    assert schema.simpleString() == "struct<at:timestamp>"


def test_what_is_no_data_is_refused_with_what_data_is():
    with pytest.raises(TypeError, match=r"create_dataframe\(\) takes rows, .* not 5"):
        session().create_dataframe(5)
