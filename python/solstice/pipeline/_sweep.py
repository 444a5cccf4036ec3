"""Removes payloads: those that are settled, and those that nobody will ever ask for."""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator

from solstice.pipeline._queue import Queue
from solstice.pipeline._store import SplitPayloadStore

_log = logging.getLogger(__name__)


class Deletions:
    """Deletes what a worker was told to release, one lease later where the store needs it.

    A worker that lost its lease may be in the middle of reading what another one has settled by now. What is not yet
    deleted when the worker ends is found by the next sweep.
    """

    def __init__(self, store: SplitPayloadStore, lease_s: float, now_s: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._delay_s = 0.0 if store.survives_deletion else lease_s
        self._now_s = now_s
        self._waiting: deque[tuple[float, str]] = deque()

    def add(self, key: str) -> None:
        """Delete a payload when it is time."""
        self._waiting.append((self._now_s() + self._delay_s, key))

    def work(self) -> None:
        """Delete what is due. What cannot be deleted is left to the sweep: its split is settled all the same."""
        while self._waiting and self._waiting[0][0] <= self._now_s():
            key = self._waiting.popleft()[1]
            try:
                self._store.delete(key)
            except Exception as error:  # noqa: BLE001 - each store has errors of its own
                _log.warning("the payload %s cannot be deleted, a sweep will: %s", key, error)


def sweep(queue: Queue, store: SplitPayloadStore, suspects: set[str] | None = None) -> int:
    """Delete what writers left that are gone; returns how many payloads.

    The order makes it safe beside running writers: a writer is announced before its first payload, so one that has a
    payload and is not live now was fenced or has published; what it has not published by then it never will.

    Beside running workers pass ``suspects``, a set that is kept from one sweep to the next, at least a lease later:
    where somebody may still read what is settled, only what was found the last time too is deleted.
    """
    found = list(store.writers())
    queue.fence(())
    live = queue.live_writers()
    counts = {f"{stage}/{writer}": 0 for stage, writer in found if writer not in live}

    def keys() -> Iterator[str]:
        # Counted and passed on, not kept: most of them are those of splits that wait, and these may be millions.
        for prefix in counts:
            for key in store.keys(prefix):
                counts[prefix] += 1
                yield key

    unreferenced = queue.unreferenced(keys())
    if suspects is not None and not store.survives_deletion:
        fresh = unreferenced - suspects
        suspects.clear()
        suspects.update(fresh)
        unreferenced -= fresh
    garbage: dict[str, list[str]] = {prefix: [] for prefix in counts}
    for key in unreferenced:
        stage, writer, *_ = key.split("/")  # and no more: what Spark was in the middle of writing lies deeper
        garbage[f"{stage}/{writer}"].append(key)
    for prefix, left in garbage.items():
        if len(left) == counts[prefix]:
            store.clear(prefix)
        else:
            for key in left:
                store.delete(key)
            store.discard_unfinished(prefix)
    return len(unreferenced)
