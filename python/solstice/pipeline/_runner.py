"""Where workers run. A runner starts workers; a handle watches one of them. All in the thread of the run."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Literal

from solstice.errors import ConfigError
from solstice.pipeline._rate_limit import RateLimiter
from solstice.pipeline._worker import WorkerSpec

RunnerName = Literal["local", "inprocess", "ray"]


class WorkerHandle(ABC):
    """One worker, from its start to ``close``.

    After ``close``: ``ready`` tells that it had set up its operator, ``orderly`` that it ended by itself because it was
    asked to or was worn, ``at_fault`` that what it still held counts as failed.
    """

    def __init__(self, worker: str) -> None:
        self.worker = worker
        self.ready = False
        self.orderly = False
        self.at_fault = True

    @property
    @abstractmethod
    def pid(self) -> int:
        """The process that it runs in."""

    @property
    @abstractmethod
    def alive(self) -> bool:
        """Whether it still works."""

    @property
    @abstractmethod
    def ending(self) -> str:
        """How it ended, in words; after ``close``."""

    @abstractmethod
    def stop(self) -> None:
        """Ask the worker to end after the splits that it has."""

    @abstractmethod
    def kill(self) -> None:
        """End it now; what it holds is done again."""

    @abstractmethod
    def close(self) -> Exception | None:
        """Wait for the end. Returns why the worker cannot simply be replaced; None if it can."""


class Runner(ABC):
    """Starts the workers of a run."""

    @abstractmethod
    def start(self, spec: WorkerSpec) -> WorkerHandle:
        """Start a worker."""

    @abstractmethod
    def limiter(self, stage: str) -> RateLimiter:
        """What the workers of a stage keep a rate with."""

    def close(self) -> None:  # noqa: B027 - to be overridden where there is something to do
        """Give up what the workers needed, when all of them are gone."""


def open_runner(name: str, state: Path, job: str) -> Runner:
    """The runner of that name."""
    if name == "local":
        from solstice.pipeline._local_runner import LocalRunner

        return LocalRunner(state)
    if name == "inprocess":
        from solstice.pipeline._inprocess_runner import InProcessRunner

        return InProcessRunner(state)
    if name == "ray":
        from solstice.pipeline._ray_runner import RayRunner

        return RayRunner(job)
    raise check_runner(name)


def check_runner(name: str) -> ConfigError:
    """The error for a runner that does not exist."""
    return ConfigError(f"runner is {name!r}.", option="runner", value=name, remedy="Use 'local', 'inprocess' or 'ray'.")
