"""Where the rows of splits are kept between stages."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from solstice._core.urls import parse_url
from solstice.errors import ConfigError, PayloadCorruptError
from solstice.pipeline._message import PayloadRef
from solstice.pipeline._split import SplitPayload

if TYPE_CHECKING:
    import pyarrow as pa

_ARROW_FILE_MAGIC = b"ARROW1"


class SplitPayloadStore(ABC):
    """Payloads by key. A key is ``stage/writer/split``: two attempts at one split never write to the same place."""

    @abstractmethod
    def store(self, key: str, payload: "SplitPayload | pa.Table | bytes") -> PayloadRef:
        """Keep a payload; when this returns, it outlives a crash of this process."""

    @abstractmethod
    def get(self, key: str | PayloadRef) -> SplitPayload | None:
        """The payload, or None when there is none. A reference is checked against its checksum, a key is not."""

    @abstractmethod
    def delete(self, key: str | PayloadRef) -> None:
        """Remove a payload; it need not exist."""

    @abstractmethod
    def clear(self, prefix: str = "") -> None:
        """Remove every payload, or all those below ``stage`` or ``stage/writer``."""

    @abstractmethod
    def keys(self, prefix: str = "") -> Iterator[str]:
        """The keys that exist, in no order; all, or those below ``stage`` or ``stage/writer``."""

    @abstractmethod
    def writers(self) -> Iterator[tuple[str, str]]:
        """Each (stage, writer) that has left anything, half-written payloads included: what a sweep looks at."""


def open_store(url: str) -> SplitPayloadStore:
    """The store that a URL names."""
    scheme = parse_url(url).scheme
    if scheme == "file":
        from solstice.pipeline._file_store import FileSplitPayloadStore

        return FileSplitPayloadStore(url)
    raise ConfigError(
        f"no payload store is known for {url!r}.", option="payloads", value=url, remedy="Use file:///a/directory."
    )


def to_payload(data: Any, split_id: str) -> SplitPayload:
    """Turn what a writer may have stored into a SplitPayload: one already, an Arrow table, or Arrow IPC bytes."""
    import pyarrow as pa

    if isinstance(data, SplitPayload):
        return data
    if isinstance(data, pa.Table):
        return SplitPayload.from_arrow(data, split_id)
    if isinstance(data, (bytes, bytearray, memoryview, pa.Buffer)):
        buffer = data if isinstance(data, pa.Buffer) else pa.py_buffer(data)
        try:
            if buffer[: len(_ARROW_FILE_MAGIC)].to_pybytes() == _ARROW_FILE_MAGIC:
                return SplitPayload.from_arrow(pa.ipc.open_file(buffer).read_all(), split_id)
            return SplitPayload.from_arrow(pa.ipc.open_stream(buffer).read_all(), split_id)
        except (pa.ArrowInvalid, OSError) as error:
            raise PayloadCorruptError(f"the payload of split {split_id!r} is not Arrow IPC: {error}") from error
    raise PayloadCorruptError(
        f"the payload of split {split_id!r} is a {type(data).__name__}.",
        remedy="Store a SplitPayload, a pyarrow Table or Arrow IPC bytes.",
    )


def schema_fingerprint(schema: "pa.Schema") -> str:
    """A short name for a schema; equal schemas (without metadata) have equal names."""
    return hashlib.sha256(schema.remove_metadata().serialize().to_pybytes()).hexdigest()[:16]
