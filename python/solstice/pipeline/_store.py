"""Where the rows of splits are kept between stages."""

import hashlib
import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from solstice._core.urls import parse_url
from solstice.errors import ConfigError, PayloadCorruptError
from solstice.pipeline._message import PayloadRef
from solstice.pipeline._split import SplitPayload

if TYPE_CHECKING:
    import pyarrow as pa

_ARROW_FILE_MAGIC = b"ARROW1"
_PARQUET_MAGIC = b"PAR1"
_SUFFIX = ".arrow"
_FOREIGN_SUFFIX = ".parquet"
_COMPRESSIONS = ("lz4", "zstd")


class SplitPayloadStore(ABC):
    """Payloads by key. A key is ``stage/writer/split``: two attempts at one split never write to the same place.

    All stores take ``?compression=lz4`` or ``zstd`` in their URL, for the payloads that they write.
    """

    # What a user has to know before a job starts.
    caution: str | None = None
    # Whether a reader that holds a payload still has it when another deletes it; if not, deletions wait for one lease.
    survives_deletion = True

    def __init__(self, url: str) -> None:
        self.url = url
        self._compression = compression(url)

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

    def discard_unfinished(self, prefix: str) -> None:
        """Remove what a writer that is gone was in the middle of storing; where a payload appears whole, nothing."""
        return

    def check(self) -> None:
        """Raise StoreError if the place of the store is not there and nobody will make it; asked when a job starts."""
        return

    def shared_url(self) -> str:
        """The URL under which any process, here or elsewhere, finds this very store."""
        return self.url

    def close(self) -> None:
        """Let go of what the store holds in this process; a store that is used again takes hold again."""
        return

    def directory(self) -> Path | None:
        """The directory of this machine that the payloads are in, if they are in one."""
        return None


def open_store(url: str) -> SplitPayloadStore:
    """The store that a URL names."""
    scheme = parse_url(url).scheme
    if scheme == "file":
        from solstice.pipeline._file_store import FileSplitPayloadStore

        return FileSplitPayloadStore(url)
    if scheme == "shm":
        from solstice.pipeline._file_store import MemorySplitPayloadStore

        return MemorySplitPayloadStore(url)
    if scheme in ("s3", "gs"):
        from solstice.pipeline._object_store import ObjectSplitPayloadStore

        return ObjectSplitPayloadStore(url)
    if scheme == "ray":
        from solstice.pipeline._ray_store import RaySplitPayloadStore

        return RaySplitPayloadStore(url)
    raise ConfigError(
        f"no payload store is known for {url!r}.",
        option="payloads",
        value=url,
        remedy="Use file:///a/directory, shm://name, s3://bucket/folder, gs://bucket/folder or ray://name.",
    )


def own_place(url: str, job: str, queue: str) -> str:
    """The folder of a job at the place that a URL names; a URL that has it already is left as it is.

    A job deletes what it finds in its store and knows nothing of. Others may use the place, and the name of the job: so
    the folder has, as the files of sinks do, a mark of the queue, which is where everything about a payload is known.
    """
    parsed = parse_url(queue)
    name = parsed.path if parsed.scheme == "kafka" else parsed.addresses + parsed.path
    folder = f"solstice-{job}-{hashlib.sha256(f'{parsed.scheme}:{name}'.encode()).hexdigest()[:8]}"
    place, *params = re.split(r"(?=[;?])", url, maxsplit=1)
    if place.rstrip("/").endswith(f"/{folder}"):
        return url
    return f"{place}{'' if place.endswith('/') else '/'}{folder}{''.join(params)}"


def compression(url: str) -> str | None:
    """What the ``compression`` parameter of a store's URL asks for."""
    name = parse_url(url).params.get("compression")
    if name is not None and name not in _COMPRESSIONS:
        raise ConfigError(
            f"compression={name} in the URL of the payload store is not known.",
            option="payloads",
            value=name,
            remedy="Use lz4 or zstd, or leave it out.",
        )
    return name


def key_of(key: str | PayloadRef) -> str:
    """The key of a reference, or the key itself."""
    return key.key if isinstance(key, PayloadRef) else key


def key_segments(key: str) -> list[str]:
    """The parts of a key as file names; refuses what would leave the store."""
    segments = key.split("/")
    if not all(segments) or any(segment in (".", "..") for segment in segments):
        raise ConfigError(f"{key!r} is not a payload key.", option="key", value=key, remedy="Use stage/writer/split.")
    return [quote(segment, safe="") for segment in segments]


def file_name(segment: str) -> str:
    """The name of the file of a payload; what Spark wrote itself keeps its suffix in the key."""
    return segment if segment.endswith(_FOREIGN_SUFFIX) else segment + _SUFFIX


def payload_name(name: str) -> str | None:
    """The last part of the key of a file; None if it is no payload."""
    if name.endswith(_FOREIGN_SUFFIX):
        return name
    return name.removesuffix(_SUFFIX) if name.endswith(_SUFFIX) else None


class ChecksummingFile:
    """Passes on what is written and keeps its checksum, so that a payload is in memory once and is read once."""

    closed = False

    def __init__(self, file: Any) -> None:
        self._file = file
        self._crc = 0
        self.size = 0

    def write(self, data: Any) -> int:
        """Pass on."""
        self._crc = zlib.crc32(data, self._crc)
        size = memoryview(data).nbytes
        self.size += size
        self._file.write(data)
        return size

    def flush(self) -> None:
        """Nothing is held back here."""

    @property
    def checksum(self) -> str:
        """Of all that was written."""
        return f"crc32:{self._crc:08x}"


def write_payload(
    file: Any, key: str, payload: "SplitPayload | pa.Table | bytes", compression: str | None
) -> ChecksummingFile:
    """Write a payload as Arrow IPC; bytes are taken for that already."""
    import pyarrow as pa

    checked = ChecksummingFile(file)
    if isinstance(payload, bytes):
        checked.write(payload)
        return checked
    table = to_payload(payload, key).to_arrow()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(checked, table.schema, options=options) as writer:
        writer.write_table(table)
    return checked


def read_payload(data: "pa.Buffer", key: str | PayloadRef) -> SplitPayload:
    """The payload that ``data`` is, checked if a reference asked for it."""
    if isinstance(key, PayloadRef) and key.checksum and (found := f"crc32:{zlib.crc32(data):08x}") != key.checksum:
        raise PayloadCorruptError(
            f"the payload {key.uri or key.key} has {data.size} bytes and {found}, "
            f"its message says {key.bytes} bytes and {key.checksum}."
        )
    payload = to_payload(data, key_of(key).rpartition("/")[2])
    if isinstance(key, PayloadRef) and key.arrow_schema:
        return SplitPayload.from_arrow(payload.to_arrow().cast(decode_schema(key.arrow_schema)), payload.split_id)
    return payload


def to_payload(data: Any, split_id: str) -> SplitPayload:
    """Turn what a writer may have stored into a SplitPayload: one, an Arrow table, Arrow IPC or parquet bytes."""
    import pyarrow as pa

    if isinstance(data, SplitPayload):
        return data
    if isinstance(data, pa.Table):
        return SplitPayload.from_arrow(data, split_id)
    if isinstance(data, (bytes, bytearray, memoryview, pa.Buffer)):
        buffer = data if isinstance(data, pa.Buffer) else pa.py_buffer(data)
        try:
            return SplitPayload.from_arrow(_table(buffer), split_id)
        except (pa.ArrowInvalid, OSError) as error:
            raise PayloadCorruptError(
                f"the payload of split {split_id!r} is neither Arrow IPC nor parquet: {error}"
            ) from error
    raise PayloadCorruptError(
        f"the payload of split {split_id!r} is a {type(data).__name__}.",
        remedy="Store a SplitPayload, a pyarrow Table or Arrow IPC bytes.",
    )


def _table(buffer: "pa.Buffer") -> "pa.Table":
    import pyarrow as pa

    begin = buffer[: len(_ARROW_FILE_MAGIC)].to_pybytes()
    if begin == _ARROW_FILE_MAGIC:
        return pa.ipc.open_file(buffer).read_all()
    if begin.startswith(_PARQUET_MAGIC):
        import pyarrow.parquet as pq

        return pq.ParquetFile(pa.BufferReader(buffer), coerce_int96_timestamp_unit="us").read(use_threads=False)
    return pa.ipc.open_stream(buffer).read_all()


def encode_schema(schema: "pa.Schema") -> str:
    """A schema as text, for the message of a payload that does not say all of its types itself."""
    return bytes(schema.serialize().to_pybytes()).hex()


def decode_schema(text: str) -> "pa.Schema":
    """The inverse of ``encode_schema``."""
    import pyarrow as pa

    return pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(text)))


def schema_fingerprint(schema: "pa.Schema") -> str:
    """A short name for a schema; equal schemas (without metadata) have equal names."""
    return hashlib.sha256(schema.remove_metadata().serialize().to_pybytes()).hexdigest()[:16]
