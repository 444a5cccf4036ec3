"""The garbage collector, switched off where it would only cost time."""

import contextlib
import gc
import threading
from collections.abc import Iterator


class _CollectorPause:
    """Counts who wants the garbage collector off: it walks all new rows again and again, twice the time of making them.

    Nothing here makes cycles, and the reference counts go on working.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders = 0
        self._was_enabled = False

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            if self._holders == 0:
                self._was_enabled = gc.isenabled()
                gc.disable()
            self._holders += 1
        try:
            yield
        finally:
            with self._lock:
                self._holders -= 1
                if self._holders == 0 and self._was_enabled:
                    gc.enable()


collector_paused = _CollectorPause()
