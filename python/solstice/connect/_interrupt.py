"""Ctrl-C, kept out of gRPC's own code.

A KeyboardInterrupt may be raised between any two steps of Python, also right after gRPC took one of its locks and
before it would give it back. Nobody ever does then, and every later call of the channel waits for ever.
"""

import _thread
import signal
import threading
from collections.abc import Callable
from typing import Any


class Uninterrupted:
    """What is done within is not cut short by Ctrl-C, which is told to ``cancel`` at once and raised at the end.

    Only where Ctrl-C would raise KeyboardInterrupt: in the main thread, under Python's own handler.
    """

    __slots__ = ("_cancel", "_is_pressed", "_is_set")

    def __init__(self, cancel: Callable[[], Any] | None = None) -> None:
        self._cancel = cancel
        self._is_pressed = self._is_set = False

    def __enter__(self) -> None:
        if (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        ):
            self._is_set = True
            signal.signal(signal.SIGINT, self._press)

    def __exit__(self, *exc_info: object) -> None:
        if self._is_set:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if self._is_pressed:
            raise KeyboardInterrupt from None

    def _press(self, number: int, frame: object) -> None:
        self._is_pressed = True
        if self._cancel is not None:
            # In another thread, since this one may hold any lock; a Thread of Python's would take some itself.
            _thread.start_new_thread(self._cancel, ())
