"""Files as the source of a job, without Spark."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from solstice.errors import ConfigError
from solstice.pipeline._iterable_source import PartitionedSourceMaster
from solstice.pipeline._queue import BatchRecord
from solstice.pipeline._source_master import SourceConfig, SourceContext, check_positive

if TYPE_CHECKING:
    import pyarrow as pa

FileFormat = Literal["parquet", "arrow", "csv", "json"]


@dataclass
class FileSource(SourceConfig):
    """Files of one format, read with ``pyarrow.dataset``: a path, a directory, a URL, or a list of paths.

    ``columns`` are those to read; all by default. A split has about ``target_split_bytes``. A job that resumes reads
    only what is not visible yet: a row group of parquet, or else a file; if the files have changed, it refuses.
    """

    paths: str | Path | Sequence[str | Path] = ()
    format: FileFormat = "parquet"
    columns: Sequence[str] | None = None
    target_split_bytes: int = 32 << 20

    def __post_init__(self) -> None:
        check_positive(self, "target_split_bytes")

    def master(self, context: SourceContext) -> "FileSourceMaster":
        """The master that runs this source."""
        return FileSourceMaster(context, self)


class FileSourceMaster(PartitionedSourceMaster):
    """Reads in a thread of the job's process, fragment by fragment."""

    def __init__(self, context: SourceContext, config: FileSource) -> None:
        super().__init__(context)
        self._config = config
        self.target_split_bytes = config.target_split_bytes

    def read(self) -> None:
        """Read to the end, or until stopped."""
        dataset = _open(self._config)
        fragments = sorted(dataset.get_fragments(), key=lambda fragment: str(fragment.path))
        if self._config.format == "parquet":
            fragments = [part for fragment in fragments for part in fragment.split_by_row_group()]
        self._record_files(dataset, len(fragments))
        visible = self.visible()
        for partition, fragment in enumerate(fragments):
            if self._stop.is_set():
                return
            if partition not in visible:
                self.write_partition(partition, _batches(fragment, dataset.schema, self._config.columns))
        self.end()

    def _record_files(self, dataset: Any, partitions: int) -> None:
        digest = hashlib.sha256(repr((self._config.format, self._config.columns)).encode())
        for info in dataset.filesystem.get_file_info(sorted(dataset.files)):
            digest.update(f"{info.path} {info.size} {info.mtime_ns}\n".encode())
        self.record(BatchRecord(digest.hexdigest()[:16], partitions, self._config.target_split_bytes), "files")


def _open(config: FileSource) -> Any:
    import pyarrow as pa
    import pyarrow.dataset as ds

    given = config.paths
    paths: Any = str(given) if isinstance(given, (str, Path)) else [str(path) for path in given]
    try:
        dataset = ds.dataset(paths, format=config.format)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise ConfigError(
            f"{paths} cannot be read as {config.format}: {error}.",
            option="paths",
            value=given,
            remedy="Give a file, a directory or a list of files, and their format: parquet, arrow, csv or json.",
        ) from error
    if not dataset.files:
        raise ConfigError(f"there are no files in {paths}.", option="paths", value=given)
    return dataset


def _batches(fragment: Any, schema: "pa.Schema", columns: Sequence[str] | None) -> Any:
    chosen = None if columns is None else list(columns)
    return fragment.to_batches(schema=schema, columns=chosen)
