"""Named points at which a crash test may end this process, as ``kill -9`` would.

``SOLSTICE_FAULTS="sink.prepared=/tmp/marker"`` kills the first process that reaches the point; the marker, created by
it, lets the ones after it pass. Without the variable a point costs one look at the environment.
"""

import os
import signal

VARIABLE = "SOLSTICE_FAULTS"
# As a split passes them; those of the sink are the steps of the committing protocol.
POINTS = ("sink.start", "sink.written", "worker.stored", "sink.prepared", "sink.renamed")


def reach(point: str) -> None:
    """Say that a point of the protocol is reached."""
    faults = os.environ.get(VARIABLE)
    if not faults:
        return
    for fault in faults.split(","):
        name, _, marker = fault.partition("=")
        if name == point and _first(marker):
            os.kill(os.getpid(), signal.SIGKILL)


def _first(marker: str) -> bool:
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True
