"""How far an operation is, as its handlers are told: in PySpark's shape."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class StageInfo:
    """A stage of an operation."""

    stage_id: int
    num_tasks: int
    num_completed_tasks: int
    num_bytes_read: int
    done: bool


class ProgressHandler(Protocol):
    """Called when something has moved, and once with ``done`` at the end."""

    def __call__(
        self, stages: Iterable[StageInfo] | None, inflight_tasks: int, operation_id: str | None, done: bool
    ) -> None:
        """Take note; what it raises ends the operation."""
        ...


class ProgressReport:
    """Tells the handlers of one operation."""

    def __init__(self, handlers: Sequence[ProgressHandler], operation_id: str) -> None:
        self._handlers = handlers
        self._operation_id = operation_id
        self._stages: list[StageInfo] = []
        self._inflight_tasks = 0

    def update(self, message: Any) -> None:
        """Take an ExecutionProgress message."""
        stages = [
            StageInfo(stage.stage_id, stage.num_tasks, stage.num_completed_tasks, stage.input_bytes_read, stage.done)
            for stage in message.stages
        ]
        if any(stage.num_tasks for stage in stages):
            self._stages, self._inflight_tasks = stages, message.num_inflight_tasks
            self._tell(done=False)

    def finish(self) -> None:
        """The operation is over, in whatever way."""
        self._tell(done=True)

    def _tell(self, *, done: bool) -> None:
        for handler in self._handlers:
            handler(
                stages=self._stages, inflight_tasks=self._inflight_tasks, operation_id=self._operation_id, done=done
            )
