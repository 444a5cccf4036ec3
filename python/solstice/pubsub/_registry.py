"""The agents of this user on this host: a folder each, under one that nobody else can enter.

A folder is alive while it is locked. The agent holds the lock, so that also ``kill -9`` lets it go; the next agent to
start sweeps away what is dead. Those who clean temporary folders by age leave a locked one alone.
"""

import fcntl
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from solstice.errors import MachineError

# A Unix socket's path has room for 107 characters; this leaves room for what comes below the temporary folder.
_LONGEST_TEMPORARY_FOLDER = 64
_ENTRY, _SOCKET = "agent.json", "agent.sock"


@dataclass(frozen=True)
class AgentEntry:
    """A living agent, and how to ask it."""

    pid: int
    epoch: str
    endpoint: str
    subscription: str
    socket: str
    token: str = field(repr=False)
    started: float

    def write(self) -> None:
        """Let ``solstice pubsub status`` find the agent."""
        with open(Path(self.socket).parent / _ENTRY, "x", opener=_private) as file:
            json.dump(asdict(self), file)


class AgentFolder:
    """A new agent's folder. The agent inherits ``lock``; after :meth:`hand_over` it is the only one to hold it."""

    def __init__(self) -> None:
        root = _root()
        with _locked(root):
            _sweep(root)
            self.path = Path(tempfile.mkdtemp(prefix="", dir=root))
            self.lock = os.open(self.path, os.O_RDONLY)
            fcntl.flock(self.lock, fcntl.LOCK_EX)
        self.socket = str(self.path / _SOCKET)

    def hand_over(self) -> None:
        """Close this process's part of the lock."""
        os.close(self.lock)

    def remove(self) -> None:
        """Remove the folder, as the agent itself does at its end."""
        shutil.rmtree(self.path, ignore_errors=True)


def living_agents() -> list[AgentEntry]:
    """The agents that run now, the oldest first."""
    found = []
    for folder in _root().iterdir():
        if _is_alive(folder):
            with suppress(OSError, ValueError, TypeError):  # it starts or ends at this moment
                found.append(AgentEntry(**json.loads((folder / _ENTRY).read_text())))
    return sorted(found, key=lambda entry: entry.started)


def _root() -> Path:
    base = tempfile.gettempdir()
    root = Path(base if len(base) <= _LONGEST_TEMPORARY_FOLDER else "/tmp", f"solstice-{os.getuid()}")
    with suppress(FileExistsError):
        root.mkdir(mode=0o700)
    found = root.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise MachineError(
            f"{root} is not a folder that only this user can enter, and sockets of agents have to be in one.",
            remedy=f"Remove {root}, or point TMPDIR to another folder.",
        )
    return root


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    """One at a time, so that nobody sweeps away a folder that is being made."""
    descriptor = os.open(root, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _sweep(root: Path) -> None:
    for folder in root.iterdir():
        if not _is_alive(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _is_alive(folder: Path) -> bool:
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
