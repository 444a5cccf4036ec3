"""How far a job is."""

from dataclasses import dataclass


@dataclass(frozen=True)
class StageProgress:
    """One stage, in splits and in records.

    A source only produces, a sink only settles. ``settled`` counts what was committed, ``dead`` what was given up, and
    ``waiting`` what the stage before has produced and this one has not begun.
    """

    stage: str
    produced: int = 0
    produced_records: int = 0
    settled: int = 0
    settled_records: int = 0
    dead: int = 0
    in_flight: int = 0
    waiting: int = 0
    waiting_bytes: int = 0
    records_per_s: float = 0.0
    workers: int = 0
    done: bool = False


@dataclass(frozen=True)
class JobResult:
    """What a run came to. ``stopped`` tells that it was asked to end before it was done; run it again to go on.

    The counts are those of the job since it first started, not of this run alone.
    """

    job: str
    stopped: bool
    duration_s: float
    stages: tuple[StageProgress, ...]

    @property
    def dead(self) -> int:
        """How many splits were given up, in all stages."""
        return sum(stage.dead for stage in self.stages)

    def stage(self, name: str) -> StageProgress:
        """One stage by its name."""
        return next(stage for stage in self.stages if stage.stage == name)
