"""Exactly once, end to end: delivery="log" and an upsert into SQLite. Run: python examples/pubsub_exactly_once.py"""

import os
import sqlite3
import tempfile
import time
from contextlib import closing
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from solstice.pubsub import publish
from solstice.testing import PubSubEmulator

TOPIC = "projects/demo/topics/events"
SUBSCRIPTION = "projects/demo/subscriptions/events"

with PubSubEmulator() as emulator, tempfile.TemporaryDirectory() as folder:
    os.environ["PUBSUB_EMULATOR_HOST"] = emulator.address
    emulator.create_topic(TOPIC)
    emulator.create_subscription(SUBSCRIPTION, TOPIC)
    database, crashed = f"{folder}/events.db", Path(f"{folder}/crashed")
    with closing(sqlite3.connect(database)) as db:
        db.execute(
            "CREATE TABLE events (batch_id INT, message_id TEXT, event TEXT, PRIMARY KEY (batch_id, message_id))"
        )

    def upsert(frame: DataFrame, batch_id: int) -> None:
        """Spark may run a batch again: with the same id, and from the log with the same rows."""
        rows = [(batch_id, row.message_id, row.event) for row in frame.collect()]
        with closing(sqlite3.connect(database)) as db, db:
            db.executemany("INSERT INTO events VALUES (?, ?, ?) ON CONFLICT DO NOTHING", rows)
        if not crashed.exists():
            crashed.touch()
            raise RuntimeError("the first batch is stored, and then the query dies")

    def run(count: int) -> None:
        query = (
            spark.readStream.format("pubsub")
            .option("subscriptionId", SUBSCRIPTION)
            .option("delivery", "log")
            .option("logPath", f"{folder}/log")  # with executors on other hosts: a shared directory, s3://, gs://
            .load()
            .selectExpr("message_id", "cast(data as string) as event")
            .writeStream.foreachBatch(upsert)
            .option("checkpointLocation", f"{folder}/checkpoint")
            .start()
        )
        while query.isActive and stored()[0] < count:
            time.sleep(0.2)
        query.stop()

    def stored() -> tuple[int, int]:
        with closing(sqlite3.connect(database)) as db:
            rows, messages = db.execute("SELECT count(*), count(DISTINCT message_id) FROM events").fetchone()
        return rows, messages

    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    publish(TOPIC, pa.table({"data": [f"event {number}" for number in range(10_000)]}))
    run(10_000)
    print("the query died once:", crashed.exists())
    run(10_000)
    rows, messages = stored()
    print("stored", messages, "messages in", rows, "rows")
    spark.stop()
