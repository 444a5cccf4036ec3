"""The parts of a batch: what the planner sends to the tasks, and how a task opens one."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class AgentPart(InputPartition):  # type: ignore[misc]
    """A part that the agent of the query holds."""

    socket: str
    token: str = field(repr=False)
    epoch: str
    seq: int
    index: int
    rows: int

    @property
    def origin(self) -> dict[str, str]:
        """What names the part to people: dead letters carry it."""
        return {"epoch": self.epoch, "seq": str(self.seq), "part": str(self.index)}

    def open(self) -> "pa.RecordBatchReader":
        """The rows as raw batches; the reader fails unless all of them come."""
        import pyarrow as pa

        from solstice import _native

        part = _native.read_part(
            self.socket, token=self.token, epoch=self.epoch, seq=self.seq, index=self.index, rows=self.rows
        )
        return pa.RecordBatchReader.from_stream(part)
