"""Guards against results that are larger than the caller has in mind."""

from dataclasses import dataclass
from typing import Final, Literal, SupportsIndex

from solstice.connect._execution import Batch
from solstice.errors import ConfigError, ResultTooLargeError

# A bound: so much, None for no bound, or what the session was told.
Bound = int | Literal["session"] | None
SESSION: Final = "session"


@dataclass(frozen=True)
class Limits:
    """The bounds of a session's results; None is no bound."""

    max_rows: int | None = None
    max_bytes: int | None = None

    def __post_init__(self) -> None:
        for option, bound in (("max_rows", self.max_rows), ("max_bytes", self.max_bytes)):
            check_bound("connect", option, bound)


def check_bound(method: str, option: str, bound: object) -> None:
    """Refuse what is no bound."""
    if bound is not None and not (isinstance(bound, SupportsIndex) and is_whole(bound) and bound.__index__() >= 0):
        raise ConfigError(
            f"{method}({option}={bound!r}) is not possible.",
            option=option,
            value=bound,
            remedy="Pass a whole number from 0 up, or None for no bound.",
        )


def is_whole(value: object) -> bool:
    """Whether it is a whole number: of Python, or of numpy and the like."""
    return hasattr(value, "__index__") and not isinstance(value, bool)


class Bounds:
    """Counts what arrives for ``method`` and stops at a bound; None is no bound."""

    def __init__(self, method: str, max_rows: int | None, max_bytes: int | None) -> None:
        for option, bound in (("max_rows", max_rows), ("max_bytes", max_bytes)):
            check_bound(method, option, bound)
        self._method = method
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._rows = 0
        self._bytes = 0

    def add(self, batch: Batch) -> None:
        """Count a batch, or raise ResultTooLargeError."""
        self._rows += batch.row_count
        self._bytes += len(batch.data)
        if self._max_rows is not None and self._rows > self._max_rows:
            raise self._error(f"{self._max_rows:,} rows", "max_rows")
        if self._max_bytes is not None and self._bytes > self._max_bytes:
            raise self._error(f"{self._max_bytes:,} bytes", "max_bytes")

    def _error(self, bound: str, option: str) -> ResultTooLargeError:
        return ResultTooLargeError(
            f"the result has more than {bound}, the bound of this {self._method}().",
            remedy=f"Pass {option}=None to lift it, take less with limit(n), or read with iter_batches().",
        )
