"""How many workers a stage should have."""

import time
from collections.abc import Callable

_GROW_EVERY_S = 0.5
_IDLE_S = 10.0


class Autoscaler:
    """Between the least and the most, by lag: doubles while splits wait for a worker, and gives idle ones up slowly."""

    def __init__(self, low: int, high: int, now_s: Callable[[], float] = time.monotonic) -> None:
        self._low = low
        self._high = high
        self._now_s = now_s
        self._wanted = low
        self._grown_s = now_s()
        self._busy_s = now_s()

    def wanted(self, waiting: int, in_flight: int) -> int:
        """How many workers to have now, with so many splits that nobody has taken and so many in work."""
        now_s = self._now_s()
        work = waiting + in_flight
        if work >= self._wanted:
            self._busy_s = now_s
        if waiting > 0 and work > self._wanted and now_s - self._grown_s >= _GROW_EVERY_S:
            self._grown_s = now_s
            self._wanted = min(self._high, work, 2 * self._wanted)
        elif work < self._wanted and now_s - self._busy_s >= _IDLE_S:
            self._busy_s = now_s
            self._wanted = max(self._low, self._wanted - 1)
        return self._wanted
