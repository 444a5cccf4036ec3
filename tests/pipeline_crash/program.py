"""The job: a process of its own. Run again on the same folder, it resumes."""

import json
import os
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from pipeline_crash.layout import ROWS_PER_SPLIT, Layout, is_poisoned
from solstice._core.retry import RetryPolicy
from solstice.pipeline import Job, ParquetSink, SparkSourceConfig, SparkSourceV2Config
from solstice.pipeline._progress import StageProgress
from solstice.pipeline._queue import open_queue

TAG = "PIPELINE_CRASH"  # in the environment of all that belongs to a job, so that what is left behind is found
RETRIES = 5  # more than the times that anybody is killed with the same split in its hands
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # it starts sooner


def score(table: pa.Table) -> pa.Table:
    """The first stage."""
    _choke("score", table)
    time.sleep(0.01)
    return table.append_column("score", pc.add(pc.multiply(table["id"], 3), 1))


def cut(table: pa.Table) -> list[pa.Table]:
    """The second one makes two splits of one."""
    _choke("cut", table)
    time.sleep(0.01)
    half = table.num_rows // 2
    return [table.slice(0, half), table.slice(half)]


def _choke(stage: str, table: pa.Table) -> None:
    if is_poisoned(stage, table["id"][0].as_py()):
        raise ValueError(f"stage {stage} cannot digest this split")


def make_job(root: Path, layout: Layout, way: str, queue: str, master: str, run: int) -> Job:
    """The same job for every run; ``run`` only marks which one has computed a partition."""
    marks = root / "marks"
    tag = os.environ.get(TAG, "")

    def compute(batches):
        from pyspark import TaskContext

        marks.mkdir(exist_ok=True)
        with open(marks / str(TaskContext.get().partitionId()), "a") as file:
            file.write(f"{run}\n")
        for batch in batches:
            yield batch
            time.sleep(0.01)

    job = Job(
        "crash",
        state=root / "state",
        queue=queue or None,
        payload_budget="64mib",
        lease_s=10.0,
        backoff=RetryPolicy(initial_s=0.02, max_s=0.1),
    )
    kind, choices = {
        "V1": (SparkSourceConfig, {}),
        "task": (SparkSourceV2Config, {"visibility": "task"}),
        "job": (SparkSourceV2Config, {"visibility": "job"}),
        "parquet": (SparkSourceV2Config, {"writer": "parquet"}),
    }[way]
    source = job.source(
        kind(
            dataframe_fn=lambda spark: spark.range(0, layout.rows, 1, layout.partitions).mapInArrow(compute, "id long"),
            target_split_bytes=layout.split_bytes(way),
            **choices,
            executor_memory="512m",
            spark_configs={
                "spark.master": master,
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.driver.host": "127.0.0.1",
                "spark.driver.memory": "512m",
                "spark.driver.extraJavaOptions": QUICK_JVM,
                "spark.executor.extraJavaOptions": QUICK_JVM,
                "spark.ui.enabled": "false",
                "spark.ui.showConsoleProgress": "false",
                "spark.executor.cores": "1",
                "spark.executorEnv.PYTHONPATH": os.environ.get("PYTHONPATH", ""),
                f"spark.executorEnv.{TAG}": tag,
                "spark.deploy.maxExecutorRetries": "-1",
                "spark.local.dir": str(root / "spark"),
                "spark.sql.warehouse.dir": str(root / "warehouse"),
                "spark.sql.execution.arrow.maxRecordsPerBatch": str(ROWS_PER_SPLIT),
            },
        )
    )
    scored = source.map(score, workers=2, retries=RETRIES)
    scored.flat_map(cut, retries=RETRIES).sink(
        ParquetSink(root / "out"), workers=2, retries=RETRIES, rebatch_rows=3_000
    )
    return job


def main(root: Path, rows: int, way: str, queue: str, master: str, run: int) -> None:
    """Tell which partitions are there already; then run, and tell how far each stage is."""
    job = make_job(root, Layout(rows), way, queue, master, run)
    opened = open_queue(job.queue)
    _tell(completed=sorted(opened.completed_partitions("source", "0")))
    opened.close()

    def tell_progress(stages: list[StageProgress]) -> None:
        _tell(
            produced=stages[0].produced_records,
            settled={stage.stage: stage.settled + stage.dead for stage in stages[1:]},
            sunk=stages[-1].settled_records,
        )

    result = job.run(tell_progress)
    _tell(dead=result.dead)


def _tell(**what: object) -> None:
    sys.stdout.write(f"{json.dumps(what)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    options = json.loads(sys.argv[1])
    main(Path(options.pop("root")), **options)
