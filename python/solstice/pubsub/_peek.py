"""The batch reader: a look at what a subscription holds.

A batch query has no commit, and its planner is gone before its tasks run. So the planner takes messages, gives them
back, and puts their rows into the partitions. Nothing is ever acknowledged.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from solstice._core.options import OptionValues
from solstice._core.portable import Portable
from solstice.errors import PermissionDeniedError
from solstice.pubsub import _cluster
from solstice.pubsub._admin import Admin
from solstice.pubsub._connection import connection, connection_keywords
from solstice.pubsub._options import resource_name
from solstice.pubsub._pull import pull
from solstice.pubsub._shape import Shape

if TYPE_CHECKING:
    import pyarrow as pa

_LARGEST_MESSAGE_BYTES = 10 << 20
_MAX_BYTES = 64_000_000
_BATCH_ROWS = 10_000


@dataclass(frozen=True)
class PeekPart(InputPartition):  # type: ignore[misc]
    """Rows as an Arrow stream."""

    index: int
    rows: bytes


class PeekReader(Portable, DataSourceReader):  # type: ignore[misc]
    """Spark's view of what a subscription holds now. Every action on the DataFrame peeks anew."""

    def __init__(self, values: OptionValues, shape: Shape) -> None:
        self._values = values
        self._shape = shape
        self._subscription = resource_name("subscriptions", values["subscriptionId"], values)
        connection(values)  # so that a wrong address is said here

    def partitions(self) -> list[PeekPart]:
        """Take messages and give them back; runs on the driver."""
        import pyarrow as pa

        self._warn_of_dead_letters()
        batches = self._take()
        total = sum(batch.num_rows for batch in batches)
        if total == 0:
            return []
        table = pa.Table.from_batches(batches)
        count = min(total, self._values["numPartitions"] or _cluster.driver().cores)
        bounds = [total * index // count for index in range(count + 1)]
        return [
            PeekPart(index, _to_bytes(table.slice(bounds[index], bounds[index + 1] - bounds[index])))
            for index in range(count)
        ]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        """The rows of one part; runs in a worker."""
        if not isinstance(partition, PeekPart):  # Spark's way to run a plan without partitions
            return
        import pyarrow as pa

        with pa.ipc.open_stream(partition.rows) as rows:
            yield from self._shape.rows(rows, {"part": str(partition.index)})

    def _take(self) -> "list[pa.RecordBatch]":
        values, most = self._values, self._values["maxMessages"]
        selection = self._shape.selection()
        keywords: dict[str, Any] = connection_keywords(values)
        puller = pull(
            self._subscription,
            columns=selection.columns,
            attribute_columns=selection.attribute_columns,
            max_outstanding_messages=most,
            # Room for one message more than the bound, or large ones would stop just before it and be waited for.
            max_outstanding_bytes=_MAX_BYTES + _LARGEST_MESSAGE_BYTES,
            max_batch_rows=min(most, _BATCH_ROWS),
            ack_deadline_s=values["ackDeadline"],
            idle_s=values["availableNowIdle"],
            **keywords,
        )
        batches: list[pa.RecordBatch] = []
        rows = size = 0
        with puller:  # leaving it gives everything back
            for batch in puller:
                batches.append(batch.rows.slice(0, most - rows))
                rows += batches[-1].num_rows
                size += batches[-1].nbytes
                if rows == most or size >= _MAX_BYTES:
                    break
        return batches

    def _warn_of_dead_letters(self) -> None:
        try:
            settings = Admin.of(self._values).get_subscription(self._subscription)
        except PermissionDeniedError:
            return  # whoever may pull need not be allowed to read the settings
        if settings["dead_letter_topic"]:
            logging.getLogger(__name__).warning(
                "%s has a dead-letter policy: each peek counts as a delivery, and after %s of them Pub/Sub moves a "
                "message to %s.",
                self._subscription,
                settings["max_delivery_attempts"],
                settings["dead_letter_topic"],
            )


def _to_bytes(table: "pa.Table") -> bytes:
    import pyarrow as pa

    target = pa.BufferOutputStream()
    with pa.ipc.new_stream(target, table.schema) as writer:
        writer.write_table(table)
    buffer: bytes = target.getvalue().to_pybytes()
    return buffer
