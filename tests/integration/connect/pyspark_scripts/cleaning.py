"""Cleaning a table: duplicates, missing values, statistics, caching, errors."""

from pyspark import StorageLevel
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.builder.getOrCreate()

raw = spark.createDataFrame(
    [(1, "x", 1.0), (1, "x", 1.0), (2, "y", None), (3, None, 3.0)], ["id", "kind", "value"]
).persist(StorageLevel.MEMORY_AND_DISK)
clean = raw.dropDuplicates(["id"]).na.fill({"kind": "unknown"}).na.drop(subset=["value"])
more = spark.createDataFrame([(4, 4.0)], ["id", "value"])
together = clean.unionByName(more, allowMissingColumns=True).orderBy("id")

try:
    together.select("vlaue").collect()
    suggestion = None
except AnalysisException as error:
    suggestion = error.getErrorClass()

split = [part.count() for part in together.randomSplit([0.5, 0.5], seed=1)]
result = {
    "ids": [row.id for row in together.collect()],
    "kinds": [row[0] for row in together.select("kind").collect()],
    "quantile": together.approxQuantile("value", [0.5], 0.0),
    "summary": together.summary("count").select("value").first()[0],
    "split": sum(split),
    "suggestion": suggestion,
    "cached": raw.is_cached,
    "long": together.withColumns({"a": F.lit(1), "b": F.lit(2)}).unpivot("id", ["a", "b"], "name", "n").count(),
}
raw.unpersist()
