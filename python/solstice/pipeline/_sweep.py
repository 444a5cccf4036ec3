"""Removes payloads that nobody will ever ask for."""

from solstice.pipeline._queue import Queue
from solstice.pipeline._store import SplitPayloadStore


def sweep(queue: Queue, store: SplitPayloadStore) -> int:
    """Delete what writers left that are gone; returns how many payloads.

    The order makes it safe beside running writers: a writer is announced before its first payload, so one that has a
    payload and is not live now was fenced or has published; what it has not published by then it never will.
    """
    found = list(store.writers())
    queue.fence(())
    live = queue.live_writers()
    left = {(stage, writer): set(store.keys(f"{stage}/{writer}")) for stage, writer in found if writer not in live}
    unreferenced = queue.unreferenced(key for keys in left.values() for key in keys)
    for (stage, writer), keys in left.items():
        if keys <= unreferenced:
            store.clear(f"{stage}/{writer}")
        else:
            for key in keys & unreferenced:
                store.delete(key)
    return len(unreferenced)
