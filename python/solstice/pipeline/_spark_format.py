"""``format("solstice")``: Spark writes a DataFrame, batch or streaming, into a stage of a job."""

import uuid
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from solstice._core.arrow import to_arrow_schema
from solstice._core.options import Option, OptionTable, OptionValues, size_bytes, text
from solstice.pipeline._budget import budget_bytes
from solstice.pipeline._paths import absolute_url, local_url
from solstice.pipeline._queue import Queue, open_queue, queue_url
from solstice.pipeline._spark_tasks import TaskOutput, WriteTarget, write_batch_partition, write_stream_partition
from solstice.pipeline._stage import check_name
from solstice.pipeline._state import state_directory
from solstice.pipeline._store import open_store, own_place

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

OPTIONS = OptionTable(
    "solstice",
    [
        Option("job", text(), "The job whose stage is written to.", required=True),
        Option("stage", text(), "The stage, as the job names it.", required=True),
        Option("queue", text(), "URL of the job's queue; by default the one in its state directory."),
        Option("payloads", text(), "URL of the job's payload store; by default the one in its state directory."),
        Option("streamId", text(), "Names a stream: its batches are taken once and in sequence.", default="default"),
        Option("batch", text(), "Names a batch write: a repeated partition of it is discarded. Default: a new name."),
        Option("targetSplitBytes", size_bytes(minimum=1), "Size of a split.", default="32mib", unit="bytes"),
        Option(
            "payloadBudget",
            size_bytes(minimum=1),
            "Payload bytes of the job beyond which tasks wait for its workers. Default: as for a job.",
            unit="bytes",
        ),
    ],
)

# Spark hands its own options to the writer as well.
_OF_SPARK = frozenset({"checkpointlocation", "path", "queryname"})


@dataclass
class CommitMessage(WriterCommitMessage):  # type: ignore[misc]
    """What a task tells the driver."""

    output: TaskOutput


class SolsticeDataSource(DataSource):  # type: ignore[misc]
    """Found by Spark under the name ``solstice`` because the package ``pyspark_solstice`` exports it."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._values = OPTIONS.parse({name: value for name, value in options.items() if name.lower() not in _OF_SPARK})

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "solstice"

    def writer(self, schema: "StructType", overwrite: bool) -> "SplitBatchWriter":
        """The writer of a batch."""
        # One writer object serves all tasks of a write, so this names the write.
        batch_id = self._values["batch"] or uuid.uuid4().hex[:12]
        to_arrow_schema(schema)  # refuses, with the column, what has no Arrow type
        return SplitBatchWriter(_target(self._values), check_name("batch", batch_id))

    def streamWriter(self, schema: "StructType", overwrite: bool) -> "SplitStreamWriter":
        """The writer of a stream."""
        to_arrow_schema(schema)
        return SplitStreamWriter(_target(self._values), check_name("streamId", self._values["streamId"]))


class SplitBatchWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """Each task makes its own splits visible when it is done; the first attempt at a partition wins."""

    def __init__(self, target: WriteTarget, batch_id: str) -> None:
        self._target = target
        self._batch_id = batch_id

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> CommitMessage:
        """In a task."""
        return CommitMessage(write_batch_partition(self._target, self._batch_id, "task", iterator))

    def commit(self, messages: Sequence[Any]) -> None:
        """In the driver. There is nothing left to do, and whether more writes follow only the caller knows."""

    def abort(self, messages: Sequence[Any]) -> None:
        """In the driver. What other tasks made visible stays: a repeat under the same ``batch`` completes it."""


class SplitStreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """Tasks write, the driver's commit makes visible: a repeated batch may be partitioned in another way."""

    def __init__(self, target: WriteTarget, stream_id: str) -> None:
        self._target = target
        self._stream_id = stream_id

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> CommitMessage:
        """In a task."""
        return CommitMessage(write_stream_partition(self._target, self._stream_id, iterator))

    def commit(self, messages: Sequence[Any], batchId: int) -> None:
        """In the driver, once per batch, or again after a crash."""
        outputs = _outputs(messages)
        queue = open_queue(self._target.queue)
        try:
            visible = queue.publish_stream_batch(
                self._target.stage,
                self._stream_id,
                outputs[0].query_id if outputs else None,
                batchId,
                [output.writer for output in outputs],
                [message for output in outputs for message in output.messages],
            )
            if not visible:
                self._discard(queue, outputs)
        finally:
            queue.close()

    def abort(self, messages: Sequence[Any], batchId: int) -> None:
        """In the driver: forget what the tasks wrote. Spark also calls this after a commit that it did not see end."""
        queue = open_queue(self._target.queue)
        try:
            self._discard(queue, _outputs(messages))
        finally:
            queue.close()

    def _discard(self, queue: Queue, outputs: Sequence[TaskOutput]) -> None:
        """Remove what was not published: a writer that is still known has not, and once withdrawn it never will."""
        store = open_store(self._target.payloads)
        for output in outputs:
            if queue.withdraw_writer(output.writer):
                store.clear(f"{self._target.stage}/{output.writer}")


def _outputs(messages: Sequence[Any]) -> list[TaskOutput]:
    """Of the tasks that have ended: a failed one has no message."""
    return [message.output for message in messages if message is not None]


def _target(values: OptionValues) -> WriteTarget:
    state = state_directory(check_name("job", values["job"]))
    queue = queue_url(values["queue"] or local_url("sqlite", state / "queue.db"), values["job"])
    payloads = absolute_url(values["payloads"] or local_url("file", state / "payloads"))
    payloads = own_place(payloads, values["job"], queue)
    return WriteTarget(
        check_name("stage", values["stage"]),
        queue,
        payloads,
        values["targetSplitBytes"],
        budget_bytes(values["payloadBudget"], open_store(payloads)),
    )
