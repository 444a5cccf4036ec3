"""Payloads as objects of a bucket (``s3://``, ``gs://``), through pyarrow's file systems."""

import functools
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from solstice.errors import ConfigError, StoreError
from solstice.pipeline._message import PayloadRef
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


class ObjectSplitPayloadStore(SplitPayloadStore):
    """An object per payload: it is there, whole and durable, when its upload is done.

    The parameters of the URL are pyarrow's: ``endpoint_override``, ``region``, ``scheme``. Credentials come from the
    environment, as the provider's own tools find them.
    """

    survives_deletion = False  # an object is read piece by piece

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._scheme = url.partition("://")[0].lower()

    def store(self, key: str, payload: "SplitPayload | pa.Table | bytes") -> PayloadRef:
        """Upload a payload."""
        path = self._path(key)
        with self._filesystem.open_output_stream(path) as file:
            written = write_payload(file, key, payload, self._compression)
        return PayloadRef(key, f"{self._scheme}://{path}", written.size, written.checksum)

    def get(self, key: str | PayloadRef) -> SplitPayload | None:
        """Download a payload."""
        path = key.uri.partition("://")[2] if isinstance(key, PayloadRef) and key.uri else self._path(key_of(key))
        try:
            with self._filesystem.open_input_file(path) as file:
                data = file.read_buffer()
        except FileNotFoundError:
            self.check()
            return None
        return read_payload(data, key)

    def delete(self, key: str | PayloadRef) -> None:
        """Remove a payload."""
        with suppress(FileNotFoundError):
            self._filesystem.delete_file(self._path(key_of(key)))

    def clear(self, prefix: str = "") -> None:
        """Remove every payload, or all those of a stage or of one writer."""
        with suppress(FileNotFoundError):
            if prefix:
                self._filesystem.delete_dir(self._below(prefix))
            else:
                self._filesystem.delete_dir_contents(self._root, missing_dir_ok=True)

    def keys(self, prefix: str = "") -> Iterator[str]:
        """The keys that exist."""
        for path in self._list(self._below(prefix), recursive=True):
            folder, _, name = path.rpartition("/")
            if (key_name := payload_name(name)) is not None:
                inner = f"{folder}/{key_name}".removeprefix(self._root + "/")
                yield "/".join(unquote(part) for part in inner.split("/"))

    def writers(self) -> Iterator[tuple[str, str]]:
        """Each (stage, writer) that has anything."""
        for stage in self._list(self._root):
            for writer in self._list(stage):
                yield unquote(stage.rpartition("/")[2]), unquote(writer.rpartition("/")[2])

    def check(self) -> None:
        """Raise StoreError if there is no such bucket."""
        from pyarrow.fs import FileType

        bucket = self._root.partition("/")[0]
        with suppress(OSError):  # who may not ask about a bucket may still have objects in it
            (info,) = self._filesystem.get_file_info([bucket])
            if info.type == FileType.NotFound:
                raise StoreError(
                    f"the bucket {bucket!r} of the payload store {self.url!r} does not exist.",
                    remedy="Create it, or name another one in payloads=.",
                )

    def _list(self, folder: str, *, recursive: bool = False) -> list[str]:
        from pyarrow.fs import FileSelector

        selector = FileSelector(folder, allow_not_found=True, recursive=recursive)
        return [info.path for info in self._filesystem.get_file_info(selector)]

    def _below(self, prefix: str) -> str:
        return "/".join((self._root, *key_segments(prefix))) if prefix else self._root

    def _path(self, key: str) -> str:
        *folders, name = key_segments(key)
        return "/".join((self._root, *folders, file_name(name)))

    @property
    def _filesystem(self) -> Any:
        return self._opened[0]

    @property
    def _root(self) -> str:
        return self._opened[1]

    @functools.cached_property
    def _opened(self) -> tuple[Any, str]:
        """On first use: it starts threads."""
        import pyarrow as pa
        from pyarrow import fs

        url = re.sub(r"(?<=[?&])compression=[^&]*&?", "", self.url).rstrip("?&")
        try:
            filesystem, root = fs.FileSystem.from_uri(url)
        except (pa.ArrowException, ValueError) as error:
            raise ConfigError(
                f"the payload store {url!r} cannot be opened: {error}.", option="payloads", value=url
            ) from error
        return filesystem, root.rstrip("/")
