"""The side of a source that runs in the job's own process."""

import logging
import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from solstice.errors import ConfigError, PipelineError
from solstice.pipeline._operator import OperatorConfig
from solstice.pipeline._split import Split, SplitPayload

BATCH_ID = "0"  # a source that the job itself reads is one batch

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SourceContext:
    """Where a source writes to, how many bytes may lie there, and where it may keep what it needs to resume."""

    job: str
    stage: str
    queue: str
    payloads: str
    state: Path
    payload_budget: int | None = None


class SourceConfig(OperatorConfig, ABC):
    """The configuration of a source; it knows the master that runs it."""

    # Whether the job itself writes the stage: then no writer of an earlier run can be in its right when a run starts.
    owned = True

    @abstractmethod
    def master(self, context: SourceContext) -> "SourceMaster":
        """The master that reads this source into a stage."""

    def source(self, payloads: str) -> "Source | None":
        """What workers read source messages with; None if every message of this source has a payload."""
        return None


def check_positive(config: SourceConfig, *fields: str) -> None:
    """Refuse a field that is no whole number above 0; None is left to stand for nothing."""
    for name in fields:
        value = getattr(config, name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise ConfigError(
                f"{name} of {type(config).__name__} is {value!r}.",
                option=name,
                value=value,
                remedy="Use a whole number above 0.",
            )


class Source(ABC):
    """The side of a source that runs in the workers of the next stage. It is pickled to them."""

    @abstractmethod
    def read(self, split: Split) -> SplitPayload | None:
        """The rows of a split that a source message names; None if they are not there."""


class SourceMaster(ABC):
    """Reads a source in a thread of its own and makes splits visible, until there are no more or it is stopped."""

    def __init__(self, context: SourceContext) -> None:
        self.context = context
        self._stop = threading.Event()
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._guarded, name=f"source-{context.stage}", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def stop(self) -> None:
        """Ask the source to end early; what is visible stays so."""
        self._stop.set()

    def join(self, timeout_s: float) -> None:
        """Wait until the source has ended. Raises PipelineError if it has not within ``timeout_s``."""
        if self._thread.ident is None:
            return
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise PipelineError(
                f"source {self.context.stage!r} was stopped and still runs after {timeout_s:g} s.",
                remedy="Nothing is lost, but end this process before the job runs again.",
            )

    @property
    def over(self) -> bool:
        """Whether nothing more comes in this run. Raises the error that ended the source, if one did."""
        over = self._over.is_set()
        if over and self._error is not None and not self._stop.is_set():
            raise self._error
        return over

    @abstractmethod
    def read(self) -> None:
        """Read all of the source, or until ``self._stop`` is set."""

    def pause(self, seconds: float) -> None:
        """Sleep; raises PipelineError when the source is stopped meanwhile, so that it does not wait for ever."""
        if self._stop.wait(seconds):
            raise PipelineError(f"source {self.context.stage!r} was stopped while it waited for room.")

    def _guarded(self) -> None:
        try:
            self.read()
        except BaseException as error:  # noqa: BLE001 - carried over to the thread that asks ``over``
            self._error = error
            if self._stop.is_set():
                _log.info("source %s was stopped: %s", self.context.stage, error)
        finally:
            self._over.set()


class ExternalSource(SourceConfig):
    """A stage that others write, for example ``df.write.format("solstice")`` of another Spark job; it never ends."""

    owned = False

    def master(self, context: SourceContext) -> "ExternalSourceMaster":
        """The master that only waits."""
        return ExternalSourceMaster(context)


class ExternalSourceMaster(SourceMaster):
    """Waits to be stopped."""

    def read(self) -> None:
        """Nothing is read here: the writers are elsewhere."""
        self._stop.wait()
