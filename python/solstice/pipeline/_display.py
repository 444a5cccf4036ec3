"""A job on the terminal: a bar per stage while it runs, and a table at its end."""

import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from solstice.pipeline._progress import JobResult, StageProgress


class Display:
    """Bars on standard error, if that is a terminal; ``show`` decides otherwise. Nothing loads rich before then."""

    def __init__(self, job: str, *, show: bool | None) -> None:
        self._job = job
        self._show = sys.stderr.isatty() if show is None else show
        self._bars: Any = None
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> Self:
        if self._show:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            self._bars = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]}"),
                TextColumn("{task.fields[lag]}"),
                TextColumn("{task.fields[workers]}"),
                TimeRemainingColumn(),
                console=Console(stderr=True, markup=False, highlight=False),
                refresh_per_second=4,
            )
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None

    def update(self, stages: Sequence[StageProgress]) -> None:
        """Draw what is known now."""
        if self._bars is None:
            return
        for stage in stages:
            if stage.stage not in self._tasks:
                self._tasks[stage.stage] = self._bars.add_task(stage.stage, total=None, rate="", lag="", workers="")
            known = stage.settled + stage.dead + stage.in_flight + stage.waiting
            self._bars.update(
                self._tasks[stage.stage],
                completed=stage.settled + stage.dead if known else stage.produced,
                total=known or (stage.produced if stage.done else None),
                rate=f"{stage.records_per_s:,.0f} rows/s",
                lag=f"{stage.waiting:,} waiting" if known else "",
                workers=f"{stage.workers} workers" if stage.workers else "",
            )

    def show_result(self, result: JobResult) -> None:
        """The table at the end."""
        if self._show:
            from rich.console import Console

            Console(stderr=True, highlight=False).print(result_table(result))


def result_table(result: JobResult) -> Any:
    """The stages of a finished run, as a rich table."""
    from rich.table import Table

    state = "stopped" if result.stopped else "done"
    rate = max((stage.settled_records for stage in result.stages), default=0) / max(result.duration_s, 1e-9)
    table = Table(title=f"{result.job}: {state} in {result.duration_s:.1f} s, {rate:,.0f} rows/s")
    for column in ("stage", "splits", "rows", "produced", "dead", "waiting"):
        table.add_column(column, justify="left" if column == "stage" else "right")
    for stage in result.stages:
        table.add_row(
            stage.stage,
            f"{stage.settled or stage.produced:,}",
            f"{stage.settled_records or stage.produced_records:,}",
            f"{stage.produced:,}",
            f"{stage.dead:,}",
            f"{stage.waiting:,}",
        )
    return table
