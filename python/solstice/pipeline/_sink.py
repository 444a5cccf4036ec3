"""Where the rows of a job end up."""

from pathlib import Path
from typing import TYPE_CHECKING

from solstice.pipeline._committing import CommittingDirectory
from solstice.pipeline._queue import Prepared
from solstice.pipeline._split import Split, SplitPayload

if TYPE_CHECKING:
    import pyarrow as pa


class ParquetSink:
    """One parquet file per split in a directory, each there once and whole, whatever crashes.

    The directory must not hold files of another job: the names are those of the splits.
    """

    suffix = ".parquet"

    def __init__(self, path: str | Path, *, compression: str = "zstd") -> None:
        self.path = Path(path).absolute()
        self._compression = compression

    @property
    def directory(self) -> CommittingDirectory:
        """The committing protocol on this sink's directory."""
        return CommittingDirectory(self.path)

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
