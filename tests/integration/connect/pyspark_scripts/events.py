"""Events in JSON: parsing, arrays, sessions, a view and SQL."""

import pyspark.sql.functions as F
from pyspark.sql import SparkSession
from pyspark.sql.functions import col, explode, from_json, lag, to_timestamp, when
from pyspark.sql.types import ArrayType, StringType, StructType
from pyspark.sql.window import Window

spark = SparkSession.builder.getOrCreate()

event = StructType().add("user", StringType()).add("at", StringType()).add("tags", ArrayType(StringType()))
lines = spark.createDataFrame(
    [
        ('{"user": "ann", "at": "2024-01-01 10:00:00", "tags": ["a", "b"]}',),
        ('{"user": "ann", "at": "2024-01-01 10:05:00", "tags": []}',),
        ('{"user": "ann", "at": "2024-01-01 12:00:00", "tags": ["b"]}',),
        ('{"user": "bob", "at": "2024-01-01 10:00:00", "tags": null}',),
    ],
    ["value"],
)
events = lines.select(from_json("value", event).alias("e")).select("e.*").withColumn("at", to_timestamp(col("at")))

gap = col("at").cast("long") - lag("at").over(Window.partitionBy("user").orderBy("at")).cast("long")
sessions = (
    events.withColumn("starts", when(gap.isNull() | (gap > 1800), 1).otherwise(0))
    .groupBy("user")
    .agg(F.sum("starts").alias("sessions"))
)
sessions.createOrReplaceTempView("sessions")
tags = events.select("user", explode("tags").alias("tag")).groupBy("tag").count().sort(F.desc("count"), "tag")

result = {
    "sessions": {row["user"]: row["sessions"] for row in spark.sql("SELECT * FROM sessions").collect()},
    "tags": [tuple(row) for row in tags.take(2)],
    "longest": spark.sql("SELECT max(sessions) AS m FROM sessions WHERE user != :who", args={"who": "bob"}).first().m,
    "upper": events.select(F.transform("tags", lambda t: F.upper(t)).alias("t")).head().t,
}
