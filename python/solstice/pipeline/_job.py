"""A job: stages, and the state that they run on."""

import math
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from solstice._core.retry import RetryPolicy
from solstice.errors import ConfigError, JobRunningError, UnknownOptionError
from solstice.pipeline import _overrides
from solstice.pipeline._budget import parse_budget
from solstice.pipeline._file_sink import FileSink
from solstice.pipeline._paths import absolute_url, local_url
from solstice.pipeline._progress import JobResult, StageProgress
from solstice.pipeline._queue import DeadLetter, open_queue, queue_url
from solstice.pipeline._run import JobRun, snapshot
from solstice.pipeline._runner import RunnerName, check_runner
from solstice.pipeline._settings import OnError, StageOptions, check_on_error
from solstice.pipeline._source_master import SourceConfig
from solstice.pipeline._stage import Stage, check_name
from solstice.pipeline._state import state_directory
from solstice.pipeline._store import own_place


class Job:
    """Stages that process splits, exactly once, from sources to sinks.

    ``state`` holds everything that a run needs to resume; ``queue`` and ``payloads`` are URLs and lie in it by default.
    ``payload_budget`` bounds the bytes of payloads, a number or ``"4gib"``: sources wait while workers are behind.
    ``runner`` tells where workers run: in processes of this machine (``"local"``), in threads (``"inprocess"``, for
    tests), or as actors of a Ray cluster (``"ray"``). ``on_error`` tells what a split does that was given up: the job
    goes on without it, or fails. A worker that does not renew its lease for ``lease_s`` loses its split to another.
    """

    def __init__(
        self,
        name: str,
        *,
        state: str | Path | None = None,
        queue: str | None = None,
        payloads: str | None = None,
        payload_budget: int | str | None = None,
        runner: RunnerName = "local",
        on_error: OnError = "continue",
        lease_s: float = 30.0,
        backoff: RetryPolicy | None = None,
    ) -> None:
        overrides = _overrides.current()
        given: dict[str, Any] = {
            "state": state,
            "queue": queue,
            "payloads": payloads,
            "payload_budget": payload_budget,
            "runner": runner,
            "on_error": on_error,
            "lease_s": lease_s,
        } | overrides.job
        self.name = check_name("job", name)
        self.state = Path(given["state"] or state_directory(name)).absolute()
        self.queue = queue_url(given["queue"] or local_url("sqlite", self.state / "queue.db"), name)
        payloads = absolute_url(given["payloads"] or local_url("file", self.state / "payloads"))
        self.payloads = own_place(payloads, name, self.queue)
        self.payload_budget = parse_budget(given["payload_budget"])
        if given["runner"] not in ("local", "inprocess", "ray"):
            raise check_runner(given["runner"])
        self.runner: RunnerName = given["runner"]
        self.on_error = check_on_error(given["on_error"])
        self.lease_s = _lease(given["lease_s"])
        self.backoff = backoff or RetryPolicy(initial_s=0.2, max_s=30.0)
        self.stages: list[Stage] = []
        self.runs = 0
        self._stage_overrides = dict(overrides.stages)
        self._run: JobRun | None = None
        self._lock = threading.Lock()
        overrides.jobs.append(self)

    def source(self, config: SourceConfig, *, name: str = "source") -> Stage:
        """Add a source."""
        if not isinstance(config, SourceConfig):
            raise ConfigError(
                f"{config!r} is not a source.", option="source", remedy="Pass a configuration like SparkSourceV2Config."
            )
        return self.add_stage(name, work=config)

    def add_stage(self, name: str, **description: Any) -> Stage:
        """Add a stage under a name that is free: ``map``, ``sink`` and ``source`` call this."""
        check_name("stage", name)
        taken = {stage.name for stage in self.stages}
        free = next(free for free in (name, *(f"{name}-{n}" for n in range(2, len(taken) + 3))) if free not in taken)
        stage = Stage(self, free, **description)
        self._refuse_a_shared_directory(stage)
        self.stages.append(stage)
        return stage

    def stage_options(self, stage: str, options: StageOptions) -> StageOptions:
        """The options of a stage, with those that ``solstice run --set`` has given for it."""
        return {**options, **self._stage_overrides.get(stage, {})}  # type: ignore[typeddict-item]

    def _refuse_a_shared_directory(self, sink: Stage) -> None:
        """Two sinks of one upstream would write the same rows there twice."""
        for stage in self.stages:
            if (
                isinstance(sink.work, FileSink)
                and isinstance(stage.work, FileSink)
                and sink.work.path.resolve() == stage.work.path.resolve()
            ):
                raise ConfigError(
                    f"the sinks {stage.name!r} and {sink.name!r} both write to {stage.work.path}.",
                    option="path",
                    value=str(sink.work.path),
                    remedy="Give each sink a directory of its own.",
                )

    def run(
        self,
        on_progress: Callable[[list[StageProgress]], None] | None = None,
        *,
        fresh: bool | None = None,
        show_progress: bool | None = None,
    ) -> JobResult:
        """Run until everything is processed, or, for a stream, until stopped. After a crash or a stop: resume.

        ``fresh`` starts over instead: everything that earlier runs left is removed first, queue, payloads, checkpoints
        and the files that the job's own file sinks wrote; never a file of somebody else.

        ``on_progress`` is called about twice a second, in this thread. ``show_progress`` draws bars on the terminal; by
        default if there is one and no ``on_progress``. In the main thread, Ctrl-C is ``stop()``, and a second one
        ``stop(drain=False)``.
        """
        overrides = _overrides.current()
        for stage in self._stage_overrides.keys() - {stage.name for stage in self.stages}:
            raise UnknownOptionError(
                f"job {self.name!r} has no stage {stage!r}.",
                option="--set",
                value=stage,
                remedy=f"Its stages are {', '.join(one.name for one in self.stages)}.",
            )
        shown = overrides.show_progress if show_progress is None else show_progress
        if shown is None and on_progress is not None:
            shown = False
        with self._lock:
            if self._run is not None:
                raise JobRunningError(f"job {self.name!r} is running already.", remedy="Wait for it, or stop() it.")
            run = self._run = JobRun(
                self,
                on_progress,
                fresh=overrides.fresh if fresh is None else fresh,
                show_progress=shown,
            )
        self.runs += 1
        try:
            return run.run()
        finally:
            self._run = None

    def stop(self, *, drain: bool = True) -> None:
        """End a run from another thread: the sources end, and what is visible is still processed.

        Without ``drain`` only the splits that workers have in their hands. Either way, ``run()`` resumes later.
        """
        run = self._run
        if run is not None:
            run.stop(drain=drain)

    def progress(self) -> list[StageProgress]:
        """How far each stage is, from any thread and also when the job does not run."""
        run = self._run
        if run is not None and run.progress:
            return run.progress
        queue = open_queue(self.queue)
        try:
            return snapshot(self, queue)
        finally:
            queue.close()

    def dead_letters(self) -> list[DeadLetter]:
        """The splits that were given up, with their tracebacks."""
        queue = open_queue(self.queue)
        try:
            return queue.dead_letters()
        finally:
            queue.close()

    def replay(self, letters: Sequence[DeadLetter] | None = None) -> int:
        """Give dead letters (all of them by default) back to their stages; returns how many.

        A run that is going on takes them, or, if it is about to end, the next one.
        """
        queue = open_queue(self.queue)
        try:
            return queue.replay(queue.dead_letters() if letters is None else letters)
        finally:
            queue.close()

    def worker_pids(self) -> dict[str, list[int]]:
        """The worker processes of each stage, while the job runs."""
        run = self._run
        return {} if run is None else run.worker_pids()

    def __repr__(self) -> str:
        return f"Job({self.name!r}, {len(self.stages)} stages)"


def _lease(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 1 <= value < math.inf:
        raise ConfigError(
            f"lease_s is {value!r}.", option="lease_s", value=value, remedy="Use a number of seconds from 1."
        )
    return float(value)
