"""What travels through a queue: never the data, only where it is."""

import json
import time
from dataclasses import dataclass, field
from typing import Any

from solstice.errors import QueueError


@dataclass(frozen=True)
class PayloadRef:
    """Where a payload is, and how to tell that it is whole. ``key`` alone finds it too, without that check."""

    key: str
    uri: str
    bytes: int
    checksum: str


@dataclass(frozen=True)
class QueueMessage:
    """One split, announced. An empty ``payload_key`` marks a source message: the worker has to read the split itself.

    ``metadata`` holds ``source_stage`` and ``num_records`` always, and for a message with a payload ``uri, bytes,
    schema_fingerprint, checksum, attempt, batch_id, partition`` as well.
    """

    message_id: str
    split_id: str
    payload_key: str
    metadata: dict[str, Any] = field(default_factory=dict)
    timestamp: float = field(default_factory=time.time)

    def to_json(self) -> str:
        """The message on the wire; the order of the fields is part of the format."""
        fields = {
            "message_id": self.message_id,
            "split_id": self.split_id,
            "payload_key": self.payload_key,
            "metadata": self.metadata,
            "timestamp": self.timestamp,
        }
        return json.dumps(fields, separators=(",", ":"), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> "QueueMessage":
        """Read a message; fields of a later version are ignored, a missing one is refused."""
        try:
            fields = json.loads(text)
            return cls(
                message_id=fields["message_id"],
                split_id=fields["split_id"],
                payload_key=fields["payload_key"],
                metadata=fields["metadata"],
                timestamp=fields["timestamp"],
            )
        except (ValueError, KeyError, TypeError) as error:
            raise QueueError(f"not a queue message ({type(error).__name__}: {error}): {text[:200]!r}") from error

    @property
    def ref(self) -> PayloadRef | None:
        """Where the payload is; None for a source message."""
        if not self.payload_key:
            return None
        metadata = self.metadata
        return PayloadRef(
            self.payload_key, metadata.get("uri", ""), metadata.get("bytes", 0), metadata.get("checksum", "")
        )

    @property
    def num_records(self) -> int:
        """How many rows the split has."""
        return int(self.metadata.get("num_records", 0))

    @property
    def payload_bytes(self) -> int:
        """How large the payload is in the store."""
        return int(self.metadata.get("bytes", 0))
