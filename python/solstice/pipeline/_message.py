"""What travels through a queue: never the data, only where it is."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from solstice.errors import QueueError


@dataclass(frozen=True)
class PayloadRef:
    """Where a payload is, and how to tell that it is whole. ``key`` alone finds it too, without that check.

    ``arrow_schema`` is for files whose own types say less, as parquet does.
    """

    key: str
    uri: str
    bytes: int
    checksum: str
    arrow_schema: str = ""


class QueueMessage(msgspec.Struct, frozen=True):
    """One split, announced. An empty ``payload_key`` marks a source message: the worker has to read the split itself.

    ``metadata`` holds ``source_stage`` and ``num_records`` always, and for a message with a payload ``uri, bytes,
    schema_fingerprint, checksum, attempt, batch_id, partition`` as well.
    """

    message_id: str
    split_id: str
    payload_key: str
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)
    timestamp: float = msgspec.field(default_factory=time.time)

    def to_json(self) -> str:
        """The message on the wire; the order of the fields is part of the format."""
        return _encoder.encode(self).decode()

    def to_json_bytes(self) -> bytes:
        """The same, for those who send bytes."""
        return _encoder.encode(self)

    @classmethod
    def from_json(cls, text: str | bytes) -> "QueueMessage":
        """Read a message; fields of a later version are ignored, a missing id or key is refused."""
        try:
            return _decoder.decode(text)
        except msgspec.MsgspecError as error:
            raise QueueError(f"not a queue message ({error}): {text[:200]!r}") from error

    @property
    def ref(self) -> PayloadRef | None:
        """Where the payload is; None for a source message."""
        return payload_ref(self.payload_key, self.metadata) if self.payload_key else None

    @property
    def stored_key(self) -> str:
        """The payload that goes when the split is settled: its own, or the one that a source message leads to."""
        return self.payload_key or str(self.metadata.get("stored_key", ""))

    @property
    def num_records(self) -> int:
        """How many rows the split has."""
        return int(self.metadata.get("num_records", 0))

    @property
    def payload_bytes(self) -> int:
        """How large the payload is in the store."""
        return int(self.metadata.get("bytes", 0))


def totals(messages: Iterable[QueueMessage]) -> list[int]:
    """How many messages there are, and the sums of their bytes and records: what every counter of a queue adds up."""
    count = size_bytes = records = 0
    for message in messages:
        metadata = message.metadata
        count += 1
        size_bytes += metadata.get("bytes", 0)
        records += metadata.get("num_records", 0)
    return [count, size_bytes, records]


def payload_ref(key: str, metadata: Mapping[str, Any]) -> PayloadRef:
    """The reference that the metadata of a message describes."""
    return PayloadRef(
        key,
        metadata.get("uri", ""),
        metadata.get("bytes", 0),
        metadata.get("checksum", ""),
        metadata.get("arrow_schema", ""),
    )


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(QueueMessage)
