"""Calls of librdkafka that may never return."""

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

Call = Callable[[], object]


class BoundedCalls:
    """Makes calls on a thread of its own, which is given up with the first one that does not return in time.

    The thread is kept from call to call: to start one takes as long as a broker takes to answer. It is no executor's,
    as those are waited for at the end of the process.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: SimpleQueue[Call | None] | None = None
        self._outcomes: SimpleQueue[Exception | None] = SimpleQueue()

    def call(self, call: Call, within_s: float) -> None:
        """Make a call, and raise what it raises, or TimeoutError."""
        calls = self._calls or self._start()
        calls.put(call)
        try:
            error = self._outcomes.get(timeout=within_s)
        except Empty:
            self.close()
            raise TimeoutError from None
        if error is not None:
            raise error

    def close(self) -> None:
        """End the thread, as soon as its call returns."""
        calls, self._calls = self._calls, None
        if calls is not None:
            calls.put(None)

    def _start(self) -> "SimpleQueue[Call | None]":
        calls: SimpleQueue[Call | None] = SimpleQueue()
        self._calls, self._outcomes = calls, SimpleQueue()
        threading.Thread(target=_serve, args=(calls, self._outcomes), name=self._name, daemon=True).start()
        return calls


def _serve(calls: "SimpleQueue[Call | None]", outcomes: "SimpleQueue[Exception | None]") -> None:
    while (call := calls.get()) is not None:
        outcome = _outcome(call)
        del call  # a thread that waits keeps no producer alive
        outcomes.put(outcome)
        del outcome


def _outcome(call: Call) -> Exception | None:
    try:
        call()
    except Exception as error:  # noqa: BLE001 - raised in the thread that has asked
        return error
    return None
