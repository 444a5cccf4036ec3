"""Sinks that write files, each once and whole."""

import copy
import hashlib
import json
import math
from abc import abstractmethod
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

from solstice._core.urls import parse_url
from solstice.errors import ConfigError
from solstice.pipeline._committing import CommittingDirectory
from solstice.pipeline._object_output import CommittingBucket, is_object_url
from solstice.pipeline._paths import local_path
from solstice.pipeline._queue import Prepared
from solstice.pipeline._sink import Sink, blames_rows
from solstice.pipeline._split import Split, SplitPayload

if TYPE_CHECKING:
    import pyarrow as pa


class FileSink(Sink):
    """One file per split, there once and whole, whatever crashes.

    On this machine a file gets its name when it is committed, so a reader of the directory sees what is committed and
    nothing else. On an object store (``s3://``, ``gs://``) ``committed_files(url)`` lists what is.
    """

    suffix = ""

    def __init__(self, path: str | Path) -> None:
        self.url = str(path) if is_object_url(path) else ""
        self.path = Path(str(path)) if self.url else _directory(path)
        self._owner = "unowned"

    def owned_by(self, queue: str, stage: str) -> Self:
        """This sink as a stage of a job: its files are told apart from those of all others.

        Not the job's name but its queue tells jobs apart, because there are the records of what is not finished.
        """
        owned = copy.copy(self)
        owned._owner = f"{stage}-{hashlib.sha256(queue.encode()).hexdigest()[:16]}"
        return owned

    @property
    def directory(self) -> CommittingDirectory | CommittingBucket:
        """The committing protocol on this sink's place."""
        if self.url:
            return CommittingBucket(self.url, self._owner)
        return CommittingDirectory(self.path, self._owner)

    def write(self, split: Split, payload: SplitPayload) -> Prepared:
        """Write the split's file where no reader looks."""
        table = payload.to_arrow()
        return self.directory.write(
            split.split_id, split.attempt, self.suffix, lambda file: self._write_file(table, file)
        )

    def finish(self, prepared: Prepared) -> None:
        """Make a committed file visible."""
        self.directory.finish(prepared)

    def discard(self, prepared: Prepared) -> None:
        """Remove a file that will not be committed."""
        self.directory.discard(prepared)

    def sweep(self) -> None:
        """Remove what crashed workers left."""
        self.directory.sweep()

    def remove_output(self) -> None:
        """Remove the files that this sink has written."""
        self.directory.remove(self.suffix)

    def blames_rows(self, error: BaseException) -> bool:
        """A full disk is not the split's fault."""
        return blames_rows(error)

    @abstractmethod
    def _write_file(self, table: "pa.Table", file: IO[bytes]) -> None:
        """Fill an open file."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url or str(self.path)!r})"


def _directory(path: str | Path) -> Path:
    if not isinstance(path, str) or "://" not in path:
        return Path(path).absolute()
    if parse_url(path).scheme != "file":  # as a path, it would be a directory of that name on this machine
        raise ConfigError(
            f"a sink cannot write to {path!r}.",
            option="path",
            value=path,
            remedy="Give a directory, file:///directory, s3://bucket/prefix or gs://bucket/prefix.",
        )
    return local_path(path).absolute()


class ParquetSink(FileSink):
    """Parquet files."""

    suffix = ".parquet"

    def __init__(self, path: str | Path, *, compression: str = "zstd") -> None:
        super().__init__(path)
        self._compression = compression

    def _write_file(self, table: "pa.Table", file: IO[bytes]) -> None:
        import pyarrow.parquet as pq

        pq.write_table(table, file, compression=self._compression)


class ArrowSink(FileSink):
    """Arrow IPC files, which can be mapped into memory."""

    suffix = ".arrow"

    def __init__(self, path: str | Path, *, compression: str | None = None) -> None:
        super().__init__(path)
        self._compression = compression

    def _write_file(self, table: "pa.Table", file: IO[bytes]) -> None:
        import pyarrow as pa

        options = pa.ipc.IpcWriteOptions(compression=self._compression)
        with pa.ipc.new_file(file, table.schema, options=options) as writer:
            writer.write_table(table)


class JsonSink(FileSink):
    """JSON, an object a line. Times are written in ISO 8601, binary values in base64, decimals and NaN as text."""

    suffix = ".jsonl"

    def _write_file(self, table: "pa.Table", file: IO[bytes]) -> None:
        for batch in table.to_batches(max_chunksize=10_000):
            file.write("".join(_json_line(row) for row in batch.to_pylist()).encode())


def _json_line(row: Any) -> str:
    try:
        return json.dumps(row, ensure_ascii=False, default=_json_value, allow_nan=False) + "\n"
    except ValueError:  # JSON has no such numbers; Spark writes, and reads, them as text
        return json.dumps(_without_nan(row), ensure_ascii=False, default=_json_value) + "\n"


def _without_nan(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {name: _without_nan(inner) for name, inner in value.items()}
    return [_without_nan(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def _json_value(value: Any) -> Any:
    import base64
    import decimal

    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, decimal.Decimal):
        return str(value)
    if hasattr(value, "total_seconds"):
        return value.total_seconds()
    if hasattr(value, "isoformat"):
        return value.isoformat()
    raise TypeError(f"a {type(value).__name__} has no form in JSON")
