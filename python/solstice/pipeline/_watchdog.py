"""Ends a worker whose split takes too long, or too much memory, whatever the operator is doing."""

import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Self

_LOOK_S = 0.2
# For an operator that holds the interpreter's lock, so that no thread can see to it: then the kernel ends the process.
_GRACE_S = 2.0
_GIVE_UP_S = 60.0  # how long it may take to settle the split as failed


class Abandoned(BaseException):
    """The split on which this thread worked was given up, and the worker with it."""


class Watchdog:
    """Watches over the splits of one worker: ``with watchdog.watch(): ...`` around the work on one.

    ``give_up(error, traceback)`` is called from the watching thread, and has to settle the split as failed and to end
    the worker. A worker that is a thread cannot be ended: it finds ``Abandoned`` when it is through with the split.
    """

    def __init__(
        self,
        timeout_s: float | None,
        max_bytes: int | None,
        give_up: Callable[[str, str], None],
        *,
        own_process: bool,
    ) -> None:
        self._timeout_s = timeout_s
        self._max_bytes = max_bytes if own_process else None
        self._give_up = give_up
        self._own_process = own_process
        self._lock = threading.Lock()
        self._since_s: float | None = None
        self._given_up = False
        self._ended = threading.Event()
        self._worker_thread = threading.get_ident()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to watch the calling thread; without a limit nothing happens."""
        if self._timeout_s is None and self._max_bytes is None:
            return
        self._worker_thread = threading.get_ident()
        self._thread = threading.Thread(target=self._look, name="watchdog", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop watching."""
        self._ended.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def watch(self) -> Self:
        """The work on one split begins with this context, and ends with it."""
        return self

    def __enter__(self) -> Self:
        with self._lock:
            self._since_s = time.monotonic()
        self._set_alarm((self._timeout_s or 0) + _GRACE_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:  # held while the split is given up, so that it is not settled as well
            self._since_s = None
            if self._given_up:
                raise Abandoned
        self._set_alarm(0.0)

    def _set_alarm(self, seconds: float) -> None:
        if self._own_process and self._timeout_s is not None:
            signal.setitimer(signal.ITIMER_REAL, seconds)

    def _look(self) -> None:
        while not self._ended.wait(_LOOK_S if self._timeout_s is None else min(_LOOK_S, self._timeout_s / 4)):
            with self._lock:
                reason = self._reason()
                if reason is not None:
                    self._given_up = True
                    self._set_alarm(_GIVE_UP_S)  # the one that is running would end the process in the middle of it
                    frame = sys._current_frames().get(self._worker_thread)
                    self._give_up(reason, "".join(traceback.format_stack(frame)) if frame is not None else "")
                    return

    def _reason(self) -> str | None:
        if self._since_s is None:
            return None
        if self._timeout_s is not None and time.monotonic() - self._since_s > self._timeout_s:
            return f"TimeoutError: the split took longer than timeout_s={self._timeout_s:g}"
        if self._max_bytes is not None and (used := memory_bytes()) > 2 * self._max_bytes:
            return (
                f"MemoryError: the worker had {used} bytes while it worked on the split, more than twice"
                f" max_worker_bytes={self._max_bytes}"
            )
        return None


def memory_bytes() -> int:
    """The memory of this process that is its own: mapped payloads are not."""
    with open("/proc/self/status", encoding="ascii") as status:
        for line in status:
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    return 0
