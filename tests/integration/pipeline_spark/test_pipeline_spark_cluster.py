"""A Spark cluster with executors that die and tasks that run twice at once: every row once, and nothing left behind."""

import json
import subprocess
import sys

import pytest

from spark_standalone import standalone_cluster

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SCRIPT = """
import json, os, signal, sys, time
from pathlib import Path
import psutil
import pyarrow as pa
import pyarrow.dataset as ds
from solstice.pipeline import Job, ParquetSink, SparkSourceV2Config
from solstice.pipeline._queue import open_queue
from solstice.pipeline._store import open_store

master, root = sys.argv[1], Path(sys.argv[2])
marks = root / "marks"
marks.mkdir()

def compute(batches):
    from pyspark import TaskContext

    task = TaskContext.get()
    partition, attempt = task.partitionId(), task.attemptNumber()
    (marks / f"{partition}-{attempt}").touch()
    yield from batches
    if partition == 0 and attempt == 0:
        time.sleep(30)  # until Spark has had enough of it
    if partition == 1 and attempt == 0:
        raise ValueError("fails after it has written")
    if partition == 5 and attempt == 0:  # daemon of the Python workers, then the executor
        executor = psutil.Process().parent().parent()
        assert "CoarseGrainedExecutorBackend" in " ".join(executor.cmdline())
        executor.send_signal(signal.SIGKILL)
        time.sleep(60)

job = Job("cluster", state=root / "state")
source = job.source(SparkSourceV2Config(
    dataframe_fn=lambda spark: spark.range(0, 8000, 1, 8).mapInArrow(compute, "id long"),
    target_split_bytes=2000,
    executor_memory="512m",
    spark_configs={
        "spark.master": master,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.executor.cores": "1",
        "spark.speculation": "true",
        "spark.speculation.quantile": "0.4",
        "spark.speculation.multiplier": "1.2",
        "spark.speculation.interval": "200ms",
    },
))
source.sink(ParquetSink(root / "out"))
result = job.run()
queue = open_queue(job.queue)
print(json.dumps({
    "ids": sorted(ds.dataset(root / "out", format="parquet").to_table()["id"].to_pylist()) == list(range(8000)),
    "dead": result.dead,
    "payloads": list(open_store(job.payloads).keys()),
    "writers": sorted(queue.live_writers()),
    "temporary": [str(path) for path in (root / "out" / "_tmp").rglob("*") if path.is_file()],
    "attempts": sorted(mark.name for mark in marks.iterdir()),
}))
"""


def test_speculation_a_failing_task_and_a_killed_executor_give_every_row_once(tmp_path):
    (tmp_path / "main.py").write_text(SCRIPT)
    with standalone_cluster(tmp_path, cores=2) as cluster:
        done = subprocess.run(
            [sys.executable, str(tmp_path / "main.py"), cluster.url, str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=180,
        )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    attempts = found.pop("attempts")
    assert found == {"ids": True, "dead": 0, "payloads": [], "writers": [], "temporary": []}
    assert {"0-1", "1-1", "5-1"} <= set(attempts), "each of the three went wrong once"
