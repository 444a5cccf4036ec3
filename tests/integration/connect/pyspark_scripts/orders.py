"""Orders per customer: joins, windows, a pivot."""

from pyspark.sql import Row, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, IntegerType, StringType, StructField, StructType

spark = SparkSession.builder.appName("orders").getOrCreate()

schema = StructType(
    [
        StructField("order_id", IntegerType(), False),
        StructField("customer", StringType(), True),
        StructField("product", StringType(), True),
        StructField("price", DoubleType(), True),
    ]
)
orders = spark.createDataFrame(
    [(1, "ann", "pen", 1.5), (2, "ann", "book", 20.0), (3, "bob", "pen", 1.6), (4, "cid", "lamp", None)], schema=schema
)
customers = spark.createDataFrame([Row(customer="ann", country="PL"), Row(customer="bob", country="DE")])

enriched = (
    orders.join(F.broadcast(customers), on="customer", how="left")
    .withColumn("price", F.coalesce(F.col("price"), F.lit(0.0)))
    .withColumnRenamed("order_id", "id")
    .fillna({"country": "??"})
)
window = Window.partitionBy("customer").orderBy(F.col("price").desc())
ranked = enriched.withColumn("rank", F.row_number().over(window)).filter("rank = 1").drop("rank")
totals = enriched.groupBy("country").agg(
    F.round(F.sum("price"), 1).alias("total"), F.countDistinct("product").alias("n")
)
pivot = enriched.groupBy("country").pivot("product").agg(F.first("price")).orderBy("country")

result = {
    "best": [(row.customer, row["product"]) for row in ranked.orderBy("customer").collect()],
    "totals": sorted(row.asDict()["total"] for row in totals.toLocalIterator()),
    "columns": pivot.columns,
    "types": dict(enriched.dtypes)["price"],
    "empty": enriched.filter(F.col("price").isNull()).isEmpty(),
}
