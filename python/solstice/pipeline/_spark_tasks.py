"""What runs in Spark's Python workers: one partition, written as splits."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from solstice.errors import PipelineError
from solstice.pipeline._message import QueueMessage
from solstice.pipeline._queue import Queue, open_queue
from solstice.pipeline._split_writer import Heartbeat, SplitWriter
from solstice.pipeline._store import open_store

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import TaskContext

# Where Spark keeps what a task has to know about its streaming query.
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"


@dataclass(frozen=True)
class WriteTarget:
    """Where splits go, with absolute URLs: tasks run in other directories."""

    stage: str
    queue: str
    payloads: str
    target_split_bytes: int


@dataclass(frozen=True)
class TaskOutput:
    """What a task has written. ``visible`` says whether its attempt was the first; a stream's becomes so later."""

    partition: int
    writer: str
    messages: list[QueueMessage]
    visible: bool
    query_id: str | None = None


def write_batch_partition(target: WriteTarget, batch_id: str, batches: "Iterator[pa.RecordBatch]") -> TaskOutput:
    """Write a partition of a batch and make it visible at once."""
    from pyspark import TaskContext

    context = TaskContext.get()
    queue = open_queue(target.queue)
    try:
        with _writer(target, queue, batch_id, context) as writer:
            with Heartbeat(target.queue, writer.writer):
                writer.write(batches)
            visible = writer.publish()
            return TaskOutput(context.partitionId(), writer.writer, writer.messages, visible)
    finally:
        queue.close()


def write_stream_partition(target: WriteTarget, stream_id: str, batches: "Iterator[pa.RecordBatch]") -> TaskOutput:
    """Write a partition of a micro-batch; the driver's commit makes it visible."""
    from pyspark import TaskContext

    context = TaskContext.get()
    query_id, batch = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
    if not query_id or not batch:
        raise PipelineError(
            f"this Spark does not tell a task its streaming query ({_QUERY_ID}={query_id!r}, {_BATCH_ID}={batch!r}).",
            remedy="Use pyspark 4.2 or newer, and no foreachBatch around the write.",
        )
    queue = open_queue(target.queue)
    try:
        with _writer(target, queue, f"{stream_id}-{batch}", context) as writer:
            with Heartbeat(target.queue, writer.writer):
                writer.write(batches)
            writer.hand_over()
            return TaskOutput(context.partitionId(), writer.writer, writer.messages, False, query_id)
    finally:
        queue.close()


def map_in_arrow(target: WriteTarget, batch_id: str, batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    """``write_batch_partition`` in the form that ``DataFrame.mapInArrow`` calls."""
    import pyarrow as pa

    output = write_batch_partition(target, batch_id, batches)
    yield pa.record_batch({"partition": pa.array([output.partition], pa.int64())})


def _writer(target: WriteTarget, queue: Queue, batch_id: str, context: "TaskContext") -> SplitWriter:
    return SplitWriter(
        queue,
        open_store(target.payloads),
        stage=target.stage,
        batch_id=batch_id,
        partition=context.partitionId(),
        attempt=context.attemptNumber() + 1,
        target_split_bytes=target.target_split_bytes,
    )
