"""Dates, instants and intervals as Python objects, a whole column at a time."""

import datetime
import functools
import importlib
import time
from types import ModuleType
from typing import Any

from solstice._core.extras import require
from solstice.errors import UnsupportedTypeError

_DAY_S = 86_400
_SECOND_US = 1_000_000
_DAY_US = _DAY_S * _SECOND_US
_EPOCH = datetime.datetime(1970, 1, 1)
_EPOCH_ORDINAL = datetime.date(1970, 1, 1).toordinal()
_MIN_US, _MAX_US = ((edge - _EPOCH) // datetime.timedelta(microseconds=1) for edge in (_EPOCH.min, _EPOCH.max))


def dates(array: Any) -> list[datetime.date | None]:
    """The days of a date32 array."""
    fromordinal = datetime.date.fromordinal
    try:
        return [None if day is None else fromordinal(day + _EPOCH_ORDINAL) for day in array.view("int32").to_pylist()]
    except (ValueError, OverflowError):
        raise _out_of_range("date") from None


def timestamps(array: Any) -> list[datetime.datetime | None]:
    """Naive datetimes: of an array with a zone, an instant as the clock of this process's zone shows it."""
    zoned = array.type.tz is not None
    micros = array.cast(require("pyarrow", "spark").timestamp("us", tz=array.type.tz), safe=False).view("int64")
    numpy = _numpy()
    if numpy is None:
        to_datetime = _local if zoned else _naive
        try:
            return [None if value is None else to_datetime(value) for value in micros.to_pylist()]
        except OverflowError:
            raise _out_of_range("timestamp") from None
    utc = ticks = micros.fill_null(0).to_numpy()
    changing_rows: list[int] = []
    if zoned:
        offsets, changing_rows = _local_offsets_us(numpy, utc)
        ticks = utc + offsets
    # numpy would make plain numbers of what a datetime cannot hold.
    if len(ticks) and not (ticks.min() >= _MIN_US and ticks.max() <= _MAX_US):
        raise _out_of_range("timestamp")
    objects = ticks.view("datetime64[us]").astype(object)
    for row in changing_rows:
        objects[row] = _local(int(utc[row]))
    return _with_nulls(array, objects)


def durations(array: Any) -> list[datetime.timedelta | None]:
    """The lengths of a duration array."""
    micros = array.cast("duration[us]", safe=False).view("int64")
    numpy = _numpy()
    if numpy is None:
        return [None if value is None else datetime.timedelta(microseconds=value) for value in micros.to_pylist()]
    return _with_nulls(array, micros.fill_null(0).to_numpy().view("timedelta64[us]").astype(object))


def times(array: Any) -> list[datetime.time | None]:
    """The times of day of a time64 array; Spark has microseconds at most."""
    values: list[datetime.time | None] = array.cast("time64[us]", safe=False).to_pylist()
    return values


@functools.cache
def _numpy() -> ModuleType | None:
    # pyarrow works without it; ten times faster with it.
    try:
        return importlib.import_module("numpy")
    except ImportError:
        return None


def _with_nulls(array: Any, objects: Any) -> list[Any]:
    if array.null_count:
        objects[array.is_null().to_numpy(zero_copy_only=False)] = None
    result: list[Any] = objects.tolist()
    return result


def _out_of_range(kind: str) -> UnsupportedTypeError:
    return UnsupportedTypeError(
        f"the result has a {kind} outside of the years 1 to 9999, which Python's datetime cannot hold.",
        value=kind,
        remedy="Use to_arrow(), or cast the column to a string in the query.",
    )


def _naive(micros: int) -> datetime.datetime:
    return _EPOCH + datetime.timedelta(microseconds=micros)


def _local(micros: int) -> datetime.datetime:
    offset_s = _day_offset_s(micros // _DAY_US, _zone())
    if offset_s is not None:
        return _naive(micros + offset_s * _SECOND_US)
    # It knows of the hour that comes twice when clocks go back: the second time has fold=1.
    seconds, rest = divmod(micros, _SECOND_US)
    return datetime.datetime.fromtimestamp(seconds).replace(microsecond=rest)


def _local_offsets_us(numpy: ModuleType, micros: Any) -> tuple[Any, list[int]]:
    """What to add to each UTC tick, and the rows of days without one offset, which have to be made one by one."""
    days, positions = numpy.unique(micros // _DAY_US, return_inverse=True)
    zone = _zone()
    by_day = [_day_offset_s(day, zone) for day in days.tolist()]
    offsets = numpy.array([offset or 0 for offset in by_day], dtype="int64")[positions]
    mixed_days = [index for index, offset in enumerate(by_day) if offset is None]
    rows: list[int] = numpy.flatnonzero(numpy.isin(positions, mixed_days)).tolist() if mixed_days else []
    return offsets * _SECOND_US, rows


def _zone() -> tuple[str | int, ...]:
    return (*time.tzname, time.timezone, time.altzone)


@functools.lru_cache(maxsize=65_536)
def _day_offset_s(day: int, zone: tuple[str | int, ...]) -> int | None:
    """The offset of a whole UTC day, or None when it changes within or on the day before: then hours may repeat.

    ``zone`` keeps answers of other zones apart.
    """
    offsets_s = {_offset_s(second) for second in ((day - 1) * _DAY_S, day * _DAY_S, (day + 1) * _DAY_S - 1)}
    return offsets_s.pop() if len(offsets_s) == 1 else None


def _offset_s(seconds: int) -> int:
    return time.localtime(seconds).tm_gmtoff
