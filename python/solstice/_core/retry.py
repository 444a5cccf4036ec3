"""Retries with capped, jittered, exponential delays; the clock is passed in, so that tests never wait."""

import random as _random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

Result = TypeVar("Result")


class Clock(Protocol):
    """Time as a loop sees it."""

    def now(self) -> float:
        """Seconds on a clock that never goes back; only differences mean something."""
        ...

    def sleep(self, seconds: float) -> None:
        """Return after that many seconds."""
        ...


class SystemClock:
    """The real one."""

    def now(self) -> float:
        """Seconds of the monotonic clock."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Sleep in this thread."""
        time.sleep(seconds)


@dataclass(frozen=True)
class RetryPolicy:
    """How often to try and how long to wait: ``initial_s * multiplier ** n``, never above ``max_s``.

    ``jitter`` is the share of a delay that is left to chance: 0 for none, 1 for anything from zero to the full delay.
    """

    initial_s: float = 0.1
    max_s: float = 30.0
    multiplier: float = 2.0
    jitter: float = 0.5
    max_attempts: int = 10

    def __post_init__(self) -> None:
        if not 0 <= self.initial_s <= self.max_s:
            raise ValueError(f"initial_s must be between 0 and max_s, got {self.initial_s} and {self.max_s}")
        if self.multiplier < 1:
            raise ValueError(f"multiplier must be at least 1, got {self.multiplier}")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"jitter must be between 0 and 1, got {self.jitter}")
        if self.max_attempts < 1:
            raise ValueError(f"max_attempts must be at least 1, got {self.max_attempts}")

    def delay_s(self, attempt: int, random: Callable[[], float] = _random.random) -> float:
        """How long to wait after attempt number ``attempt`` (the first is 1) has failed."""
        if attempt < 1:
            raise ValueError(f"attempts are counted from 1, got {attempt}")
        try:
            # As a float: a power of integers grows without bound, and so does the time to compute it.
            full_s = min(self.max_s, self.initial_s * float(self.multiplier) ** (attempt - 1))
        except OverflowError:
            full_s = self.max_s
        return full_s * (1 - self.jitter * random())


def call(
    function: Callable[[], Result],
    *,
    policy: RetryPolicy,
    retryable: Callable[[Exception], bool],
    clock: Clock,
    random: Callable[[], float] = _random.random,
) -> Result:
    """Call until it succeeds. An error that is not retryable, or the one of the last attempt, is raised as it is."""
    attempt = 1
    while True:
        try:
            return function()
        except Exception as error:
            if attempt >= policy.max_attempts or not retryable(error):
                raise
        clock.sleep(policy.delay_s(attempt, random))
        attempt += 1
