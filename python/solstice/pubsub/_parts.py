"""The parts of a batch: what the planner sends to the tasks, and how a task opens one."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from solstice.errors import PartUnavailableError

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

    @property
    def origin(self) -> dict[str, str]:
        """What names the part to people: dead letters carry it."""
        return {"epoch": self.epoch, "seq": str(self.seq), "part": str(self.index)}

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


@dataclass(frozen=True)
class LogPart(InputPartition):  # type: ignore[misc]
    """A part that is a file of the query's log."""

    location: str
    file: str
    rows: int

    @property
    def origin(self) -> dict[str, str]:
        """What names the part to people: dead letters carry it."""
        name, part, _ = self.file.split(".")
        seq, _, epoch = name.partition("-")
        return {"epoch": epoch, "seq": str(int(seq)), "part": part}

    def open(self) -> "Iterator[pa.RecordBatch]":
        """The rows as raw batches; fails unless all of them are there."""
        import pyarrow as pa

        from solstice.pubsub._log_store import open_store

        seen = 0
        try:
            with open_store(self.location).source(self.file) as source, pa.ipc.open_file(source) as reader:
                for index in range(reader.num_record_batches):
                    batch = reader.get_batch(index)
                    seen += batch.num_rows
                    yield batch
        except FileNotFoundError as error:
            raise PartUnavailableError(
                f"{self.file} is not in the log at {self.location}.",
                remedy="Executors must see logPath as the driver does: on other hosts, use a shared directory or an "
                "object store. If another query took the log over, give each query a logPath of its own.",
            ) from error
        if seen != self.rows:
            raise PartUnavailableError(
                f"{self.file} in the log at {self.location} has {seen} rows, and {self.rows} were written.",
                remedy="The file was changed; restore it.",
            )
