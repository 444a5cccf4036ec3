"""Workers as processes of this machine, spawned and never forked.

Not by ``multiprocessing``, whose children import the user's main script again: a script that ends in ``job.run()``
would have to hide it behind ``if __name__ == "__main__"``. Functions of the script arrive by value instead.
"""

import contextlib
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import IO

from solstice.errors import PipelineError
from solstice.pipeline import _closures
from solstice.pipeline._worker import WorkerSpec
from solstice.pipeline._worker_process import EXIT_FENCED, LENGTH, READY, STOP

_PACKAGES = str(Path(__file__).parents[2])
_COMMAND = """import sys
sys.path.insert(0, sys.argv[1])
from solstice.pipeline._worker_process import main
sys.exit(main(int(sys.argv[2])))
"""


class WorkerProcess:
    """One worker process. It dies with the thread that started it, which therefore has to outlive it."""

    def __init__(self, spec: WorkerSpec) -> None:
        self.worker = spec.worker
        body = pickle.dumps((sys.path, _closures.dumps(spec)))
        report, child_report = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _COMMAND, _PACKAGES, str(child_report)],
                stdin=subprocess.PIPE,
                pass_fds=[child_report],
            )
        except BaseException:
            os.close(report)
            raise
        finally:
            os.close(child_report)
        self._report = os.fdopen(report, "rb")
        self._stdin: IO[bytes] | None = self._process.stdin
        self._send(LENGTH.pack(len(body)) + body)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    @property
    def returncode(self) -> int | None:
        """The exit status, negative for a signal; None while it runs."""
        return self._process.poll()

    def stop(self) -> None:
        """Ask the worker to end after the split that it has."""
        self._send(STOP)

    def kill(self) -> None:
        """End it now; what it holds is done again."""
        self._process.kill()

    def close(self) -> Exception | None:
        """Wait for the end of the process and give its pipes back.

        Returns why the worker cannot simply be replaced; None if it can: it was killed, fenced, or ended by the user's
        code, and a split that does this every time is buried after its retries.
        """
        self._process.wait()
        with self._report:
            error = self._error(self._report.read())
        if self._stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._stdin.close()
            self._stdin = None
        return error

    def _error(self, report: bytes) -> Exception | None:
        if len(report) > len(READY):
            error = pickle.loads(report.removeprefix(READY))
            return error if isinstance(error, Exception) else PipelineError(str(error))
        if self._process.returncode in (0, EXIT_FENCED) or self._process.returncode < 0 or report == READY:
            return None
        return PipelineError(
            f"worker {self.worker} ended with status {self._process.returncode} before it had started.",
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
