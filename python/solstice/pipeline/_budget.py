"""How much disk payloads may take, and how those who write them wait."""

import logging
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from solstice._core.options import size_bytes
from solstice.errors import ConfigError
from solstice.pipeline._queue import Backlog
from solstice.pipeline._store import SplitPayloadStore

DEFAULT_BYTES = 16 << 30
_POLL_S = 0.05

_log = logging.getLogger(__name__)


def parse_budget(value: int | str | None) -> int | None:
    """A budget as a user writes it: bytes, or a size such as ``"4gib"``."""
    if value is None:
        return None
    try:
        return int(size_bytes(minimum=1)(str(value)))
    except ValueError:
        raise ConfigError(
            f"payload_budget is {value!r}.",
            option="payload_budget",
            value=value,
            remedy="Use a number of bytes from 1, or a size such as '4gib'.",
        ) from None


def budget_bytes(configured: int | None, store: SplitPayloadStore) -> int:
    """What was configured; by default 16 GiB, but no more than half of what is free where the payloads go."""
    if configured is not None:
        return configured
    free = free_bytes(store)
    return DEFAULT_BYTES if free is None else min(DEFAULT_BYTES, free // 2)


def free_bytes(store: SplitPayloadStore) -> int | None:
    """What is free on the disk of a store; None for one that is not on a disk of this machine."""
    directory = store.directory()
    if directory is None:
        return None
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    return shutil.disk_usage(Path(existing)).free


def wait_for_room(backlog: Callable[[], Backlog], budget: int, sleep: Callable[[float], object] = time.sleep) -> None:
    """Return when a split may be written: the budget is kept, or nothing is visible whose end could be waited for.

    Without the second part, writers that become visible only as a whole would wait for each other for ever.
    """
    while (now := backlog()).visible_bytes > 0 and now.visible_bytes + now.hidden_bytes > budget:
        sleep(_POLL_S)


def warn_of_overshoot(stage: str, task_bytes: int, slots: int, budget: int) -> None:
    """Say that the tasks that run at once may write more than the budget before the first of them is visible."""
    if task_bytes * slots > budget:
        _log.warning(
            "source %s: a task writes about %s, and %d run at once: payloads may take that much more than the budget of"
            " %s. Use more and smaller partitions, or a larger payload_budget.",
            stage,
            human_bytes(task_bytes),
            slots,
            human_bytes(budget),
        )


def warn_of_a_full_disk(stage: str, estimate: int, store: SplitPayloadStore) -> None:
    """Say before a write that cannot be held back that it may not fit; Spark's estimate is too rough to refuse by."""
    free = free_bytes(store)
    if free is not None and estimate > free:
        _log.warning(
            "source %s: all of it becomes visible at once, and so has to fit; Spark expects %s, and %s is free in %s."
            ' Use visibility="task" if the query gives the same rows when it runs again, or another payload store.',
            stage,
            human_bytes(estimate),
            human_bytes(free),
            store.url,
        )


def human_bytes(size: int) -> str:
    """A size to read: ``1.5 GiB``."""
    value = float(size)
    for unit in ("bytes", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:,.3g} GiB"
