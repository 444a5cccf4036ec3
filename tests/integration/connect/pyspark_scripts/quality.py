"""A check of deliveries: a schema in DDL, subqueries, a lateral join, what is observed on the way, errors."""

from pyspark.errors import AnalysisException, PySparkException, PySparkValueError
from pyspark.sql import Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, LongType, StructField, StructType
from pyspark.sql.window import Window

spark = SparkSession.builder.getOrCreate()

schema = DataType.fromDDL("shop string, day int, parcels bigint, weights array<double>")
deliveries = spark.createDataFrame(
    [("a", 1, 5, [1.0, 2.0]), ("a", 2, 7, [3.0]), ("b", 1, 2, []), ("b", 3, 9, [0.5, 0.5])], schema=schema
)
seen = Observation("deliveries")
observed = deliveries.observe(seen, F.count(F.lit(1)).alias("rows"), F.sum("parcels").alias("parcels"))

running = Window.partitionBy("shop").orderBy("day").rowsBetween(Window.unboundedPreceding, Window.currentRow)
totals = deliveries.withColumn("so_far", F.sum("parcels").over(running)).localCheckpoint()
above = totals.where(F.col("parcels") > totals.select(F.avg("parcels")).scalar()).orderBy("shop", "day")
weights = deliveries.alias("d").lateralJoin(spark.tvf.explode(F.col("d.weights").outer()).alias("w"))
by_day = deliveries.groupBy("shop").pivot("day", [1, 2, 3]).agg(F.sum("parcels")).orderBy("shop")

caught = []
deliveries.createTempView("deliveries")
for attempt in (
    lambda: deliveries.createTempView("deliveries"),
    lambda: deliveries.groupBy("shop").agg(F.sum("parcel")).collect(),
    lambda: deliveries.na.drop("some"),
    lambda: deliveries.filter(F.col("day") == 1 or F.col("day") == 2),
):
    try:
        attempt()
    except AnalysisException as error:
        caught.append(error.getCondition())
    except PySparkValueError:
        caught.append("value")
    except PySparkException:
        caught.append("other")

result = {
    "ddl": StructType([StructField("n", LongType(), False, {"comment": "it's"})]).add("t", "string").toDDL(),
    "schema": deliveries.select("day", "parcels").schema.simpleString(),
    "shown": repr(StructType([StructField("n", LongType(), False)])),
    "above": [(row.shop, row.so_far) for row in above.toLocalIterator()],
    "rows": len(observed.collect()),
    "observed": seen.get,
    "weight": weights.agg(F.sum("col")).first()[0],
    "days": [row.asDict() for row in by_day.collect()],
    "heavy": list(
        spark.sql("SELECT shop FROM deliveries WHERE parcels > ? ORDER BY shop", args=[6]).toPandas()["shop"]
    ),
    "busiest": spark.sql("SELECT max(parcels) AS most FROM {table}", table=deliveries).head()["most"],
    "caught": caught,
}
spark.sql("DROP VIEW deliveries")
