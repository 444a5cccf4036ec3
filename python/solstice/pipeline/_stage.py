"""The stages of a job, as a user describes them. Nothing runs here."""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from solstice.errors import ConfigError
from solstice.pipeline._operator import MapOperator, Operator
from solstice.pipeline._sink import ParquetSink
from solstice.pipeline._source_master import SourceConfig

if TYPE_CHECKING:
    from solstice.pipeline._job import Job

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")


class Stage:
    """One step of a job; made by ``job.source``, ``map`` and ``sink``. Several stages may follow the same one."""

    def __init__(
        self,
        job: "Job",
        name: str,
        *,
        work: SourceConfig | Operator | ParquetSink,
        upstream: "Stage | None" = None,
        workers: int | tuple[int, int] = 1,
        retries: int = 3,
    ) -> None:
        self.job = job
        self.name = name
        self.work = work.owned_by(job.queue, name) if isinstance(work, ParquetSink) else work
        self.upstream = upstream
        self.min_workers, self.max_workers = _workers(workers)
        if retries < 0:
            raise ConfigError(f"retries is {retries}.", option="retries", value=retries, remedy="Use 0 or more.")
        self.retries = retries

    def map(
        self,
        function: Callable[[Any], Any] | Operator,
        *,
        name: str | None = None,
        workers: int | tuple[int, int] = 1,
        retries: int = 3,
    ) -> "Stage":
        """Apply a function (table to table) or an Operator to every split, in worker processes.

        A split that fails is tried again up to ``retries`` times, then it goes to the dead letters and the job goes on.
        """
        operator = function if isinstance(function, Operator) else MapOperator(function)
        default = getattr(function, "__name__", type(function).__name__)
        return self.job.add_stage(
            name or (default if _NAME.fullmatch(default) else "map"),
            work=operator,
            upstream=self._open(),
            workers=workers,
            retries=retries,
        )

    def sink(
        self,
        sink: ParquetSink,
        *,
        name: str = "sink",
        workers: int | tuple[int, int] = 1,
        retries: int = 3,
    ) -> "Stage":
        """Write every split out; the end of this branch of the job."""
        return self.job.add_stage(name, work=sink, upstream=self._open(), workers=workers, retries=retries)

    def _open(self) -> "Stage":
        if isinstance(self.work, ParquetSink):
            raise ConfigError(
                f"nothing can follow the sink {self.name!r}.",
                option="stage",
                value=self.name,
                remedy="Attach the stage to the one before the sink: both get all splits.",
            )
        return self

    def __repr__(self) -> str:
        return f"Stage({self.name!r})"


def check_name(kind: str, name: str) -> str:
    """Refuse a name that cannot be part of file names and of split ids."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{kind} {name!r} is not a name.", option=kind, value=name, remedy="Use letters, digits, _ and -."
        )
    return name


def _workers(workers: int | tuple[int, int]) -> tuple[int, int]:
    low, high = workers if isinstance(workers, tuple) else (workers, workers)
    if not 1 <= low <= high:
        raise ConfigError(
            f"workers is {workers!r}.",
            option="workers",
            value=workers,
            remedy="Use a number from 1, or (minimum, maximum).",
        )
    return low, high
