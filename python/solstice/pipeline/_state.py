"""The state directory of a job: its queue, its payloads, Spark's checkpoint, and the lock that one run holds."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from solstice.errors import PipelineError


def state_directory(job: str) -> Path:
    """Where a job keeps its state unless it is told otherwise."""
    return Path(".solstice", job)


@contextlib.contextmanager
def exclusive(state: Path, job: str) -> Iterator[None]:
    """Let only one run of a job go on at a time; the lock ends with the process, whatever ends it."""
    state.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(state / "run.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode() or "another process"
            raise PipelineError(
                f"job {job!r} is running already, in process {holder}.",
                remedy=f"Stop that one first, or give this one another state than {state}.",
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)
