"""The CPU time and the memory of a process and everything below it."""

import os
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PERIOD_S = 0.2
_SIGCHLD_BIT = 1 << 16
# A process that has not yet become what it will be.
STARTING = "starting"


@dataclass(frozen=True)
class _Process:
    """One process, as last seen. Its CPU time includes the children it has waited for."""

    pid: int
    parent: int
    cpu_s: float


class ProcessTree:
    """What the processes below ``root``, itself included, have used and use; watched from its making on.

    A process that ends is in the CPU time of the parent that waited for it. Spark's daemon ignores SIGCHLD, so that the
    kernel forgets what its workers used: for those the last sample counts.
    """

    def __init__(self, root: int) -> None:
        self._root = root
        self._seen: dict[int, _Process] = {}
        self._roles = {root: "jvm"}
        self._forgotten_s: Counter[str] = Counter()
        self._peak_mb: dict[str, float] = {}
        self._lock = threading.Lock()
        threading.Thread(target=self._watch, daemon=True).start()

    def cpu_s(self) -> Counter[str]:
        """The CPU time so far, by role."""
        with self._lock:
            self._sample()
            used = self._forgotten_s.copy()
            for process in self._seen.values():
                used[self._roles[process.pid]] += process.cpu_s
            return used

    def lives(self, *roles: str) -> bool:
        """Whether there is a process of one of these roles."""
        with self._lock:
            self._sample()
            return any(self._roles[pid] in roles for pid in self._seen)

    def begin_peaks(self) -> None:
        """Forget the peaks of memory."""
        with self._lock:
            self._peak_mb.clear()

    def peaks_mb(self) -> dict[str, float]:
        """The most resident memory of one process of each role since :meth:`begin_peaks`."""
        with self._lock:
            self._sample()
            return dict(self._peak_mb)

    def _watch(self) -> None:
        while Path(f"/proc/{self._root}").exists():
            with self._lock:
                self._sample()
            threading.Event().wait(_PERIOD_S)

    def _sample(self) -> None:
        now = {process.pid: process for process in _below(self._root)}
        for pid, process in self._seen.items():
            if pid not in now and process.parent in now and _ignores_children(process.parent):
                self._forgotten_s[self._roles[pid]] += process.cpu_s
        self._seen = now
        for pid in now:
            role = self._roles.get(pid)
            if role in (None, STARTING):
                role = self._roles[pid] = _role(pid)
            self._peak_mb[role] = max(_resident_mb(pid), self._peak_mb.get(role, 0.0))


def _below(root: int) -> Iterator[_Process]:
    children: dict[int, list[tuple[int, float]]] = defaultdict(list)
    waiting = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            # The name of the program may have blanks; behind it stand the state, the parent and the rest.
            fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        pid, parent, cpu_s = int(name), int(fields[1]), sum(map(int, fields[11:15])) * _TICK_S
        children[parent].append((pid, cpu_s))
        if pid == root:
            waiting.append(_Process(pid, parent, cpu_s))
    while waiting:
        process = waiting.pop()
        yield process
        waiting += [_Process(pid, process.pid, cpu_s) for pid, cpu_s in children[process.pid]]


def _ignores_children(pid: int) -> bool:
    return bool(int(_status(pid).get("SigIgn", "0"), 16) & _SIGCHLD_BIT)


def _resident_mb(pid: int) -> float:
    return int(_status(pid).get("VmRSS", "0 kB").split()[0]) / 1e3


def _status(pid: int) -> dict[str, str]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _role(pid: int) -> str:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        command = ""
    roles = {"solstice.pubsub._agent": "agent", "python_streaming_source_runner": "planner", "pyspark": "worker"}
    return next((role for part, role in roles.items() if part in command), STARTING)
