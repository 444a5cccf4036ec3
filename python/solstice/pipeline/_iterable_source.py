"""Python iterables as the source of a job."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from solstice.errors import ConfigError, PlanChangedError
from solstice.pipeline._queue import BatchRecord, open_queue
from solstice.pipeline._rows import rows_to_arrow
from solstice.pipeline._source_master import BATCH_ID, SourceConfig, SourceContext, SourceMaster, check_positive
from solstice.pipeline._split_writer import Heartbeat, SplitWriter
from solstice.pipeline._store import open_store

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass
class IterableSource(SourceConfig):
    """Tables, frames or rows (dicts) of an iterable, or of a function that returns one.

    Each table is a split (cut if it is larger than ``target_split_bytes``); rows are put together, ``rows_per_split``
    of them. A job that resumes iterates again and skips what is visible, so the iterable has to give the same again,
    cut as before. An iterator, which can be read once only, is for jobs that need no resuming: they refuse it.
    """

    iterable: Iterable[Any] | Callable[[], Iterable[Any]] = ()
    rows_per_split: int = 10_000
    target_split_bytes: int = 32 << 20
    # Whether somebody has begun to iterate: from then on an iterator lacks rows.
    begun: bool = field(default=False, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_positive(self, "rows_per_split", "target_split_bytes")

    def master(self, context: SourceContext) -> "IterableSourceMaster":
        """The master that runs this source."""
        return IterableSourceMaster(context, self)


class PartitionedSourceMaster(SourceMaster):
    """Reads partitions one after the other and makes each visible when it is whole; visible ones are skipped."""

    target_split_bytes = 32 << 20

    def write_partition(self, partition: int, batches: "Iterable[pa.RecordBatch]") -> None:
        """Store the rows of one partition, unless it is visible already."""
        context = self.context
        queue = open_queue(context.queue)
        try:
            with SplitWriter(
                queue,
                open_store(context.payloads),
                stage=context.stage,
                batch_id=BATCH_ID,
                partition=partition,
                attempt=1,
                target_split_bytes=self.target_split_bytes,
                budget_bytes=context.payload_budget,
                sleep=self.pause,
            ) as writer:
                with Heartbeat(context.queue, writer.writer):
                    writer.write(batches)
                writer.publish()
        finally:
            queue.close()

    def record(self, record: BatchRecord, what: str) -> None:
        """Remember what is read and how it is cut into partitions, and refuse to go on with something else."""
        queue = open_queue(self.context.queue)
        try:
            holds = queue.start_batch(self.context.stage, BATCH_ID, record)
        finally:
            queue.close()
        if holds != record:
            raise PlanChangedError(
                f"job {self.context.job!r} has read a part of its {what} as {holds}, and now it is {record}.",
                remedy=f"Restore the {what}; or start over with fresh=True (solstice run --fresh).",
            )

    def visible(self) -> set[int]:
        """The partitions that need not be read."""
        queue = open_queue(self.context.queue)
        try:
            return queue.completed_partitions(self.context.stage, BATCH_ID)
        finally:
            queue.close()

    def end(self) -> None:
        """Record that this was all."""
        queue = open_queue(self.context.queue)
        try:
            queue.end(self.context.stage)
        finally:
            queue.close()


class IterableSourceMaster(PartitionedSourceMaster):
    """Iterates in a thread of the job's process."""

    def __init__(self, context: SourceContext, config: IterableSource) -> None:
        super().__init__(context)
        self._config = config
        self.target_split_bytes = config.target_split_bytes

    def read(self) -> None:
        """Iterate to the end, or until stopped."""
        config, visible = self._config, self.visible()
        items: Iterable[Any] = config.iterable() if callable(config.iterable) else config.iterable
        if items is config.iterable and iter(items) is items and (visible or config.begun):
            if self._has_ended():
                return
            raise PlanChangedError(
                f"job {self.context.job!r} has read a part of the {type(items).__name__} that its IterableSource has,"
                " and it cannot be read again from its beginning.",
                remedy="Pass a function that returns the iterator; or start over with a new one and fresh=True"
                " (solstice run --fresh).",
            )
        config.begun = True
        cutting = f"{config.rows_per_split} rows a split"
        self.record(BatchRecord(cutting, 0, config.target_split_bytes), "rows")
        for partition, table in enumerate(_tables(items, config.rows_per_split)):
            if self._stop.is_set():
                return
            if partition not in visible:
                self.write_partition(partition, table.to_batches())
        self.end()

    def _has_ended(self) -> bool:
        queue = open_queue(self.context.queue)
        try:
            return queue.topic_progress(self.context.stage).ended
        finally:
            queue.close()


def _tables(items: Iterable[Any], rows_per_split: int) -> "Iterator[pa.Table]":
    """Tables as they come; rows in portions."""
    import pyarrow as pa

    rows: list[Any] = []
    for item in items:
        if isinstance(item, Mapping):
            rows.append(item)
            if len(rows) >= rows_per_split:
                yield rows_to_arrow(rows, pa.schema([]), exact=False)
                rows = []
        elif hasattr(item, "__arrow_c_stream__"):
            yield pa.table(item)
        elif hasattr(item, "__arrow_c_array__"):
            yield pa.Table.from_batches([pa.record_batch(item)])
        else:
            raise ConfigError(
                f"the iterable of an IterableSource gave a {type(item).__name__}.",
                option="iterable",
                remedy="Give tables (pyarrow, Polars, pandas) or rows as dicts.",
            )
    if rows:
        yield rows_to_arrow(rows, pa.schema([]), exact=False)
