"""Waiting in tests, not for a time but until something is so; and a port that nobody takes meanwhile."""

import random
import socket
import time
from collections.abc import Callable

DEADLINE_S = 90.0


def wait_until(
    condition: Callable[[], object],
    what: str = "the condition",
    *,
    seconds: float = DEADLINE_S,
    poll_s: float = 0.02,
) -> None:
    """Poll until it holds; fails, and says what did not come true, when the time is over."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not true within {seconds:g} s: {what}"
        time.sleep(poll_s)


def free_port() -> int:
    """A port of loopback that is free, below those that the kernel gives to clients: nobody gets it by chance."""
    while True:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port
