"""Where a log lies: a directory, or an object store. Files in one flat folder, by name.

Two promises that a log is built on: what ``put`` has stored is there whole or not at all, and when ``put`` returns,
that file and all that were written before it survive a crash.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from solstice._core.durable import fsync_directory, fsync_file, make_directories
from solstice.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

TEMPORARY = ".tmp"

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
# Other file systems do not replace a file as a whole.
_OBJECT_STORES = ("s3", "gs", "gcs", "abfs", "abfss")


class Store(Protocol):
    """A flat folder of files."""

    def create(self) -> None:
        """Make the folder if it is missing."""

    def files(self) -> dict[str, int]:
        """Name -> bytes of all there is."""

    def read(self, name: str) -> bytes:
        """A small file; FileNotFoundError if it is missing."""

    def source(self, name: str) -> "pa.NativeFile":
        """A file, to read anywhere in it."""

    def path(self, name: str) -> str | None:
        """Where another process of this machine can write the file, if it can; ``keep`` follows."""

    def keep(self, name: str) -> None:
        """Make the content of a file that another process wrote survive."""

    def sink(self, name: str) -> Any:
        """A context with a new file to write to. It is no promise that the file survives; the next ``put`` is."""

    def put(self, name: str, content: "bytes | pa.Buffer") -> None:
        """A small file, whole or not at all, in place of what has its name. See the module."""

    def remove(self, name: str) -> None:
        """Delete a file, if there is one."""


def check_location(location: str) -> None:
    """Refuse what cannot be a log's place, without looking at it."""
    match = _SCHEME.match(location)
    if location.startswith("/") or (match and match[1].lower() in ("file", *_OBJECT_STORES)):
        return
    raise ConfigError(
        f"logPath is '{location}', which is neither an absolute directory nor an object store.",
        option="logPath",
        value=location,
        remedy="Give /a/directory (or file:///a/directory), s3://bucket/folder, gs://bucket/folder or "
        "abfs://container@account.dfs.core.windows.net/folder.",
    )


def open_store(location: str) -> Store:
    """The store at a location that ``check_location`` accepts."""
    import pyarrow as pa
    from pyarrow import fs

    if location.startswith("/"):
        return LocalStore(Path(location))
    try:
        filesystem, folder = fs.FileSystem.from_uri(location)
    except (pa.ArrowException, ValueError) as error:
        raise ConfigError(f"logPath is '{location}': {error}.", option="logPath", value=location) from error
    return LocalStore(Path(folder)) if filesystem.type_name == "local" else ObjectStore(filesystem, folder.rstrip("/"))


class LocalStore:
    """A directory of this machine, or one that is mounted on all. pyarrow does not fsync, so that this does."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def create(self) -> None:
        """Make the directory if it is missing."""
        make_directories(self._folder)

    def files(self) -> dict[str, int]:
        """Name -> bytes of all there is."""
        with os.scandir(self._folder) as entries:
            return {entry.name: entry.stat().st_size for entry in entries}

    def read(self, name: str) -> bytes:
        """A small file; FileNotFoundError if it is missing."""
        return (self._folder / name).read_bytes()

    def source(self, name: str) -> "pa.NativeFile":
        """A file, mapped: its rows are not copied on their way to Spark."""
        import pyarrow as pa

        return pa.memory_map(self.path(name))

    def path(self, name: str) -> str:
        """Any process of this machine can write here."""
        return str(self._folder / name)

    def keep(self, name: str) -> None:
        """Make the content durable; the name is not yet."""
        fsync_file(self._folder / name)

    @contextmanager
    def sink(self, name: str) -> "Iterator[pa.NativeFile]":
        """A context with a new file to write to; at its end the content is durable, the name is not yet."""
        import pyarrow as pa

        with pa.OSFile(self.path(name), "wb") as file:
            yield file
        self.keep(name)

    def put(self, name: str, content: "bytes | pa.Buffer") -> None:
        """Write beside, rename, and make both durable. The first fsync of the folder is for the files before this one:
        this one must never be there without them.
        """
        temporary = self._folder / (name + TEMPORARY)
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        fsync_directory(self._folder)
        os.replace(temporary, self._folder / name)
        fsync_directory(self._folder)

    def remove(self, name: str) -> None:
        """Delete a file, if there is one."""
        with suppress(FileNotFoundError):
            os.unlink(self._folder / name)


class ObjectStore:
    """A folder of an object store: an object is there when its upload is done, and survives then."""

    def __init__(self, filesystem: Any, folder: str) -> None:
        self._filesystem = filesystem
        self._folder = folder

    def create(self) -> None:
        """Nothing to do: folders are parts of names."""

    def files(self) -> dict[str, int]:
        """Name -> bytes of all there is."""
        from pyarrow.fs import FileSelector

        found = self._filesystem.get_file_info(FileSelector(self._folder, allow_not_found=True))
        return {info.base_name: info.size or 0 for info in found}

    def read(self, name: str) -> bytes:
        """A small file; FileNotFoundError if it is missing."""
        with self._filesystem.open_input_stream(self._path(name)) as file:
            content: bytes = file.read()
        return content

    def source(self, name: str) -> "pa.NativeFile":
        """A file, to read anywhere in it."""
        return self._filesystem.open_input_file(self._path(name))

    def path(self, name: str) -> None:
        """Other processes would upload as this one does."""

    def keep(self, name: str) -> None:
        """Nothing to do: see the class."""

    def sink(self, name: str) -> Any:
        """A context with a new file to write to."""
        return self._filesystem.open_output_stream(self._path(name))

    def put(self, name: str, content: "bytes | pa.Buffer") -> None:
        """One upload."""
        with self.sink(name) as file:
            file.write(content)

    def remove(self, name: str) -> None:
        """Delete a file, if there is one."""
        with suppress(FileNotFoundError):
            self._filesystem.delete_file(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}"
