"""A disk that is full while Spark writes payloads with its own writer."""

import os
import subprocess
import sys

import pyarrow.dataset as ds
import pytest

from solstice._core.java import spark_environment

pytestmark = pytest.mark.spark

# No file may be larger than the limit: to the programs that write one it is as if the disk were full.
LIMITED = """
import resource, sys
from pathlib import Path
from solstice.pipeline import Job, ParquetSink, SparkSourceV2Config
root, limit = Path(sys.argv[1]), int(sys.argv[2])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
job = Job("numbers", state=root / "state")
job.source(
    SparkSourceV2Config(
        dataframe_fn=lambda spark: spark.range(0, 20_000, 1, 2).selectExpr("id", "sha2(string(id), 512) AS text"),
        writer="parquet",
        spark_configs={
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.ui.enabled": "false",
        },
    )
).sink(ParquetSink(root / "out"), retries=0)
try:
    print("dead", job.run(show_progress=False).dead)
except Exception as error:
    print(type(error).__name__, error)
"""


def test_a_full_disk_ends_the_job_and_the_next_run_goes_on(tmp_path):
    def run(limit: int) -> str:
        command = [sys.executable, "-c", LIMITED, str(tmp_path), str(limit)]
        environment = {**os.environ, **spark_environment()}
        return subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, text=True, timeout=300, check=True
        ).stdout

    told = run(300_000)
    assert "File too large" in told
    payloads = tmp_path / "state" / "payloads"
    assert run(0) == "dead 0\n"
    assert sorted(ds.dataset(tmp_path / "out").to_table()["id"].to_pylist()) == list(range(20_000))
    assert [path for path in payloads.rglob("*") if path.is_file()] == []
