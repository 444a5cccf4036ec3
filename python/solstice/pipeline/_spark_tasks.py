"""What runs in Spark's Python workers: one partition, written as splits."""

import contextlib
import gc
import json
import os
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Literal

from solstice.errors import PipelineError
from solstice.pipeline._message import QueueMessage
from solstice.pipeline._queue import open_queue
from solstice.pipeline._split_writer import BATCH_COMMIT_S, STREAM_COMMIT_S, Heartbeat, SplitWriter
from solstice.pipeline._store import open_store

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import TaskContext

# Where Spark keeps what a task has to know about its streaming query.
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"

# When the splits of a batch can be seen by workers: when their task is done, or when all are.
Visibility = Literal["task", "job"]

OUTPUT_SCHEMA = "output string"

_frozen_in = 0


@dataclass(frozen=True)
class WriteTarget:
    """Where splits go, with absolute URLs: tasks run in other directories."""

    stage: str
    queue: str
    payloads: str
    target_split_bytes: int
    budget_bytes: int | None = None


@dataclass(frozen=True)
class TaskOutput:
    """What a task has written; ``messages`` are left out when they are in the queue already."""

    partition: int
    writer: str
    stored_bytes: int
    messages: list[QueueMessage]
    query_id: str | None = None

    def to_json(self) -> str:
        """As a task returns it to the driver."""
        fields = vars(self) | {"messages": [message.to_json() for message in self.messages]}
        return json.dumps(fields)

    @classmethod
    def from_json(cls, text: str) -> "TaskOutput":
        """As the driver reads it."""
        fields = json.loads(text)
        return cls(**fields | {"messages": [QueueMessage.from_json(message) for message in fields["messages"]]})


def write_batch_partition(
    target: WriteTarget, batch_id: str, visibility: Visibility, batches: "Iterator[pa.RecordBatch]"
) -> TaskOutput:
    """Write a partition of a batch, and make it visible at once or leave that to the driver."""
    from pyspark import TaskContext

    context = TaskContext.get()
    with _writer(target, batch_id, context) as writer:
        with Heartbeat(target.queue, writer.writer):
            writer.write(batches)
        _require_whole_input()
        messages: list[QueueMessage] = []
        if visibility == "task":
            writer.publish()
        else:
            writer.hand_over(BATCH_COMMIT_S)
            messages = writer.messages
        return TaskOutput(context.partitionId(), writer.writer, writer.stored_bytes, messages)


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
    with _writer(target, f"{stream_id}-{batch}", context) as writer:
        with Heartbeat(target.queue, writer.writer):
            writer.write(batches)
        _require_whole_input()
        writer.hand_over(STREAM_COMMIT_S)
        return TaskOutput(context.partitionId(), writer.writer, writer.stored_bytes, writer.messages, query_id)


def map_in_arrow(
    target: WriteTarget, batch_id: str, visibility: Visibility, batches: "Iterator[pa.RecordBatch]"
) -> "Iterator[pa.RecordBatch]":
    """``write_batch_partition`` in the form that ``DataFrame.mapInArrow`` calls, with rows of ``OUTPUT_SCHEMA``."""
    import pyarrow as pa

    output = write_batch_partition(target, batch_id, visibility, batches)
    yield pa.record_batch({"output": pa.array([output.to_json()])})


@contextlib.contextmanager
def _writer(target: WriteTarget, batch_id: str, context: "TaskContext") -> Iterator[SplitWriter]:
    _freeze_once()
    with (
        contextlib.closing(open_queue(target.queue)) as queue,
        contextlib.closing(open_store(target.payloads)) as store,
        SplitWriter(
            queue,
            store,
            stage=target.stage,
            batch_id=batch_id,
            partition=context.partitionId(),
            attempt=context.attemptNumber() + 1,
            target_split_bytes=target.target_split_bytes,
            budget_bytes=target.budget_bytes,
        ) as writer,
    ):
        yield writer


def _require_whole_input() -> None:
    """Raise if Spark has hung up: its task failed or was killed, or its JVM is gone.

    Arrow takes the end of a connection for the end of the data. What came before would then be published as the whole
    partition, and no later attempt at it would be visible. A whole input leaves the connection open: Spark waits for
    what this task returns.
    """
    connection = _connection()
    if connection is None:
        raise PipelineError(
            "this Spark does not show a task its connection: a broken one would be taken for the end of its rows.",
            remedy="Use pyspark 4.2 or newer.",
        )
    try:
        with socket.socket(fileno=os.dup(connection)) as peer:
            hung_up = peer.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return
    except OSError:
        hung_up = True
    if hung_up:
        raise PipelineError("Spark has ended this task in the middle of its rows.", remedy="Nothing of it is visible.")


def _connection() -> int | None:
    """The descriptor of Spark's connection to this worker: the worker's main function, which called us, has it."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        infile = frame.f_locals.get("infile") if frame.f_code.co_name == "main" else None
        if infile is not None:
            return int(infile.fileno())
        frame = frame.f_back
    return None


def _freeze_once() -> None:
    """Spark collects garbage after every task; what is imported by now is none, and looking through it takes 40 ms."""
    global _frozen_in
    if _frozen_in != os.getpid():
        _frozen_in = os.getpid()
        gc.freeze()
