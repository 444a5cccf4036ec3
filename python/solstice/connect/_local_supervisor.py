"""Keeps a local server's life inside its owner's: run as a script, by path, with the server's command as arguments.

The owner holds the other end of this process's standard input. When it writes there, to stop the server, or that end
closes, because the owner ended or was killed, the server is stopped and its folder removed. When the server ends by
itself, standard output is closed to tell the owner; the folder stays until the owner, who reads the log there, lets go.
Only the standard library is used here: the process starts in 20 ms and knows nothing of Solstice.

    python -I _local_supervisor.py HOME GRACE_S COMMAND...
"""

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys

_PR_SET_PDEATHSIG = 1
_POLL_S = 0.2


def _die_with_parent() -> None:
    """Runs in the server before exec: should this supervisor itself be killed, the kernel ends the server."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> int:
    """Run the server until the owner lets go; the exit code is the server's."""
    home, grace_s, command = sys.argv[1], float(sys.argv[2]), sys.argv[3:]
    owner_pid = os.getppid()
    with open(os.path.join(home, "server.log"), "ab") as log:
        server = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=_die_with_parent
        )
    told = False
    while not _let_go(owner_pid):
        if not told and server.poll() is not None:
            _tell_of_the_end(home, server.returncode)
            told = True
    _stop(server, grace_s)
    shutil.rmtree(home, ignore_errors=True)
    return server.returncode


def _let_go(owner_pid: int) -> bool:
    """Wait a moment; whether the owner let go meanwhile."""
    readable, _, _ = select.select([sys.stdin], [], [], _POLL_S)
    # A child that the owner forked holds a copy of the pipe's other end, so the owner itself is watched as well.
    return bool(readable) or os.getppid() != owner_pid


def _tell_of_the_end(home: str, code: int) -> None:
    how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
    with contextlib.suppress(OSError), open(os.path.join(home, "server.log"), "a") as log:  # the disk may be full
        log.write(f"\nthe process {how}\n")
    os.close(sys.stdout.fileno())


def _stop(server: "subprocess.Popen[bytes]", grace_s: float) -> None:
    server.terminate()  # of one that has ended already, nothing
    try:
        server.wait(grace_s)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


if __name__ == "__main__":
    sys.exit(main())
