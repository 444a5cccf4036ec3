"""A source without Spark, and what the tests of jobs share."""

import threading
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from solstice._core.retry import RetryPolicy
from solstice.pipeline import Job, ParquetSink, SourceMaster
from solstice.pipeline._queue import open_queue
from solstice.pipeline._source_master import SourceConfig, SourceContext
from solstice.pipeline._split_writer import SplitWriter
from solstice.pipeline._store import open_store


@dataclass
class TableSource(SourceConfig):
    """``splits`` splits of ``rows`` rows each, numbered; an endless one gives one at a time until it is stopped."""

    splits: int = 6
    rows: int = 10
    endless: bool = False
    error: Exception | None = field(default=None)

    def master(self, context: SourceContext) -> "TableSourceMaster":
        return TableSourceMaster(context, self)


class TableSourceMaster(SourceMaster):
    def __init__(self, context: SourceContext, config: TableSource) -> None:
        super().__init__(context)
        self.config = config

    def read(self) -> None:
        queue, store, config = open_queue(self.context.queue), open_store(self.context.payloads), self.config
        done = queue.completed_partitions(self.context.stage, "0")
        partition = 0
        while config.endless or partition < config.splits:
            if self._stop.wait(0.02 if config.endless else 0.0):  # what nobody could settle meanwhile has to be drained
                break
            if partition not in done:
                table = pa.table({"id": range(partition * config.rows, (partition + 1) * config.rows)})
                with SplitWriter(
                    queue,
                    store,
                    stage=self.context.stage,
                    batch_id="0",
                    partition=partition,
                    attempt=1,
                    target_split_bytes=1 << 20,
                ) as writer:
                    writer.write(table.to_batches())
                    writer.publish()
            partition += 1
        else:
            if config.error is not None:
                raise config.error
            queue.end(self.context.stage)
        queue.close()


class Stuck(SourceConfig):
    """A source that neither reads nor stops."""

    def master(self, context):
        return StuckMaster(context)


class StuckMaster(SourceMaster):
    """The one that is stuck."""

    def read(self) -> None:
        threading.Event().wait()


def make_job(root: Path, source: SourceConfig | None = None, **options) -> Job:
    """A job in ``root`` whose splits come again quickly."""
    options = {"backoff": RetryPolicy(initial_s=0.01, max_s=0.05), "lease_s": 10.0} | options
    job = Job("numbers", state=root / "state", **options)
    job.source(source or TableSource())
    return job


def read_source(job: Job) -> None:
    """Read the first source to its end before the job runs."""
    stage = job.stages[0]
    stage.work.master(SourceContext(job.name, stage.name, job.queue, job.payloads, job.state)).read()


def output_ids(root: Path) -> list[int]:
    """Every id in the output, sorted; read file by file, so that nothing is hidden."""
    ids = []
    for path in (root / "out").glob("*.parquet"):
        ids += pq.read_table(path)["id"].to_pylist()
    return sorted(ids)


def temporary_files(root: Path) -> list[Path]:
    return [path for path in (root / "out" / "_tmp").rglob("*") if path.is_file()]


def sink(root: Path) -> ParquetSink:
    return ParquetSink(root / "out")
