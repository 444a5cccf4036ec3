"""Spark as a source, the first way: tasks write splits, the driver collects where they are and hands them out.

``SparkSourceV2Config`` is the better choice: there, workers start while Spark still runs.
"""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from solstice.errors import ConfigError
from solstice.pipeline._message import QueueMessage, payload_ref
from solstice.pipeline._queue import Queue
from solstice.pipeline._source_master import Source, SourceContext
from solstice.pipeline._spark_master import SparkConfig, SparkMaster
from solstice.pipeline._spark_tasks import TaskOutput
from solstice.pipeline._split import Split, SplitPayload
from solstice.pipeline._store import SplitPayloadStore, open_store


@dataclass
class SparkSourceConfig(SparkConfig):
    """A batch DataFrame as a source whose splits the driver plans. For the fields see ``SparkSourceV2Config``."""

    def master(self, context: SourceContext) -> "SparkSourceMaster":
        """The master that runs this source."""
        return SparkSourceMaster(context, self)

    def source(self, payloads: str) -> "SparkSource":
        """What workers read the splits with."""
        return SparkSource(payloads)


class SparkSource(Source):
    """Reads in a worker what a Spark task has written."""

    def __init__(self, payloads: str) -> None:
        self._payloads = payloads

    def read(self, split: Split) -> SplitPayload | None:
        """The rows at the URI of a split."""
        return self._store.get(payload_ref(split.metadata["stored_key"], split.metadata))

    @functools.cached_property
    def _store(self) -> SplitPayloadStore:
        return open_store(self._payloads)


class SparkSourceMaster(SparkMaster):
    """Runs the Spark job to its end, then plans its splits."""

    def __init__(self, context: SourceContext, config: SparkSourceConfig) -> None:
        super().__init__(context, config)
        self._written: Sequence[TaskOutput] = ()

    def plan_splits(self) -> Iterator[Split]:
        """The splits that the tasks have written, as references."""
        for output in self._written:
            for message in output.messages:
                yield Split(
                    message.split_id,
                    self.context.stage,
                    metadata=message.metadata | {"stored_key": message.payload_key},
                )

    def _write(self, frame: Any) -> None:
        if frame.isStreaming:
            raise ConfigError(
                "SparkSourceConfig cannot read a streaming DataFrame: it plans its splits when Spark has ended.",
                option="dataframe_fn",
                remedy="Use SparkSourceV2Config.",
            )
        self._write_batch(frame, "job")

    def _publish(self, queue: Queue, written: Sequence[TaskOutput]) -> None:
        self._written = written
        messages: dict[int, list[QueueMessage]] = {output.partition: [] for output in written}
        for number, split in enumerate(self.plan_splits()):
            messages[split.metadata["partition"]].append(
                QueueMessage(f"{self.context.stage}_{number}", split.split_id, "", split.metadata)
            )
        super()._publish(
            queue,
            [
                TaskOutput(output.partition, output.writer, output.stored_bytes, messages[output.partition])
                for output in written
            ],
        )
