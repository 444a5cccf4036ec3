"""Waiting in an event loop for a call of the native core."""

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from solstice import _native


async def finished(pending: "_native.Pending") -> None:
    """Wait for a call without blocking the loop or taking a thread; raises the call's error."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    descriptor = pending.fileno()

    def wake() -> None:
        if not done.done():
            done.set_result(None)

    loop.add_reader(descriptor, wake)
    try:
        await done
    finally:
        loop.remove_reader(descriptor)
    pending.result()
