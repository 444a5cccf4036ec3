"""What all sources that are Spark DataFrames share: the session, and a batch that is resumed partition by partition."""

import functools
import threading
import uuid
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from solstice._core.arrow import to_arrow_schema
from solstice.errors import ConfigError, PipelineError, PlanChangedError
from solstice.pipeline._budget import warn_of_a_full_disk, warn_of_overshoot
from solstice.pipeline._queue import BatchRecord, Queue, WrittenPartition, open_queue
from solstice.pipeline._source_master import BATCH_ID, SourceConfig, SourceContext, SourceMaster, check_positive
from solstice.pipeline._spark_batch import estimated_bytes, fingerprint, run_partitions
from solstice.pipeline._spark_session import POOL, activate, running_session
from solstice.pipeline._spark_tasks import OUTPUT_SCHEMA, TaskOutput, Visibility, WriteTarget, map_in_arrow
from solstice.pipeline._store import open_store


@dataclass
class SparkConfig(SourceConfig):
    """The fields of every Spark source.

    ``dataframe_fn`` gets the session: the running one if there is one, else one that is built from ``app_name``,
    ``spark_configs`` and the executor fields, and stopped at the end. ``parallelism`` repartitions.
    """

    app_name: str = "solstice-spark"
    num_executors: int = 1
    executor_cores: int = 2
    executor_memory: str = "1g"
    spark_configs: dict[str, str] = field(default_factory=dict)
    dataframe_fn: Callable[[Any], Any] | None = None
    parallelism: int | None = None
    target_split_bytes: int = 32 << 20

    def __post_init__(self) -> None:
        check_positive(self, "num_executors", "executor_cores", "parallelism", "target_split_bytes")

    def settings(self) -> dict[str, str]:
        """The Spark settings that the fields stand for; ``spark_configs`` wins."""
        return {
            "spark.master": f"local[{self.num_executors * self.executor_cores}]",
            "spark.executor.instances": str(self.num_executors),
            "spark.executor.cores": str(self.executor_cores),
            "spark.executor.memory": self.executor_memory,
        } | self.spark_configs

    def frame_of(self, session: Any) -> Any:
        """The DataFrame, checked."""
        if not callable(self.dataframe_fn):
            raise ConfigError(
                f"the dataframe_fn of {type(self).__name__} is {self.dataframe_fn!r}.",
                option="dataframe_fn",
                remedy="Pass a function that takes the Spark session and returns a DataFrame.",
            )
        frame = self.dataframe_fn(session)
        if not hasattr(frame, "_jdf"):
            raise ConfigError(
                f"dataframe_fn returned a {type(frame).__name__}.",
                option="dataframe_fn",
                remedy="Return a DataFrame of the session that it gets; a DataFrame of Spark Connect is written by "
                'df.write.format("solstice").',
            )
        to_arrow_schema(frame.schema)  # refuses, with the column, what has no Arrow type
        return frame.repartition(self.parallelism) if self.parallelism else frame


class SparkMaster(SourceMaster):
    """Runs the Spark job of a source."""

    def __init__(self, context: SourceContext, config: SparkConfig) -> None:
        super().__init__(context)
        self._config = config
        self._target = WriteTarget(
            context.stage, context.queue, context.payloads, config.target_split_bytes, context.payload_budget
        )
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
        self._session = POOL.take(self._running, self._config.app_name, self._config.settings())
        try:
            activate(self._session)
            frame = self._config.frame_of(self._session)
            if not self._stop.is_set():
                self._write(frame)
        finally:
            with self._session_lock:
                session, self._session = self._session, None
            POOL.give_back(session)

    @abstractmethod
    def _write(self, frame: Any) -> None:
        """Write a frame out, whatever it is."""

    def _write_batch(self, frame: Any, visibility: Visibility) -> None:
        """Compute the partitions that are not visible, and make them so."""
        self._begin_batch(frame)
        write = functools.partial(map_in_arrow, self._target, BATCH_ID, visibility)
        outputs = frame.mapInArrow(write, OUTPUT_SCHEMA).rdd
        partitions = outputs.getNumPartitions()
        estimate = estimated_bytes(frame)
        if visibility == "job":
            warn_of_a_full_disk(self.context.stage, estimate, open_store(self.context.payloads))
        else:
            self._warn_of_overshoot(estimate // max(partitions, 1))

        def compute(queue: Queue, missing: list[int]) -> None:
            written = run_partitions(self._session, outputs, missing)
            self._warn_of_overshoot(max((output.stored_bytes for output in written), default=0))
            if visibility == "job":
                self._publish(queue, written)

        self._resume_batch(fingerprint(frame, visibility), partitions, compute)

    def _begin_batch(self, frame: Any) -> None:
        # Before the partitions are asked for: to plan them, Spark may have to run the stages below.
        self._is_batch = True
        self._session.sparkContext.setJobGroup(self._group, f"solstice {self.context.job}", interruptOnCancel=False)

    def _resume_batch(self, name: str, partitions: int, compute: Callable[[Queue, list[int]], None]) -> None:
        """Call ``compute`` with the partitions that are missing, and end the stage when none is."""
        stage, record = self.context.stage, BatchRecord(name, partitions, self._config.target_split_bytes)
        queue = open_queue(self.context.queue)
        try:
            holds = queue.start_batch(stage, BATCH_ID, record)
            if holds != record:
                raise PlanChangedError(
                    f"job {self.context.job!r} has written a part of its input as {holds}, and now it is {record}.",
                    remedy="Restore the query, its input and how it is written; or, to start over, run with --fresh"
                    " (job.run(fresh=True)) and an empty output.",
                )
            missing = sorted(set(range(partitions)) - queue.completed_partitions(stage, BATCH_ID))
            if self._stop.is_set():
                return  # the stop came while Spark planned, and found no job to cancel
            if missing:
                compute(queue, missing)
            done = queue.completed_partitions(stage, BATCH_ID)
            if len(done) != partitions:
                raise PipelineError(f"Spark has ended, but only {len(done)} of {partitions} partitions are visible.")
            queue.end(stage)
        finally:
            queue.close()

    def _publish(self, queue: Queue, written: Sequence[TaskOutput]) -> None:
        """Make all partitions visible; what other attempts at them wrote can become so no more."""
        partitions = [WrittenPartition(output.partition, output.writer, output.messages) for output in written]
        queue.publish_batch(self.context.stage, BATCH_ID, partitions)
        queue.fence([self.context.stage])

    def _warn_of_overshoot(self, task_bytes: int) -> None:
        if (budget := self.context.payload_budget) is not None:
            slots = self._session.sparkContext.defaultParallelism
            warn_of_overshoot(self.context.stage, task_bytes, slots, budget)
