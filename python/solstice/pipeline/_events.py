"""What happens in a job, in its state directory, for whoever looks: ``solstice status``, a dashboard, a person.

- ``events.jsonl``: appended to, one JSON object a line: ``{"at": 1763300000.0, "event": "worker started", ...}``;
- ``progress.json``: replaced about twice a second: the counters of all stages.

Neither is needed to resume, so neither is fsynced, and a write that fails stops nobody.
"""

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_EVENTS = "events.jsonl"
_PROGRESS = "progress.json"
_MAX_BYTES = 16 << 20


class EventLog:
    """The events of a job. Several processes append to it; each line is written in one piece."""

    def __init__(self, state: str | Path | None) -> None:
        self._state = None if state is None else Path(state)

    def append(self, event: str, **fields: Any) -> None:
        """Add an event; ``fields`` without a value are left out."""
        if self._state is None:
            return
        told = {"at": time.time(), "event": event} | {
            name: value for name, value in fields.items() if value is not None
        }
        line = (json.dumps(told, ensure_ascii=False, default=str) + "\n").encode()
        with contextlib.suppress(OSError):
            descriptor = os.open(self._state / _EVENTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                os.write(descriptor, line)
            finally:
                os.close(descriptor)

    def roll(self) -> None:
        """Put a log that has grown large aside, in place of the one before it. For the job's own process."""
        with contextlib.suppress(OSError):
            if self._state is not None and (path := self._state / _EVENTS).stat().st_size > _MAX_BYTES:
                path.replace(path.with_suffix(".old.jsonl"))

    def write_progress(self, progress: dict[str, Any]) -> None:
        """Replace the counters."""
        if self._state is None:
            return
        path = self._state / _PROGRESS
        with contextlib.suppress(OSError):
            temporary = path.with_suffix(".tmp")
            temporary.write_text(json.dumps({"at": time.time()} | progress))
            temporary.replace(path)


def read_events(state: str | Path) -> Iterator[dict[str, Any]]:
    """The events of a job, oldest first; a line that is being written is left out."""
    try:
        with open(Path(state) / _EVENTS, encoding="utf-8") as file:
            for line in file:
                if line.endswith("\n"):
                    yield json.loads(line)
    except FileNotFoundError:
        return


def read_progress(state: str | Path) -> dict[str, Any] | None:
    """The last counters of a job, or None if it has never run."""
    try:
        progress: dict[str, Any] = json.loads((Path(state) / _PROGRESS).read_text())
    except FileNotFoundError:
        return None
    return progress
