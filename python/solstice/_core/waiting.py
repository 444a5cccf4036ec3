"""Waiting in an event loop for a call of the native core."""

import asyncio
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from solstice import _native


async def finished(pending: "_native.Pending") -> None:
    """Wait for a call without blocking the loop or taking a thread; raises the call's error."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    # A loop has one reader a descriptor, and several tasks may wait for one call.
    descriptor = os.dup(pending.fileno())

    def wake() -> None:
        if not done.done():
            done.set_result(None)

    try:
        loop.add_reader(descriptor, wake)
        await done
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
    pending.result()
