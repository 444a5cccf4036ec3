"""The clock of this process's time zone, for instants of a result."""

import datetime
import functools
import time

_DAY_S = 86_400
_SECOND_US = 1_000_000


def local(micros: int) -> datetime.datetime:
    """The local time of an instant, naive; of an hour that comes twice, the second one has ``fold=1``."""
    seconds, rest = divmod(micros, _SECOND_US)
    return datetime.datetime.fromtimestamp(seconds).replace(microsecond=rest)


def day_offset_s(day: int) -> int | None:
    """The offset of a whole UTC day, or None when it changes within or on the day before: then hours may repeat."""
    return _day_offset_s(day, (*time.tzname, time.timezone, time.altzone))


@functools.lru_cache(maxsize=65_536)
def _day_offset_s(day: int, zone: tuple[str | int, ...]) -> int | None:
    """``zone`` keeps answers of other zones apart."""
    offsets_s = {
        time.localtime(second).tm_gmtoff for second in ((day - 1) * _DAY_S, day * _DAY_S, (day + 1) * _DAY_S - 1)
    }
    return offsets_s.pop() if len(offsets_s) == 1 else None
