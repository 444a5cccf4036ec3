"""A DataFrame to Pub/Sub, as a batch and as a stream, and dropped repeats. Run: python examples/pubsub_sink.py"""

import json
import os
import tempfile

from pyspark.sql import SparkSession

from solstice.pubsub import pull
from solstice.testing import PubSubEmulator

TOPIC = "projects/demo/topics/orders"
SUBSCRIPTION = "projects/demo/subscriptions/orders"

with PubSubEmulator() as emulator, tempfile.TemporaryDirectory() as folder:
    os.environ["PUBSUB_EMULATOR_HOST"] = emulator.address
    emulator.create_topic(TOPIC)
    emulator.create_subscription(SUBSCRIPTION, TOPIC)

    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    orders = spark.range(5_000).selectExpr(
        "id AS order_id", "id * 0.5 AS amount", "map('shop', 'berlin') AS attributes"
    )

    # Each row is a message: attributes as they are, the other columns as one JSON object.
    orders.write.format("pubsub").mode("append").option("topicId", TOPIC).option("format", "json").save()
    print("published", emulator.published(TOPIC), "orders as a batch")

    orders.write.parquet(f"{folder}/orders")
    query = (
        spark.readStream.schema(orders.schema)
        .parquet(f"{folder}/orders")
        .writeStream.format("pubsub")
        .option("topicId", TOPIC)
        .option("format", "json")
        .option(
            "dedupAttribute", "row"
        )  # names the row, at every attempt the same: what a retried task repeats can be told
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    print("published", emulator.published(TOPIC) - 5_000, "orders as a stream")
    spark.stop()

    total, seen = 0.0, set()
    with pull(SUBSCRIPTION, attribute_columns=["row"], idle_s=1) as puller:
        for batch in puller:
            for row, data in zip(batch.rows["row"].to_pylist(), batch.rows["data"].to_pylist(), strict=True):
                if row is not None and row not in seen:
                    seen.add(row)
                    total += json.loads(data)["amount"]
            batch.ack()
    print("the stream had", len(seen), "orders of", total)
