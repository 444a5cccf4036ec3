"""Where the rows of a job end up."""

import copy
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Self

from solstice.pipeline._committing import CommittingDirectory
from solstice.pipeline._queue import Prepared
from solstice.pipeline._split import Split, SplitPayload

if TYPE_CHECKING:
    import pyarrow as pa


class ParquetSink:
    """One parquet file per split in a directory, each there once and whole, whatever crashes.

    Give each sink a directory of its own: the files are named after the splits, and other jobs have splits of the same
    names. A file that is there is never replaced; the job fails instead.
    """

    suffix = ".parquet"

    def __init__(self, path: str | Path, *, compression: str = "zstd") -> None:
        self.path = Path(path).absolute()
        self._compression = compression
        self._owner = "unowned"

    def owned_by(self, queue: str, stage: str) -> Self:
        """This sink as a stage of a job: what the stage has not finished is kept apart from that of all others.

        Not the job's name but its queue tells jobs apart, because there are the records of what is not finished.
        """
        owned = copy.copy(self)
        owned._owner = f"{stage}-{hashlib.sha256(queue.encode()).hexdigest()[:16]}"
        return owned

    @property
    def directory(self) -> CommittingDirectory:
        """The committing protocol on this sink's directory."""
        return CommittingDirectory(self.path, self._owner)

    def write(self, split: Split, payload: SplitPayload) -> Prepared:
        """Write the split's file under its temporary name."""
        table = payload.to_arrow()
        return self.directory.write(
            split.split_id, split.attempt, self.suffix, lambda path: self._write_file(table, path)
        )

    def _write_file(self, table: "pa.Table", path: Path) -> None:
        import pyarrow.parquet as pq

        pq.write_table(table, path, compression=self._compression)

    def __repr__(self) -> str:
        return f"ParquetSink({str(self.path)!r})"
