"""Payloads as Arrow IPC files, on a disk of this machine (``file://``) or in its memory (``shm://``)."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from solstice._core.durable import fsync_directory, make_directories
from solstice.errors import StoreError
from solstice.pipeline._message import PayloadRef
from solstice.pipeline._paths import local_path, local_url
from solstice.pipeline._split import SplitPayload
from solstice.pipeline._store import (
    SplitPayloadStore,
    file_name,
    key_of,
    key_segments,
    payload_name,
    read_payload,
    write_payload,
)

if TYPE_CHECKING:
    import pyarrow as pa

_TEMPORARY_SUFFIX = ".tmp"
_MEMORY = "/dev/shm"


class FileSplitPayloadStore(SplitPayloadStore):
    """A file per payload: written under a temporary name, fsynced, renamed, and its directory fsynced."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._root = local_path(url).absolute()

    def store(self, key: str, payload: "SplitPayload | pa.Table | bytes") -> PayloadRef:
        """Keep a payload; when this returns, file and directory entry are on the disk."""
        path = self._path(key)
        self._make_directories(path.parent)
        # One writer owns a key, so the temporary name need not be unique; a left-over one is simply written again.
        temporary = path.with_name(path.name + _TEMPORARY_SUFFIX)
        with open(temporary, "wb", buffering=0) as file:
            written = write_payload(file, key, payload, self._compression)
            self._keep(file.fileno())
        os.rename(temporary, path)
        self._keep_entries(path.parent)
        return PayloadRef(key, self._uri(path), written.size, written.checksum)

    def get(self, key: str | PayloadRef) -> SplitPayload | None:
        """The payload, mapped and not read; it stays usable after ``delete``."""
        import pyarrow as pa

        path = local_path(key.uri) if isinstance(key, PayloadRef) and key.uri else self._path(key_of(key))
        try:
            with pa.memory_map(str(path)) as mapped:
                data = mapped.read_buffer()
        except FileNotFoundError:
            return None
        return read_payload(data, key)

    def delete(self, key: str | PayloadRef) -> None:
        """Remove a payload; the directory of its writer stays until the next sweep."""
        self._path(key_of(key)).unlink(missing_ok=True)

    def clear(self, prefix: str = "") -> None:
        """Remove every payload, or all those of a stage or of one writer, temporary files included."""
        shutil.rmtree(self._below(prefix), ignore_errors=True)

    def discard_unfinished(self, prefix: str) -> None:
        """Remove the temporary files of a writer that is gone."""
        for path in self._below(prefix).glob(f"*{_TEMPORARY_SUFFIX}"):
            path.unlink(missing_ok=True)

    def keys(self, prefix: str = "") -> Iterator[str]:
        """The keys that exist, half-written ones excluded."""
        directories = [self._below(prefix)]
        while directories:
            for entry in _entries(directories.pop()):
                path = Path(entry.path)
                if entry.is_dir(follow_symlinks=False):
                    directories.append(path)
                elif (name := payload_name(path.name)) is not None:
                    yield "/".join(unquote(part) for part in path.relative_to(self._root).with_name(name).parts)

    def writers(self) -> Iterator[tuple[str, str]]:
        """Each (stage, writer) that has a directory, an empty one too: what a sweep looks at."""
        for stage in _entries(self._root):
            for writer in _entries(Path(stage.path)):
                yield unquote(stage.name), unquote(writer.name)

    def check(self) -> None:
        """Raise StoreError if no directory can be made there, or nothing written into it."""
        try:
            self._make_directories(self._root)
            with tempfile.TemporaryFile(dir=self._root):
                pass
        except OSError as error:
            raise StoreError(
                f"the payload store {self.url!r} cannot be written: {error.strerror}.",
                remedy="Name a directory that can be written in payloads=.",
            ) from error

    def directory(self) -> Path:
        """Where the payloads are."""
        return self._root

    def _uri(self, path: Path) -> str:
        return local_url("file", path)

    def _make_directories(self, path: Path) -> None:
        make_directories(path)

    def _keep(self, descriptor: int) -> None:
        os.fsync(descriptor)

    def _keep_entries(self, path: Path) -> None:
        fsync_directory(path)

    def _below(self, prefix: str) -> Path:
        return self._root.joinpath(*key_segments(prefix)) if prefix else self._root

    def _path(self, key: str) -> Path:
        path = self._root.joinpath(*key_segments(key))
        return path.with_name(file_name(path.name))


class MemorySplitPayloadStore(FileSplitPayloadStore):
    """The same in a file system that is memory: nothing is fsynced, since nothing outlives the machine."""

    caution = (
        "payloads are in the memory of this machine: they outlive a crash of the job, but not a reboot, after which "
        "splits that were under way cannot be read."
    )

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._root = Path(_MEMORY, str(local_path(url)).lstrip("/"))

    def _make_directories(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)

    def _keep(self, descriptor: int) -> None:
        pass

    def _keep_entries(self, path: Path) -> None:
        pass


def _entries(directory: Path) -> "list[os.DirEntry[str]]":
    """What is in a directory; nothing, if a writer has discarded it in the meantime.

    Other errors are raised: a sweep takes a directory in which it sees no payload for garbage.
    """
    try:
        with os.scandir(directory) as entries:
            return list(entries)
    except FileNotFoundError:
        return []
