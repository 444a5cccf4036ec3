"""Payloads as Arrow IPC files in a directory of this machine (``file://``), read by memory mapping."""

import os
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from solstice._core.durable import fsync_directory, make_directories
from solstice.errors import ConfigError, PayloadCorruptError
from solstice.pipeline._message import PayloadRef
from solstice.pipeline._paths import local_path, local_url
from solstice.pipeline._split import SplitPayload
from solstice.pipeline._store import SplitPayloadStore, to_payload

if TYPE_CHECKING:
    import pyarrow as pa

_SUFFIX = ".arrow"
_TEMPORARY_SUFFIX = ".tmp"


class FileSplitPayloadStore(SplitPayloadStore):
    """A file per payload: written under a temporary name, fsynced, renamed, and its directory fsynced."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._root = local_path(url).absolute()

    def store(self, key: str, payload: "SplitPayload | pa.Table | bytes") -> PayloadRef:
        """Keep a payload; when this returns, file and directory entry are on the disk."""
        path = self._path(key)
        make_directories(path.parent)
        data = _to_ipc(payload, key)
        # One writer owns a key, so the temporary name need not be unique; a left-over one is simply written again.
        temporary = path.with_name(path.name + _TEMPORARY_SUFFIX)
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, path)
        fsync_directory(path.parent)
        return PayloadRef(key, local_url("file", path), len(data), _checksum(data))

    def get(self, key: str | PayloadRef) -> SplitPayload | None:
        """The payload, mapped and not read; it stays usable after ``delete``."""
        import pyarrow as pa

        ref = key if isinstance(key, PayloadRef) else None
        name = ref.key if ref else str(key)
        path = local_path(ref.uri) if ref and ref.uri else self._path(name)
        try:
            with pa.memory_map(str(path)) as mapped:
                data = mapped.read_buffer()
        except FileNotFoundError:
            return None
        if ref and ref.checksum and _checksum(data) != ref.checksum:
            raise PayloadCorruptError(
                f"the payload {path} has {data.size} bytes and {_checksum(data)}, "
                f"its message says {ref.bytes} bytes and {ref.checksum}."
            )
        return to_payload(data, name.rpartition("/")[2])

    def delete(self, key: str | PayloadRef) -> None:
        """Remove a payload; the directory of its writer stays until the next sweep."""
        self._path(key.key if isinstance(key, PayloadRef) else key).unlink(missing_ok=True)

    def clear(self, prefix: str = "") -> None:
        """Remove every payload, or all those of a stage or of one writer, temporary files included."""
        shutil.rmtree(self._below(prefix), ignore_errors=True)

    def keys(self, prefix: str = "") -> Iterator[str]:
        """The keys that exist, half-written ones excluded."""
        directories = [self._below(prefix)]
        while directories:
            for entry in _entries(directories.pop()):
                path = Path(entry.path)
                if entry.is_dir(follow_symlinks=False):
                    directories.append(path)
                elif path.suffix == _SUFFIX:
                    yield "/".join(unquote(part) for part in path.relative_to(self._root).with_suffix("").parts)

    def writers(self) -> Iterator[tuple[str, str]]:
        """Each (stage, writer) that has a directory, an empty one too: what a sweep looks at."""
        for stage in _entries(self._root):
            for writer in _entries(Path(stage.path)):
                yield unquote(stage.name), unquote(writer.name)

    def _below(self, prefix: str) -> Path:
        return self._root.joinpath(*_segments(prefix)) if prefix else self._root

    def _path(self, key: str) -> Path:
        path = self._root.joinpath(*_segments(key))
        return path.with_name(path.name + _SUFFIX)


def _entries(directory: Path) -> "list[os.DirEntry[str]]":
    """What is in a directory; nothing, if a writer has discarded it in the meantime.

    Other errors are raised: a sweep takes a directory in which it sees no payload for garbage.
    """
    try:
        with os.scandir(directory) as entries:
            return list(entries)
    except FileNotFoundError:
        return []


def _segments(key: str) -> list[str]:
    segments = key.split("/")
    if not all(segments) or any(segment in (".", "..") for segment in segments):
        raise ConfigError(f"{key!r} is not a payload key.", option="key", value=key, remedy="Use stage/writer/split.")
    return [quote(segment, safe="") for segment in segments]


def _to_ipc(payload: "SplitPayload | pa.Table | bytes", key: str) -> "memoryview":
    import pyarrow as pa

    if isinstance(payload, bytes):
        return memoryview(payload)
    table = to_payload(payload, key).to_arrow()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return memoryview(sink.getvalue())


def _checksum(data: "memoryview | pa.Buffer") -> str:
    return f"crc32:{zlib.crc32(data):08x}"
