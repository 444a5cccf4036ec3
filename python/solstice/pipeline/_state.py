"""The state directory of a job: its queue, its payloads, Spark's checkpoint, and the lock that one run holds."""

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from solstice._core.durable import fsync_directory
from solstice.errors import ConfigError, JobRunningError

STATES = Path(".solstice")
_RECORD = "job.json"
_REMOVAL = "removing"
_LOOK_S = 1.0  # a look at the lock by somebody else is over long before
_POLL_S = 0.02


def state_directory(job: str) -> Path:
    """Where a job keeps its state unless it is told otherwise."""
    return STATES / job


@dataclass(frozen=True)
class JobRecord:
    """What others have to know about a job whose file they do not have: ``solstice status``, ``dlq`` and ``gc``."""

    job: str
    queue: str
    payloads: str
    runner: str
    stages: dict[str, list[str]]
    owned: list[str] = field(default_factory=list)  # the stages that nobody but the job itself writes

    def write(self, state: Path) -> None:
        """Keep it in the state directory."""
        temporary = state / f"{_RECORD}.tmp"
        temporary.write_text(json.dumps(vars(self), indent=2))
        temporary.replace(state / _RECORD)

    @classmethod
    def read(cls, state: Path) -> "JobRecord":
        """Read it."""
        try:
            return cls(**json.loads((state / _RECORD).read_text()))
        except FileNotFoundError:
            raise ConfigError(
                f"there is no job in {state}.",
                option="job",
                value=str(state),
                remedy="Give the directory with --state, or run this where the job runs.",
            ) from None


def running_pid(state: Path) -> int | None:
    """The process that runs the job now, or None."""
    try:
        descriptor = os.open(state / "run.lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return int(os.pread(descriptor, 32, 0) or 0)
    finally:
        os.close(descriptor)
    return None


@contextlib.contextmanager
def removal(state: Path) -> Iterator[None]:
    """Remove what a job has left, marked: half of it would look like a job that has lost rows."""
    (state / _REMOVAL).touch()
    fsync_directory(state)
    yield
    (state / _REMOVAL).unlink()
    fsync_directory(state)


def is_half_removed(state: Path) -> bool:
    """Whether a removal was begun and not ended."""
    return (state / _REMOVAL).exists()


@contextlib.contextmanager
def exclusive(state: Path, job: str) -> Iterator[None]:
    """Let only one run of a job go on at a time; the lock ends with the process, whatever ends it."""
    try:
        state.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(state / "run.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ConfigError(
            f"the state directory {state} of job {job!r} cannot be used: {error.strerror}.",
            option="state",
            value=str(state),
            remedy="Name a directory that can be written, with Job(state=...) or --set state=...",
        ) from error
    try:
        if not _locked(descriptor):
            holder = os.pread(descriptor, 32, 0).decode() or "another process"
            raise JobRunningError(
                f"job {job!r} is running already, in process {holder}.",
                remedy=f"Stop that one first, or give this one another state than {state}.",
            )
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    """Take the lock; False if somebody keeps it. Who only asks whether a job runs has it for an instant."""
    deadline_s = time.monotonic() + _LOOK_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline_s:
                return False
            time.sleep(_POLL_S)
        else:
            return True
