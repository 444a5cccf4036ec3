"""DataFrames on a real server: typical queries, local data, and what the server keeps."""

import datetime
import decimal

import polars as pl
import pytest

from solstice.connect import Observation, Row, StorageLevel, Window
from solstice.connect import functions as F
from solstice.connect import types as T
from solstice.connect.errors import AnalysisException, ParseException
from solstice.errors import SparkArithmeticError

pytestmark = pytest.mark.spark

SALES = [
    ("Ann", "PL", "2024-01-01", 10.0),
    ("Ann", "PL", "2024-01-02", 30.0),
    ("Bob", "DE", "2024-01-01", 5.0),
    ("Cid", "DE", "2024-01-03", None),
]


@pytest.fixture
def sales(spark):
    return spark.createDataFrame(SALES, ["user", "country", "day", "amount"])


def test_a_query_as_people_write_them(sales):
    top = (
        sales.where(F.col("amount").is_not_null())
        .with_column("day", F.to_date("day"))
        .group_by("user", "country")
        .agg(F.sum("amount").alias("total"), F.max("day").alias("last"), F.count_distinct("day").alias("days"))
        .order_by(F.desc("total"))
        .limit(10)
    )
    assert top.columns == ["user", "country", "total", "last", "days"]
    assert top.collect() == [
        ("Ann", "PL", 40.0, datetime.date(2024, 1, 2), 2),
        ("Bob", "DE", 5.0, datetime.date(2024, 1, 1), 1),
    ]


def test_windows_and_cases(sales):
    window = Window.partitionBy("user").orderBy("day").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    rows = sales.select(
        "user",
        F.sum("amount").over(window).alias("sum"),
        F.when(F.col("amount") > 20, "big").when(F.col("amount").isNull(), "none").otherwise("small").alias("kind"),
    ).sort("user", "day")
    assert [tuple(row) for row in rows.collect()] == [
        ("Ann", 10.0, "small"),
        ("Ann", 40.0, "big"),
        ("Bob", 5.0, "small"),
        ("Cid", None, "none"),
    ]


def test_pivots_rollups_and_unpivots(sales):
    pivot = sales.groupBy("user").pivot("country", ["PL", "DE"]).sum("amount").sort("user")
    assert pivot.collect() == [("Ann", 40.0, None), ("Bob", None, 5.0), ("Cid", None, None)]
    assert sales.rollup("country").count().sort(F.asc_nulls_first("country")).collect()[0] == (None, 4)
    long = pivot.unpivot("user", ["PL", "DE"], "country", "amount").dropna()
    assert sorted(long.collect()) == [("Ann", "PL", 40.0), ("Bob", "DE", 5.0)]


def test_joins_by_columns_of_either_side(spark, sales):
    limits = spark.createDataFrame([("PL", 20.0), ("DE", 1.0)], ["country", "amount"])
    joined = sales.join(limits, (sales.country == limits.country) & (sales.amount > limits["amount"]))
    assert sorted(joined.select(sales.user, limits.amount).collect()) == [("Ann", 20.0), ("Bob", 1.0)]
    assert sales.join(limits, "country", "left_anti").is_empty()
    best = sales.groupBy("user").agg(F.max("amount").alias("most")).alias("best")
    assert sales.alias("all").join(best, F.col("all.user") == F.col("best.user")).count() == 4


def test_subqueries_and_lateral_joins(spark, sales):
    above = sales.where(F.col("amount") > sales.select(F.avg("amount")).scalar())
    assert above.select("amount").collect() == [(30.0,)]
    one, two = sales.alias("one"), sales.alias("two")
    several = one.where(
        two.where(
            (F.col("two.user") == F.col("one.user").outer()) & (F.col("two.day") != F.col("one.day").outer())
        ).exists()
    )
    assert several.select("user").distinct().collect() == [("Ann",)]
    arrays = spark.sql("select 1 as id, array(10, 20) as values")
    exploded = arrays.lateralJoin(spark.tvf.explode(F.col("values").outer()))
    assert exploded.select("id", "col").collect() == [(1, 10), (1, 20)]


def test_a_subquery_has_the_values_of_isin(sales):
    assert sales.where(F.col("user").isin(sales.where("amount > 20").select("user"))).count() == 2


def test_higher_order_functions(spark):
    row = spark.range(1).select(
        F.transform(F.array(F.lit(1), F.lit(2)), lambda x: x * 10).alias("tens"),
        F.aggregate(F.array(F.lit(1), F.lit(2)), F.lit(0), lambda total, x: total + x).alias("sum"),
        F.filter(F.sequence(F.lit(1), F.lit(5)), lambda x: x % 2 == 1).alias("odd"),
    )
    assert row.collect() == [([10, 20], 3, [1, 3, 5])]


def test_rows_of_all_kinds_arrive_as_they_were(spark):
    rows = [Row(name="Ann", tags=["x", "y"], scores={"a": 1.5}, born=datetime.date(2000, 2, 29), place=Row(x=1, y="z"))]
    [row] = spark.createDataFrame(rows).collect()
    assert row == rows[0]
    assert row.place.y == "z"
    schema = "id INT, price DECIMAL(10,2), at TIMESTAMP, raw BINARY"
    values = (1, decimal.Decimal("1.50"), datetime.datetime(2024, 2, 29, 1, 2, 3, 4), b"\x00\xff")
    frame = spark.createDataFrame([values], schema)
    assert frame.collect() == [values]
    assert frame.schema.simpleString() == "struct<id:int,price:decimal(10,2),at:timestamp,raw:binary>"
    assert spark.createDataFrame([{"b": 1, "a": "x"}, {"a": "y"}]).sort("a").collect() == [("x", 1), ("y", None)]
    assert spark.createDataFrame([1, 2, 3], T.IntegerType()).agg(F.sum("value")).collect() == [(6,)]
    assert spark.createDataFrame([], "a INT").collect() == []


def test_a_polars_frame_goes_there_and_back(spark):
    frame = pl.DataFrame({"a": [1, 2], "b": ["x", None], "c": [[1.5], []], "d": [datetime.date(2024, 1, 1)] * 2})
    assert spark.create_dataframe(frame).to_polars().equals(frame)


def test_large_data_is_uploaded_once(spark):
    spark.sql("set spark.sql.session.localRelationCacheThreshold = 100000")
    spark.sql("set spark.sql.session.localRelationChunkSizeRows = 10000")
    frame = pl.DataFrame({"a": range(50_000)}).with_columns(b=pl.col("a").cast(pl.String))
    for _ in range(2):
        there = spark.create_dataframe(frame)
        uploaded = there._relation.input
        assert uploaded.hash if spark.version < "4.1" else len(uploaded.dataHashes) == 6
        assert there.agg(F.sum("a"), F.max(F.col("b").cast("long"))).collect() == [(1_249_975_000, 49_999)]
    spark.sql("reset spark.sql.session.localRelationCacheThreshold")
    spark.sql("reset spark.sql.session.localRelationChunkSizeRows")


def test_queries_take_values_and_dataframes(spark, sales):
    assert spark.sql("select :a + :b as s", {"a": 1, "b": 2}).collect() == [(3,)]
    assert spark.sql("select ? as d", [datetime.date(2024, 1, 1)]).collect() == [(datetime.date(2024, 1, 1),)]
    query = "select user from {sales} where {amount} > 20 and country = {country}"
    assert spark.sql(query, sales=sales, amount=sales.amount, country="PL").collect() == [("Ann",)]


def test_views_caches_and_checkpoints(spark, sales):
    sales.createOrReplaceTempView("sales")
    assert spark.table("sales").count() == 4
    sales.create_or_replace_global_temp_view("all_sales")
    assert spark.sql("select * from global_temp.all_sales").count() == 4
    cached = spark.table("sales").persist(StorageLevel.MEMORY_ONLY)
    assert cached.is_cached
    assert cached.storageLevel.useMemory
    assert not cached.unpersist(blocking=True).is_cached
    for checkpointed in (sales.checkpoint(), sales.localCheckpoint()):
        assert checkpointed.where("amount > 20").count() == 1
    del checkpointed
    assert sales.checkpoint(eager=False).count() == 4  # tells the server which ones are not needed any more


def test_what_was_observed_is_known_after_the_action(sales):
    observation = Observation("sales")
    observed = sales.observe(observation, F.count(F.lit(1)).alias("rows"), F.max("amount").alias("most"))
    assert observation.get == {}
    assert len(observed.where("amount > 1").collect()) == 3
    assert observation.get == {"rows": 4, "most": 30.0}


def test_statistics_and_missing_values(sales):
    assert sales.stat.approxQuantile("amount", [0.0, 1.0], 0.0) == [5.0, 30.0]
    assert sales.corr("amount", "amount") == pytest.approx(1.0)
    assert sales.fillna({"amount": 0.0}).where("amount = 0").count() == 1
    assert sales.na.replace({"PL": "Poland"}, subset=["country"]).where("country = 'Poland'").count() == 2
    assert sales.describe("amount").columns == ["summary", "amount"]
    assert sum(part.count() for part in sales.randomSplit([1.0, 1.0], seed=3)) == 4


def test_files_are_read(spark, tmp_path):
    (tmp_path / "a.csv").write_text("id;name\n1;Ann\n2;Bob\n")
    (tmp_path / "a.json").write_text('{"id": 1, "tags": ["x"]}\n')
    frame = spark.read.csv(str(tmp_path / "a.csv"), sep=";", header=True, inferSchema=True)
    assert frame.sort("id").collect() == [(1, "Ann"), (2, "Bob")]
    assert spark.read.schema("id INT, tags ARRAY<STRING>").json(str(tmp_path / "a.json")).collect() == [(1, ["x"])]
    lines = spark.createDataFrame([('{"a": 1}',)], ["value"])
    assert spark.read.json(lines, schema="a INT").collect() == [(1,)]
    assert spark.read.text(str(tmp_path / "a.csv"), wholetext=True).count() == 1


def test_what_is_printed(sales, capsys):
    sales.select("user").limit(1).show()
    sales.printSchema()
    sales.explain(mode="formatted")
    printed = capsys.readouterr().out
    assert "| Ann|" in printed
    assert "|-- amount: double (nullable = true)" in printed
    assert "Physical Plan" in printed


def test_a_few_rows_at_a_time(spark):
    numbers = spark.range(0, 100, 1, 4)
    assert numbers.head() == numbers.first() == (0,)
    assert numbers.take(2) == numbers.head(2) == [(0,), (1,)]
    assert numbers.tail(2) == [(98,), (99,)]
    assert sum(row.id for row in numbers.toLocalIterator()) == 4950
    assert numbers.sameSemantics(spark.range(0, 100, 1, 4))
    assert spark.range(0).first() is None
    assert numbers.toPandas().shape == (100, 1)


def test_200_columns_added_one_by_one(spark):
    flat, deep = spark.range(1), spark.range(1).withColumn("c0", F.col("id"))
    for number in range(1, 200):
        flat = flat.withColumn(f"c{number}", F.col("id") + number)
        deep = deep.withColumn(f"c{number}", F.col(f"c{number - 1}") + 1)
    assert flat.collect() == [tuple(range(200))]
    assert deep.select("c0", "c199").collect() == [(0, 199)]


def test_columns_added_one_by_one_are_what_each_of_them_says(spark):
    frame = (
        spark.sql("select 1 as x, array(1, 2) as xs, array(3, 4) as ys")
        .withColumn("a", F.col("x") + 1)
        .withColumn("x", F.col("x") * 10)
        .withColumn("b", F.col("x") + F.col("a"))
        .withColumn("c", F.lit("c"))
        .withColumn("n", F.explode("xs"))
        .withColumn("m", F.explode("ys"))
        .drop("xs", "ys")
    )
    assert frame.columns == ["x", "a", "b", "c", "n", "m"]
    assert sorted(frame.collect()) == [(10, 2, 12, "c", n, m) for n in (1, 2) for m in (3, 4)]


def test_errors_have_the_kind_that_they_have_in_spark(spark):
    with pytest.raises(AnalysisException, match="nope") as caught:
        spark.range(1).select("nope").collect()
    assert caught.value.getErrorClass() == "UNRESOLVED_COLUMN.WITH_SUGGESTION"
    with pytest.raises(ParseException):
        spark.sql("select (").collect()
    with pytest.raises(SparkArithmeticError):
        spark.sql("select 1/0").collect()
