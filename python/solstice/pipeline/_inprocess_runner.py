"""Workers as threads of this process: for tests of jobs, where functions can be debugged and leave marks."""

import copy
import os
import threading
from dataclasses import replace
from pathlib import Path

from solstice.errors import LeaseLostError
from solstice.pipeline._rate_limit import FileRateLimiter, RateLimiter
from solstice.pipeline._runner import Runner, WorkerHandle
from solstice.pipeline._watchdog import Abandoned
from solstice.pipeline._worker import StageWorker, WorkerSpec

_KILL_S = 5.0


class InProcessRunner(Runner):
    """Starts workers as threads."""

    def __init__(self, state: Path) -> None:
        self._state = state

    def start(self, spec: WorkerSpec) -> "WorkerThread":
        """Start one."""
        return WorkerThread(spec)

    def limiter(self, stage: str) -> RateLimiter:
        """A rate that is kept in the state directory."""
        return FileRateLimiter(self._state / f"rate-{stage}")


class WorkerThread(WorkerHandle):
    """One worker thread. It cannot be killed: one that is stuck is left behind, and can commit nothing any more."""

    def __init__(self, spec: WorkerSpec) -> None:
        super().__init__(spec.worker)
        # A copy, because each worker sets its operator up and tears it down; a shallow one, so that marks are seen.
        self._spec = replace(spec, work=copy.copy(spec.work))
        self._stop = threading.Event()
        self._gone = threading.Event()
        self._gave_up = False
        self._fenced = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"worker-{spec.stage}-{spec.worker}", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        """The process of the job itself."""
        return os.getpid()

    @property
    def alive(self) -> bool:
        """Whether it still works."""
        return not self._gone.is_set()

    @property
    def ending(self) -> str:
        """How it ended."""
        if self._gave_up:
            return "a split that it was stuck with"
        return "an orderly end" if self.orderly else repr(self._error)

    def stop(self) -> None:
        """Ask it to end."""
        self._stop.set()

    def kill(self) -> None:
        """A thread can only be asked, and waited for a little."""
        self._stop.set()
        self._gone.wait(_KILL_S)

    def close(self) -> Exception | None:
        """Look how it ended; one that is stuck is fenced by the master, and left alone."""
        self.orderly = self._gone.is_set() and self._error is None and not self._gave_up and not self._fenced
        self.at_fault = False
        return self._error if isinstance(self._error, Exception) else None

    def _run(self) -> None:
        try:
            StageWorker(self._spec, self._stop, abandon=self._abandon).run(on_ready=self._set_ready)
        except LeaseLostError:
            self._fenced = True
        except Abandoned:
            pass
        except BaseException as error:  # noqa: BLE001 - the border of the thread: it goes on in the master
            self._error = error
        finally:
            self._gone.set()

    def _set_ready(self) -> None:
        self.ready = True

    def _abandon(self) -> None:
        self._gave_up = True
        self._gone.set()
