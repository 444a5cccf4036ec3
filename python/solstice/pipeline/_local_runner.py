"""Workers as processes of this machine, spawned and never forked.

Not by ``multiprocessing``, whose children import the user's main script again: a script that ends in ``job.run()``
would have to hide it behind ``if __name__ == "__main__"``. Functions of the script arrive by value instead.
"""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

from solstice.errors import PipelineError
from solstice.pipeline import _closures
from solstice.pipeline._rate_limit import FileRateLimiter, RateLimiter
from solstice.pipeline._runner import Runner, WorkerHandle
from solstice.pipeline._worker import WorkerSpec
from solstice.pipeline._worker_process import EXIT_FENCED, EXIT_GAVE_UP, LENGTH, READY, STOP

_PACKAGES = str(Path(__file__).parents[2])
_COMMAND = """import sys
sys.path.insert(0, sys.argv[1])
from solstice.pipeline._worker_process import main
sys.exit(main(int(sys.argv[2])))
"""


class LocalRunner(Runner):
    """Starts worker processes on this machine."""

    def __init__(self, state: Path) -> None:
        self._state = state

    def start(self, spec: WorkerSpec) -> "WorkerProcess":
        """Start one."""
        return WorkerProcess(spec)

    def limiter(self, stage: str) -> RateLimiter:
        """A rate that is kept in the state directory."""
        return FileRateLimiter(self._state / f"rate-{stage}")


class WorkerProcess(WorkerHandle):
    """One worker process. It dies with the thread that started it, which therefore has to outlive it."""

    def __init__(self, spec: WorkerSpec) -> None:
        super().__init__(spec.worker)
        body = pickle.dumps((sys.path, _closures.dumps(spec, f"the function of stage {spec.stage!r}")))
        # Memory and not a pipe: it holds a report of any size, and reading it waits for nobody who inherited it.
        self._report = os.memfd_create(f"solstice-report-{spec.worker}")
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _COMMAND, _PACKAGES, str(self._report)],
                stdin=subprocess.PIPE,
                pass_fds=[self._report],
                start_new_session=True,  # its group is then what it started, which ends with it
            )
        except BaseException:
            os.close(self._report)
            raise
        self._stdin: IO[bytes] | None = self._process.stdin
        self._send(LENGTH.pack(len(body)) + body)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        if self._process.returncode is not None:
            return False
        try:  # it is not reaped here: until ``close`` its group keeps its number
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        except ChildProcessError:
            return False

    @property
    def ending(self) -> str:
        """How the process ended, in words; after ``close``."""
        status = self._process.returncode
        if status == EXIT_GAVE_UP:
            return "a split that it was stuck with"
        if status == -signal.SIGALRM:
            return "a split that was stuck past its time-out"
        return f"signal {-status} ({signal.strsignal(-status)})" if status < 0 else f"status {status}"

    def stop(self) -> None:
        """Ask the worker to end after the split that it has."""
        self._send(STOP)

    def kill(self) -> None:
        """End it now, with what it started; what it holds is done again."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> Exception | None:
        """Wait for the end of the process, end what it started, and give its descriptors back.

        Returns why the worker cannot simply be replaced; None if it can: it was killed, fenced, or ended by the user's
        code, and a split that does this every time is buried after its retries.
        """
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        self.kill()
        self._process.wait()
        with os.fdopen(self._report, "rb") as file:
            file.seek(0)
            report = file.read()
        self.ready = report.startswith(READY)
        self.at_fault = self._process.returncode != EXIT_GAVE_UP
        self.orderly = self._process.returncode == 0 and self.ready
        if self._stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._stdin.close()
            self._stdin = None
        return self._error(report)

    def _error(self, report: bytes) -> Exception | None:
        if len(report) > len(READY):
            error = pickle.loads(report.removeprefix(READY))
            return error if isinstance(error, Exception) else PipelineError(str(error))
        if self._process.returncode in (0, EXIT_FENCED) or self._process.returncode < 0 or report == READY:
            return None
        return PipelineError(
            f"worker {self.worker} ended with {self.ending} before it had started.",
            remedy="Its standard error has the reason.",
        )

    def _send(self, data: bytes) -> None:
        if self._stdin is None:
            return
        try:
            self._stdin.write(data)
            self._stdin.flush()
        except BrokenPipeError:
            self._stdin = None  # it is dead already: its exit status tells the rest
