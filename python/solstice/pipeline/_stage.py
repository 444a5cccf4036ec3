"""The stages of a job, as a user describes them. Nothing runs here."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Unpack

from solstice.errors import ConfigError
from solstice.pipeline._code import code_fingerprint
from solstice.pipeline._function import FunctionOperator, Kind
from solstice.pipeline._operator import Operator
from solstice.pipeline._settings import StageOptions, StageSettings, read_options
from solstice.pipeline._sink import Sink
from solstice.pipeline._source_master import SourceConfig

if TYPE_CHECKING:
    import pyarrow as pa

    from solstice.pipeline._job import Job

# They become parts of the names of files, of which readers skip those that begin with _, and of topics of Kafka.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class Upstream(ABC):
    """What stages can be attached to: a stage, or several."""

    @property
    @abstractmethod
    def stages(self) -> "tuple[Stage, ...]":
        """The stages whose splits the next one gets."""

    def map(
        self,
        function: Callable[..., Any] | Operator,
        *,
        schema: "pa.Schema | None" = None,
        concurrency: int = 16,
        **options: Unpack[StageOptions],
    ) -> "Stage":
        """Apply a function, or an Operator, to every split, in workers.

        The function's first parameter tells by its annotation what it gets: ``pa.Table`` (also without annotation),
        ``pl.DataFrame``, ``pd.DataFrame``, or ``dict``, for one row at a time. It returns the same kind of thing, or
        None to drop it. A second parameter named ``ctx`` gets the :class:`Split`. An ``async def`` is awaited, one of
        rows for up to ``concurrency`` rows at once. The result has ``schema``, or the schema of the first result: one
        that differs fails its split. The other options are those of :class:`StageOptions`.
        """
        return self._attach("map", function, schema, concurrency, options)

    def flat_map(
        self,
        function: Callable[..., Any],
        *,
        schema: "pa.Schema | None" = None,
        concurrency: int = 16,
        **options: Unpack[StageOptions],
    ) -> "Stage":
        """Like ``map``, with a function that returns any number of tables, each a split of its own; or of rows."""
        return self._attach("flat_map", function, schema, concurrency, options)

    def filter(
        self, function: Callable[..., Any], *, concurrency: int = 16, **options: Unpack[StageOptions]
    ) -> "Stage":
        """Keep the rows for which the function is true: it returns a boolean column, or, of a row, True or False."""
        return self._attach("filter", function, None, concurrency, options)

    def sink(self, sink: Sink, **options: Unpack[StageOptions]) -> "Stage":
        """Write every split out; the end of this branch of the job."""
        if not isinstance(sink, Sink):
            raise ConfigError(
                f"{sink!r} is not a sink.",
                option="sink",
                remedy="Pass one like ParquetSink('out/') or FunctionSink(f).",
            )
        return self._add(options.get("name") or "sink", sink, options)

    def union(self, *others: "Upstream") -> "Upstream":
        """Several stages as one: what is attached to it gets the splits of all."""
        stages = [stage for upstream in (self, *others) for stage in upstream.stages]
        for stage in stages:
            if stage.job is not stages[0].job or stages.count(stage) > 1:
                raise ConfigError(
                    f"stage {stage.name!r} is of another job, or there twice.",
                    option="union",
                    value=stage.name,
                    remedy="Unite different stages of one job.",
                )
        return _Union(tuple(stages))

    def _attach(
        self,
        kind: Kind,
        function: Callable[..., Any] | Operator,
        schema: "pa.Schema | None",
        concurrency: int,
        options: StageOptions,
    ) -> "Stage":
        if isinstance(function, Operator):
            operator: Operator = function
        else:
            operator = FunctionOperator(kind, function, schema=schema, concurrency=concurrency)
        default = getattr(function, "__name__", type(function).__name__).lstrip("_")
        return self._add(options.get("name") or (default if _NAME.fullmatch(default) else kind), operator, options)

    def _add(self, name: str, work: Operator | Sink, options: StageOptions) -> "Stage":
        for stage in self.stages:
            if isinstance(stage.work, Sink):
                raise ConfigError(
                    f"nothing can follow the sink {stage.name!r}.",
                    option="stage",
                    value=stage.name,
                    remedy="Attach the stage to the one before the sink: both get all splits.",
                )
        return self.stages[0].job.add_stage(name, work=work, upstreams=self.stages, options=options)


class Stage(Upstream):
    """One step of a job; made by ``job.source``, ``map`` and their like. Several stages may follow the same one."""

    def __init__(
        self,
        job: "Job",
        name: str,
        *,
        work: SourceConfig | Operator | Sink,
        upstreams: "tuple[Stage, ...]" = (),
        options: StageOptions | None = None,
    ) -> None:
        self.job = job
        self.name = name
        self.work = work.owned_by(job.queue, name) if isinstance(work, Sink) else work
        self.upstreams = upstreams
        # Now, and not when the job runs: a class is found in the file that is the main program at this moment.
        self.code = code_fingerprint(work)
        self.settings: StageSettings = read_options(job.stage_options(name, options or {}), job.on_error)

    @property
    def stages(self) -> "tuple[Stage, ...]":
        """This one."""
        return (self,)

    def __repr__(self) -> str:
        return f"Stage({self.name!r})"


class _Union(Upstream):
    """Several stages; it is no stage itself."""

    def __init__(self, stages: tuple[Stage, ...]) -> None:
        self._stages = stages

    @property
    def stages(self) -> tuple[Stage, ...]:
        """All of them."""
        return self._stages

    def __repr__(self) -> str:
        return f"Union({', '.join(stage.name for stage in self._stages)})"


def check_name(kind: str, name: str) -> str:
    """Refuse a name that cannot be part of file names and of split ids."""
    if not _NAME.fullmatch(str(name)) or str(name) != name:
        raise ConfigError(
            f"{kind} {name!r} is not a name.",
            option=kind,
            value=name,
            remedy="Use letters and digits, after the first also _ and -; 64 at most.",
        )
    return name
