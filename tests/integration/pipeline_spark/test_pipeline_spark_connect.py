"""``format("solstice")`` from a session of Spark Connect: the writers run on the server, as always."""

import os
import subprocess
import sys

import pytest

from solstice._core.java import spark_environment
from solstice.pipeline import ExternalSource, FunctionSink, Job

pytestmark = pytest.mark.spark

SCRIPT = """
import sys
from pyspark.sql import SparkSession

queue, payloads, root = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false").getOrCreate()
assert "connect" in type(spark).__module__
options = {"job": "foreign", "stage": "clicks", "queue": queue, "payloads": payloads}
for _ in range(2):
    spark.range(0, 300, 1, 3).write.format("solstice").options(batch="monday", **options).mode("append").save()
spark.range(300, 500, 1, 2).write.parquet(root + "/events")
stream = spark.readStream.schema("id long").parquet(root + "/events").writeStream.format("solstice")
query = stream.options(checkpointLocation=root + "/checkpoint", **options).trigger(availableNow=True).start()
query.awaitTermination()
spark.stop()
"""


def test_a_connect_session_writes_batches_and_streams_into_a_stage(tmp_path):
    job = Job("foreign", state=tmp_path / "state", runner="inprocess")
    job.source(ExternalSource(), name="clicks").sink(FunctionSink(lambda table: found.extend(table["id"].to_pylist())))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, job.queue, job.payloads, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=150,
        env=os.environ | spark_environment() | {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1"},  # starts faster
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: list[int] = []
    job.run(on_progress=lambda stages: job.stop() if stages[-1].settled_records >= 500 else None)
    assert sorted(found) == list(range(500))
