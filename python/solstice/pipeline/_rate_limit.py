"""A rate that all workers of a stage keep together."""

import fcntl
import os
import re
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from solstice.errors import ConfigError

_RATE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(splits|records)\s*/\s*s\s*")
_WHEN = struct.Struct("d")


@dataclass(frozen=True)
class Rate:
    """So many splits or records per second."""

    per_s: float
    unit: Literal["splits", "records"]

    def cost_s(self, splits: int, records: int) -> float:
        """How long so many splits with so many records take at this rate."""
        return (splits if self.unit == "splits" else records) / self.per_s


def parse_rate(text: Any) -> Rate | None:
    """Read ``"10 splits/s"`` or ``"5000 records/s"``."""
    if text is None:
        return None
    match = _RATE.fullmatch(text) if isinstance(text, str) else None
    if match is None or float(match[1]) == 0:
        raise ConfigError(
            f"rate_limit is {text!r}.",
            option="rate_limit",
            value=text,
            remedy="Write it as '10 splits/s' or '5000 records/s'.",
        )
    return Rate(float(match[1]), "splits" if match[2] == "splits" else "records")


class RateLimiter(ABC):
    """Who may start when. It travels to the workers, so it has no open files."""

    @abstractmethod
    def reserve(self, cost_s: float) -> float:
        """Take the next free moment and leave ``cost_s`` after it free; returns how long it is until then."""


class FileRateLimiter(RateLimiter):
    """The moment until which the rate is spent, in a file that all workers of this machine lock in turn.

    The clock is that of the machine since its start, so a file that an earlier run left only delays if it is newer.
    """

    def __init__(self, path: str | Path, now_s: Callable[[], float] = time.monotonic) -> None:
        self._path = str(path)
        self._now_s = now_s

    def reserve(self, cost_s: float) -> float:
        """Take the next free moment."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            now_s = self._now_s()
            before = os.pread(descriptor, _WHEN.size, 0)
            start_s = max(now_s, _WHEN.unpack(before)[0]) if len(before) == _WHEN.size else now_s
            os.pwrite(descriptor, _WHEN.pack(start_s + cost_s), 0)
        finally:
            os.close(descriptor)
        return start_s - now_s
