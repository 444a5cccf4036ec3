"""Sources that have to start Spark themselves: in a process of its own, because this one has a session."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.spark

PROGRAM = """
import json, sys, threading
from pathlib import Path
from pyspark import SparkContext
from solstice.pipeline import Job, ParquetSink, SparkSourceV2Config

root = Path(sys.argv[1])
first_is_through = threading.Event()

def first(spark):
    return spark.range(10)

def second(spark):
    first_is_through.wait(60)  # the session of both must not have gone with the first
    return spark.range(10, 30)

job = Job("two", state=root / "state")
before = job.source(SparkSourceV2Config(dataframe_fn=first, parallelism=1), name="first")
after = job.source(SparkSourceV2Config(dataframe_fn=second, parallelism=1), name="second")
before.union(after).sink(ParquetSink(root / "out"))

def look(stages):
    if not any(thread.name == "source-first" for thread in threading.enumerate()):
        first_is_through.set()

rows = job.run(on_progress=look).stage("sink").settled_records
print(json.dumps([rows, SparkContext._active_spark_context is None]))
"""


def test_two_sources_share_the_session_that_is_built_for_them_and_the_last_one_stops_it(tmp_path):
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    told = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=120, check=True).stdout
    assert json.loads(told.splitlines()[-1]) == [30, True]
