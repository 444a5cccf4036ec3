"""Events from Pub/Sub into parquet with plain Spark Structured Streaming. Run: python examples/pubsub_parquet.py"""

import os
import tempfile
import time

import pyarrow as pa
from pyspark.sql import SparkSession

from solstice.pubsub import publish
from solstice.testing import PubSubEmulator

TOPIC = "projects/demo/topics/events"
SUBSCRIPTION = "projects/demo/subscriptions/events"

with PubSubEmulator() as emulator, tempfile.TemporaryDirectory() as folder:
    os.environ["PUBSUB_EMULATOR_HOST"] = emulator.address
    emulator.create_topic(TOPIC)
    emulator.create_subscription(SUBSCRIPTION, TOPIC)
    publish(TOPIC, pa.table({"data": [f"event {number}" for number in range(10_000)]}))

    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    query = (
        spark.readStream.format("pubsub")  # found by Spark itself: nothing to register, no jar
        .option("subscriptionId", SUBSCRIPTION)
        .load()
        .selectExpr("cast(data as string) as event", "publish_time")
        .writeStream.format("parquet")
        .option("path", f"{folder}/events")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .start()
    )
    while emulator.counters(SUBSCRIPTION)["acked"] < 10_000 and query.isActive:
        time.sleep(0.2)
    query.stop()
    print("stored", spark.read.parquet(f"{folder}/events").count(), "events")
    spark.stop()
