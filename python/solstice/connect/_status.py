"""What a failed call says, taken out of gRPC's hands: one plain record for both drivers and for tests."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from solstice.connect._protocol import Protocol

# In a JSON list, which the server may have cut.
_CLASS_NAME = re.compile(r'"([\w.$]+)"')
_DETAILS_KEY = "grpc-status-details-bin"
_REFUSALS = ("UNAUTHENTICATED", "PERMISSION_DENIED")
# A stream that a cut connection or another reader of the same result has ended; it can be taken up again.
_BROKEN_STREAM_MARKS = ("INVALID_CURSOR.DISCONNECTED", "RST_STREAM")


@dataclass(frozen=True)
class Failure:
    """A failed call: the gRPC code and, where Spark itself answered, Spark's error."""

    code: str
    message: str
    error_class: str | None = None
    sql_state: str | None = None
    parameters: dict[str, str] = field(default_factory=dict)
    java_classes: tuple[str, ...] = ()
    error_id: str | None = None
    retry_delay_s: float | None = None
    from_spark: bool = False

    @property
    def is_transient(self) -> bool:
        """Whether the same call may succeed later. Never true of an error in the query itself."""
        if self.retry_delay_s is not None:
            return True
        if self.code == "UNAVAILABLE":
            return True
        return self.code == "INTERNAL" and any(mark in self.message for mark in _BROKEN_STREAM_MARKS)

    @property
    def is_refusal(self) -> bool:
        """Whether the credentials are not good, or not any more."""
        return not self.from_spark and self.code in _REFUSALS


def failure_of(
    protocol: Protocol, code: str, message: str | None, trailing_metadata: Iterable[tuple[str, str | bytes]] | None
) -> Failure:
    """Read the status of a failed call and the details that Spark puts beside it."""
    details = next((value for key, value in trailing_metadata or () if key == _DETAILS_KEY), None)
    if not isinstance(details, bytes):
        return Failure(code, message or "")
    status = protocol.message("google.rpc.Status").FromString(details)
    facts: dict[str, Any] = {}
    for detail in status.details:
        name = detail.type_url.rpartition("/")[2]
        if name == "google.rpc.ErrorInfo":
            metadata = protocol.message(name).FromString(detail.value).metadata
            facts |= {
                "from_spark": True,
                "error_class": metadata.get("errorClass") or None,
                "sql_state": metadata.get("sqlState") or None,
                "error_id": metadata.get("errorId") or None,
                "parameters": _parameters(metadata.get("messageParameters")),
                "java_classes": tuple(_CLASS_NAME.findall(metadata.get("classes", ""))),
            }
        elif name == "google.rpc.RetryInfo":
            delay = protocol.message(name).FromString(detail.value).retry_delay
            facts["retry_delay_s"] = delay.seconds + delay.nanos / 1e9
    return Failure(code, status.message or message or "", **facts)


def _parameters(text: str | None) -> dict[str, str]:
    if not text:
        return {}
    try:
        parsed = json.loads(text)
    except ValueError:  # the server cuts long metadata in the middle
        return {}
    return {str(key): str(value) for key, value in parsed.items()} if isinstance(parsed, dict) else {}
