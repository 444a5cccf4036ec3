"""A job: stages, and the state that they run on."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from solstice._core.retry import RetryPolicy
from solstice.errors import ConfigError, PipelineError
from solstice.pipeline._paths import absolute_url, local_url
from solstice.pipeline._progress import JobResult, StageProgress
from solstice.pipeline._queue import DeadLetter, open_queue
from solstice.pipeline._run import JobRun, snapshot
from solstice.pipeline._sink import ParquetSink
from solstice.pipeline._source_master import SourceConfig
from solstice.pipeline._stage import Stage, check_name
from solstice.pipeline._state import state_directory

OnError = Literal["continue", "fail"]


class Job:
    """Stages that process splits, exactly once, from sources to sinks.

    ``state`` holds everything that a run needs to resume; ``queue`` and ``payloads`` are URLs and lie in it by default.
    ``on_error`` tells what a split does that was given up: the job goes on without it, or fails. A worker that does not
    renew its lease for ``lease_s`` loses its split to another.
    """

    def __init__(
        self,
        name: str,
        *,
        state: str | Path | None = None,
        queue: str | None = None,
        payloads: str | None = None,
        on_error: OnError = "continue",
        lease_s: float = 30.0,
        backoff: RetryPolicy | None = None,
    ) -> None:
        self.name = check_name("job", name)
        self.state = Path(state or state_directory(name)).absolute()
        self.queue = absolute_url(queue or local_url("sqlite", self.state / "queue.db"))
        self.payloads = absolute_url(payloads or local_url("file", self.state / "payloads"))
        if on_error not in ("continue", "fail"):
            raise ConfigError(
                f"on_error is {on_error!r}.", option="on_error", value=on_error, remedy="Use 'continue' or 'fail'."
            )
        self.on_error = on_error
        self.lease_s = lease_s
        self.backoff = backoff or RetryPolicy(initial_s=0.2, max_s=30.0)
        self.stages: list[Stage] = []
        self._run: JobRun | None = None
        self._lock = threading.Lock()

    def source(self, config: SourceConfig, *, name: str = "source") -> Stage:
        """Add a source."""
        if not isinstance(config, SourceConfig):
            raise ConfigError(
                f"{config!r} is not a source.", option="source", remedy="Pass a configuration like SparkSourceV2Config."
            )
        return self.add_stage(name, work=config, upstream=None)

    def add_stage(self, name: str, **description: Any) -> Stage:
        """Add a stage under a name that is free: ``map``, ``sink`` and ``source`` call this."""
        check_name("stage", name)
        taken = {stage.name for stage in self.stages}
        free = next(free for free in (name, *(f"{name}-{n}" for n in range(2, len(taken) + 3))) if free not in taken)
        stage = Stage(self, free, **description)
        self._refuse_a_shared_directory(stage)
        self.stages.append(stage)
        return stage

    def _refuse_a_shared_directory(self, sink: Stage) -> None:
        """Two sinks of one upstream would write files of the same names."""
        for stage in self.stages:
            if (
                isinstance(sink.work, ParquetSink)
                and isinstance(stage.work, ParquetSink)
                and sink.work.path.resolve() == stage.work.path.resolve()
            ):
                raise ConfigError(
                    f"the sinks {stage.name!r} and {sink.name!r} both write to {stage.work.path}.",
                    option="path",
                    value=str(sink.work.path),
                    remedy="Give each sink a directory of its own.",
                )

    def run(self, on_progress: Callable[[list[StageProgress]], None] | None = None) -> JobResult:
        """Run until everything is processed, or, for a stream, until stopped. After a crash or a stop: resume.

        ``on_progress`` is called about twice a second, in this thread. In the main thread, Ctrl-C is ``stop()``, and a
        second one ``stop(drain=False)``.
        """
        with self._lock:
            if self._run is not None:
                raise PipelineError(f"job {self.name!r} is running already.", remedy="Wait for it, or stop() it.")
            run = self._run = JobRun(self, on_progress)
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

    def worker_pids(self) -> dict[str, list[int]]:
        """The worker processes of each stage, while the job runs."""
        run = self._run
        return {} if run is None else run.worker_pids()

    def __repr__(self) -> str:
        return f"Job({self.name!r}, {len(self.stages)} stages)"
