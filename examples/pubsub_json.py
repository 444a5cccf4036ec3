"""JSON orders as a typed table, summed up per country and minute of publishing. Run: python examples/pubsub_json.py"""

import json
import os
import time
from collections import Counter
from decimal import Decimal

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from solstice.pubsub import publish
from solstice.testing import PubSubEmulator

TOPIC = "projects/demo/topics/orders"
SUBSCRIPTION = "projects/demo/subscriptions/orders"
COUNTRIES = ["CZ", "DE", "PL"]

# The latest sums of every minute and country. A table that takes upserts would be here.
sums: dict[tuple[object, str], tuple[int, Decimal]] = {}


def store(changed: DataFrame, batch_id: int) -> None:
    """Update mode gives what has changed: take it over."""
    for row in changed.collect():
        sums[row["window"].start, row["country"]] = (row["orders"], row["amount"])


with PubSubEmulator() as emulator:
    os.environ["PUBSUB_EMULATOR_HOST"] = emulator.address
    emulator.create_topic(TOPIC)
    emulator.create_subscription(SUBSCRIPTION, TOPIC)
    orders = [{"id": i, "country": COUNTRIES[i % 3], "items": [{"price": "1.25", "count": 2}]} for i in range(9_000)]
    publish(TOPIC, pa.table({"data": [*map(json.dumps, orders), '{"id": "no number", "country": "PL"}', "no JSON"]}))

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    query = (
        spark.readStream.format("pubsub")
        .schema(
            "id BIGINT, country STRING, items ARRAY<STRUCT<price: DECIMAL(10, 2), count: INT>>, publish_time TIMESTAMP"
        )
        .option("format", "json")  # parsed natively, in the workers
        .option("mode", "DROPMALFORMED")  # or PERMISSIVE, FAILFAST; deadLetterTopic publishes what does not fit
        .option("columns", "publish_time")  # of the message; the other columns are the payload's
        .option("subscriptionId", SUBSCRIPTION)
        .load()
        .withWatermark("publish_time", "10 minutes")  # how late a message may be
        .select("publish_time", "country", F.explode("items").alias("item"))
        .groupBy(F.window("publish_time", "1 minute"), "country")
        .agg(F.count("*").alias("orders"), F.sum(F.col("item.price") * F.col("item.count")).alias("amount"))
        .writeStream.outputMode("update")
        .foreachBatch(store)
        .start()
    )
    while emulator.counters(SUBSCRIPTION)["acked"] < len(orders) + 2 and query.isActive:
        time.sleep(0.2)
    query.stop()
    spark.stop()

counts: Counter[str] = Counter()
amounts: Counter[str] = Counter()
for (_, country), (count, amount) in sums.items():
    counts[country] += count
    amounts[country] += amount
for country in COUNTRIES:
    print(country, counts[country], "orders", amounts[country])
