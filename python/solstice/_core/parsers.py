"""Parsers that turn the text of an option into a typed value, and say what they expect when they cannot."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeVar

_Number = TypeVar("_Number", int, float)

_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)
_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)", re.ASCII)

_SECONDS = {"ms": Decimal("0.001"), "s": Decimal(1), "m": Decimal(60), "h": Decimal(3600), "d": Decimal(86400)}
_BYTES = {"b": Decimal(1)} | {
    f"{prefix}{suffix}": Decimal(base) ** power
    for power, prefix in enumerate("kmgt", start=1)
    for suffix, base in (("b", 1000), ("ib", 1024))
}
_TRUE = frozenset({"true", "1", "yes"})
_FALSE = frozenset({"false", "0", "no"})


@dataclass(frozen=True)
class Parser:
    """Calls ``convert`` on the stripped text. A failure is a ValueError that ends the sentence "It must be ..."."""

    kind: str
    expects: str
    convert: Callable[[str], Any]

    def __call__(self, raw: str) -> Any:
        try:
            return self.convert(raw.strip())
        except ValueError:
            raise ValueError(self.expects) from None


def text() -> Parser:
    """Any text but the empty one."""

    def convert(raw: str) -> str:
        if not raw:
            raise ValueError
        return raw

    return Parser("text", "a text that is not empty", convert)


def integer(minimum: int | None = None, maximum: int | None = None) -> Parser:
    """A whole number."""

    def convert(raw: str) -> int:
        if not _INTEGER.fullmatch(raw):
            raise ValueError
        return _within(int(raw), minimum, maximum)

    return Parser("integer", f"a whole number{_bounds(minimum, maximum)}", convert)


def number(minimum: float | None = None, maximum: float | None = None) -> Parser:
    """A finite number."""

    def convert(raw: str) -> float:
        value = float(raw)
        if not math.isfinite(value):
            raise ValueError
        return _within(value, minimum, maximum)

    return Parser("number", f"a number{_bounds(minimum, maximum)}", convert)


def size_bytes(minimum: int | None = None, maximum: int | None = None) -> Parser:
    """A size in bytes: ``64mb`` is 64,000,000, ``64mib`` is 67,108,864, a bare number is bytes."""

    def convert(raw: str) -> int:
        value = _quantity(raw, _BYTES, "b")
        if value != int(value):
            raise ValueError
        return _within(int(value), minimum, maximum)

    return Parser("size", f"a size such as 64mb, 10kb, 1gib or a number of bytes{_bounds(minimum, maximum)}", convert)


def duration_s(minimum: float | None = None, maximum: float | None = None) -> Parser:
    """A duration in seconds: ``250ms``, ``30s``, ``5m``, ``1h``, ``1d``; a bare number is seconds."""

    def convert(raw: str) -> float:
        return _within(float(_quantity(raw, _SECONDS, "s")), minimum, maximum)

    bounds = _bounds(minimum, maximum, "s")
    return Parser("duration", f"a duration such as 250ms, 30s, 5m, 1h or a number of seconds{bounds}", convert)


def boolean() -> Parser:
    """``true``, ``1``, ``yes`` or ``false``, ``0``, ``no``, in any case."""

    def convert(raw: str) -> bool:
        if raw.lower() in _TRUE:
            return True
        if raw.lower() in _FALSE:
            return False
        raise ValueError

    return Parser("boolean", "true or false (1 or 0, yes or no)", convert)


def one_of(*choices: str) -> Parser:
    """One of the choices, compared without case; the value is the choice as it is spelled here."""
    by_key = {choice.lower(): choice for choice in choices}

    def convert(raw: str) -> str:
        if raw.lower() not in by_key:
            raise ValueError
        return by_key[raw.lower()]

    return Parser(" | ".join(f"`{choice}`" for choice in choices), f"one of {', '.join(choices)}", convert)


def names() -> Parser:
    """Names with commas between them, each once; the value is a tuple."""

    def convert(raw: str) -> tuple[str, ...]:
        parts = tuple(part.strip() for part in raw.split(","))
        if not all(parts) or len(set(parts)) != len(parts):
            raise ValueError
        return parts

    return Parser("names", "names with commas between them, each once, such as a,b,c", convert)


def _quantity(raw: str, units: dict[str, Decimal], bare_unit: str) -> Decimal:
    match = _QUANTITY.fullmatch(raw.lower())
    if match is None or (match[2] or bare_unit) not in units:
        raise ValueError
    return Decimal(match[1]) * units[match[2] or bare_unit]


def _within(value: _Number, minimum: _Number | None, maximum: _Number | None) -> _Number:
    if (minimum is not None and value < minimum) or (maximum is not None and value > maximum):
        raise ValueError
    return value


def _bounds(minimum: float | None, maximum: float | None, unit: str = "") -> str:
    if minimum is not None and maximum is not None:
        return f" between {minimum}{unit} and {maximum}{unit}"
    if minimum is not None:
        return f" of at least {minimum}{unit}"
    if maximum is not None:
        return f" of at most {maximum}{unit}"
    return ""
