"""The parts of a batch: what the planner sends to the tasks, and how a task opens one."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class AgentPart(InputPartition):  # type: ignore[misc]
    """A part that the agent of the query holds.

    A worker that does not see the socket is on another host and comes to ``host`` (empty: Spark's driver) and ``port``.
    """

    socket: str
    host: str
    port: int | None
    token: str = field(repr=False)
    epoch: str
    seq: int
    index: int
    rows: int

    def open(self) -> "pa.RecordBatchReader":
        """The rows as raw batches; the reader fails unless all of them come."""
        import pyarrow as pa

        from solstice import _native
        from solstice.pubsub._cluster import executor

        ours = executor()
        host = self.host or (ours.driver_host if ours else "")
        part = _native.read_part(
            self.socket,
            (host, self.port) if host and self.port else None,
            token=self.token,
            epoch=self.epoch,
            seq=self.seq,
            index=self.index,
            rows=self.rows,
            executor=(ours.id, ours.cores) if ours else None,
        )
        return pa.RecordBatchReader.from_stream(part)
