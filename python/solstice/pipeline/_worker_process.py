"""The process of a local worker, as its parent starts it.

Standard input carries the pickled WorkerSpec, then one byte ``s`` when the worker shall stop; its end means that the
parent is gone, and then so is the worker. Into a file in memory go one byte ``r`` when the worker has all that it
needs, and then the error that no other worker would escape either, if there is one.
"""

import ctypes
import logging
import os
import pickle
import signal
import struct
import sys
import threading
import traceback
from typing import Any

from solstice.errors import LeaseLostError, PipelineError

STOP = b"s"
READY = b"r"
LENGTH = struct.Struct(">Q")
EXIT_FENCED = 3
EXIT_FAILED = 4
EXIT_GAVE_UP = 5  # the split that it was stuck with is settled as failed

_STDIN = 0
_PR_SET_PDEATHSIG = 1


def main(report_descriptor: int) -> int:
    """Run the worker that standard input describes; the result is the exit status."""
    _die_with_parent()
    # Ctrl-C reaches the whole process group; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the kernel's end of a split that takes too long
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    os.set_inheritable(report_descriptor, False)
    control = _take_standard_input()
    try:
        spec = _read_spec(control)
        stop = threading.Event()
        threading.Thread(target=_watch_parent, args=(control, stop), name="parent", daemon=True).start()
        from solstice.pipeline._worker import StageWorker

        worker = StageWorker(spec, stop, abandon=_abandon, own_process=True)
        worker.run(on_ready=lambda: _report_ready(report_descriptor))
    except LeaseLostError as error:
        logging.getLogger(__name__).warning("%s", error)
        return EXIT_FENCED
    except Exception as error:  # noqa: BLE001 - the border of the process: it goes on in the parent
        with os.fdopen(report_descriptor, "wb") as report:
            report.write(pickled_error(error))
        return EXIT_FAILED
    return 0


def _report_ready(report_descriptor: int) -> None:
    os.write(report_descriptor, READY)


def _abandon() -> None:
    """End the process past the operator that is stuck in it."""
    sys.stderr.flush()
    os._exit(EXIT_GAVE_UP)


def _take_standard_input() -> int:
    """Move the parent's pipe to a descriptor of our own: the programs that user code starts read standard input."""
    control = os.dup(_STDIN)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, _STDIN)
    os.close(empty)
    return control


def _read_spec(control: int) -> Any:
    from solstice.pipeline import _closures

    (length,) = LENGTH.unpack(_read(control, LENGTH.size))
    search_path, body = pickle.loads(_read(control, length))
    sys.path[:] = search_path  # functions that were pickled by name are found where the parent found them
    return _closures.loads(body)


def _read(control: int, size: int) -> bytes:
    """Read from the pipe itself: a thread that blocks in a file object crashes the interpreter when it ends."""
    data = b""
    while len(data) < size:
        if not (more := os.read(control, size - len(data))):
            os._exit(EXIT_FENCED)
        data += more
    return data


def _watch_parent(control: int, stop: threading.Event) -> None:
    while _read(control, 1) == STOP:
        stop.set()


def _die_with_parent() -> None:
    """Also when user code holds the interpreter's lock and the watching thread cannot run."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def pickled_error(error: Exception) -> bytes:
    """An error for the job's process, with a note of where it was raised; one that cannot be pickled becomes text."""
    text = "".join(traceback.format_exception(error))
    try:
        error.add_note(f"In the worker:\n{text}")
        data = pickle.dumps(error)
        pickle.loads(data)
    except Exception:  # noqa: BLE001 - an error of foreign code may raise anything when pickled
        return pickle.dumps(PipelineError(f"a worker failed: {text}"))
    return data
