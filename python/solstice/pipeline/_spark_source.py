"""Spark as the source of a job: its tasks write splits themselves, so that workers start while Spark still runs."""

import functools
import hashlib
import os
import re
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from solstice.errors import ConfigError, PipelineError, PlanChangedError, StreamResetError
from solstice.pipeline._queue import BatchRecord, open_queue
from solstice.pipeline._source_master import SourceConfig, SourceContext, SourceMaster
from solstice.pipeline._spark_session import activate, build_session, running_session
from solstice.pipeline._spark_tasks import WriteTarget, map_in_arrow

_BATCH_ID = "0"  # a job of ours has one batch
_STREAM_ID = "main"  # and a streaming one has one stream
_POLL_S = 0.2


@dataclass
class SparkSourceV2Config(SourceConfig):
    """A DataFrame, batch or streaming, as a source.

    ``dataframe_fn`` gets the session: the running one if there is one, else one that is built from ``app_name``,
    ``spark_configs`` and the executor fields, and stopped at the end. ``parallelism`` repartitions. ``trigger`` is for
    streams: an interval such as ``"1 second"``, or the keywords of ``DataStreamWriter.trigger``.
    """

    app_name: str = "solstice-spark-v2"
    num_executors: int = 1
    executor_cores: int = 2
    executor_memory: str = "1g"
    spark_configs: dict[str, str] = field(default_factory=dict)
    dataframe_fn: Callable[[Any], Any] | None = None
    parallelism: int | None = None
    trigger: str | Mapping[str, Any] | None = None
    target_split_bytes: int = 32 << 20

    def master(self, context: SourceContext) -> "SparkSourceV2Master":
        """The master that runs this source."""
        if self.dataframe_fn is None:
            raise ConfigError(
                "SparkSourceV2Config has no dataframe_fn.",
                option="dataframe_fn",
                remedy="Pass a function that takes the Spark session and returns a DataFrame.",
            )
        return SparkSourceV2Master(context, self, self.dataframe_fn)

    def settings(self) -> dict[str, str]:
        """The Spark settings that the fields stand for; ``spark_configs`` wins."""
        return {
            "spark.master": f"local[{self.num_executors * self.executor_cores}]",
            "spark.executor.instances": str(self.num_executors),
            "spark.executor.cores": str(self.executor_cores),
            "spark.executor.memory": self.executor_memory,
        } | self.spark_configs


class SparkSourceV2Master(SourceMaster):
    """Runs the Spark job of a source. No row and no split passes through here."""

    def __init__(self, context: SourceContext, config: SparkSourceV2Config, function: Callable[[Any], Any]) -> None:
        super().__init__(context)
        self._config = config
        self._function = function
        self._target = WriteTarget(context.stage, context.queue, context.payloads, config.target_split_bytes)
        self._group = f"solstice-{uuid.uuid4().hex}"
        self._running: Any = None
        self._session: Any = None
        self._is_batch = False
        self._session_lock = threading.Lock()

    def start(self) -> None:
        """Begin to read. The session of the calling thread is used if it has one."""
        self._running = running_session()
        super().start()

    def stop(self) -> None:
        """End the query, or cancel the Spark job: partitions that are done stay done."""
        super().stop()
        with self._session_lock:
            if self._session is not None and self._is_batch:
                self._session.sparkContext.cancelJobGroup(self._group)

    def read(self) -> None:
        """Get the DataFrame and write it out."""
        self._session = self._running or build_session(self._config.app_name, self._config.settings())
        try:
            activate(self._session)
            frame = self._function(self._session)
            if not hasattr(frame, "isStreaming"):
                raise ConfigError(
                    f"dataframe_fn returned a {type(frame).__name__}.",
                    option="dataframe_fn",
                    remedy="Return a Spark DataFrame.",
                )
            if self._config.parallelism:
                frame = frame.repartition(self._config.parallelism)
            if self._stop.is_set():
                return
            if frame.isStreaming:
                self._write_stream(frame)
            else:
                self._write_batch(frame)
        finally:
            with self._session_lock:
                session, self._session = self._session, None
            if self._running is None:
                session.stop()

    def _write_batch(self, frame: Any) -> None:
        # Before the partitions are asked for: to plan them, Spark may have to run the stages below.
        self._is_batch = True
        context = self._session.sparkContext
        context.setJobGroup(self._group, f"solstice {self.context.job}", interruptOnCancel=False)
        write = functools.partial(map_in_arrow, self._target, _BATCH_ID)
        partitions = frame.mapInArrow(write, "partition long").rdd
        record = BatchRecord(_fingerprint(frame), partitions.getNumPartitions(), self._config.target_split_bytes)
        queue = open_queue(self.context.queue)
        try:
            holds = queue.start_batch(self.context.stage, _BATCH_ID, record)
            if holds != record:
                raise PlanChangedError(
                    f"job {self.context.job!r} has written a part of its input as {holds}, and now it is {record}.",
                    remedy="Restore the query and its input; or, to start over, "
                    f"remove {self.context.state} and the output.",
                )
            done = queue.completed_partitions(self.context.stage, _BATCH_ID)
            missing = sorted(set(range(record.partitions)) - done)
            if self._stop.is_set():
                return  # the stop came while Spark planned, and found no job to cancel
            if missing:
                context.runJob(partitions, _as_it_is, missing)
            done = queue.completed_partitions(self.context.stage, _BATCH_ID)
            if len(done) != record.partitions:
                raise PipelineError(
                    f"Spark has ended, but only {len(done)} of {record.partitions} partitions are visible."
                )
            queue.end(self.context.stage)
        finally:
            queue.close()

    def _write_stream(self, frame: Any) -> None:
        checkpoint = self.context.state / "checkpoint" / self.context.stage
        writer = (
            frame.writeStream.format("solstice")
            .option("job", self.context.job)
            .option("stage", self.context.stage)
            .option("queue", self.context.queue)
            .option("payloads", self.context.payloads)
            .option("streamId", _STREAM_ID)
            .option("targetSplitBytes", str(self._config.target_split_bytes))
            .option("checkpointLocation", str(checkpoint))
            .queryName(f"{self.context.job}-{self.context.stage}")
        )
        trigger = self._config.trigger
        if trigger is not None:
            writer = writer.trigger(**({"processingTime": trigger} if isinstance(trigger, str) else dict(trigger)))
        query = writer.start()
        try:
            while query.isActive and not self._stop.wait(_POLL_S):
                pass
        finally:
            query.stop()
        if (error := query.exception()) is not None and not self._stop.is_set():
            raise _translated(error)


def _as_it_is(rows: Any) -> Any:
    return rows


def _fingerprint(frame: Any) -> str:
    """A name for what a batch reads: the plan without what differs from run to run, and the input files and times."""
    plan = frame._jdf.queryExecution().optimizedPlan().toString()
    plan = re.sub(r"#\d+L?|@[0-9a-f]+|plan_id=\d+", "", plan)
    digest = hashlib.sha256(plan.encode())
    for name in sorted(frame.inputFiles()):
        digest.update(f"{name} {input_version(name)}\n".encode())
    return digest.hexdigest()[:16]


def input_version(name: str) -> str:
    """What tells one content of an input file from another. ``name`` is a URL as Spark writes it, percent-encoded."""
    url = urlsplit(name)
    if url.scheme != "file":
        return ""
    try:
        status = os.stat(unquote(url.path))
    except FileNotFoundError:
        return "absent"
    return f"{status.st_mtime_ns} {status.st_size}"


def _translated(error: Exception) -> Exception:
    """Spark wraps what a writer raised into its own error as text; give ours its class back."""
    match = re.search(r"solstice\.errors\.StreamResetError: (.*)", str(error))
    return StreamResetError(match[1]) if match else error
