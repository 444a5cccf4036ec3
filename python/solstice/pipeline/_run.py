"""One run of a job: start, watch, drain, end."""

import contextlib
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

from solstice.errors import ConfigError, JobFailedError, PlanChangedError
from solstice.pipeline._progress import JobResult, StageProgress
from solstice.pipeline._queue import Queue, open_queue
from solstice.pipeline._source_master import SourceConfig, SourceContext, SourceMaster
from solstice.pipeline._stage_master import StageContext, StageMaster
from solstice.pipeline._state import exclusive
from solstice.pipeline._store import open_store
from solstice.pipeline._sweep import sweep

if TYPE_CHECKING:
    from solstice.pipeline._job import Job
    from solstice.pipeline._stage import Stage

_TICK_S = 0.05
_PROGRESS_S = 0.5
_SWEEP_S = 60.0
_POLL_S = 0.01
_JOIN_S = 60.0
_JOIN_AFTER_ERROR_S = 5.0


class JobRun:
    """The masters of all stages, driven by one loop in the thread that called ``job.run()``."""

    def __init__(self, job: "Job", on_progress: Callable[[list[StageProgress]], None] | None) -> None:
        self.progress: list[StageProgress] = []
        self._job = job
        self._on_progress = on_progress
        # Plain values: an Event's lock may be held by the very thread that a signal handler interrupts.
        self._drain = False
        self._abandon = False
        self._sources: dict[str, SourceMaster] = {}
        self._masters: dict[str, StageMaster] = {}
        self._rates = _Rates()

    def stop(self, *, drain: bool) -> None:
        """Ask the run to end; from any thread, also from a signal handler."""
        if not drain:
            self._abandon = True
        self._drain = True

    def worker_pids(self) -> dict[str, list[int]]:
        """The worker processes of each stage."""
        return {name: master.pids for name, master in list(self._masters.items())}

    def run(self) -> JobResult:
        """Run to the end; raises what made the job fail, with all workers gone."""
        job, started_s = self._job, time.monotonic()
        if not any(stage.upstream for stage in job.stages):
            raise ConfigError(
                f"job {job.name!r} does nothing.", option="stages", remedy="Add job.source(...).map(...).sink(...)."
            )
        with exclusive(job.state, job.name), contextlib.closing(open_queue(job.queue)) as queue:
            try:
                with self._signals():  # and no longer: a Ctrl-C while the job ends is to end the waiting
                    self._prepare(queue)
                    self._start(queue)
                    self._watch(queue)
            except BaseException as error:
                self._end_after(error)
                raise
            self._end(_JOIN_S)
            self._fence_and_sweep(queue)
            stages = tuple(self._snapshot(queue))
        return JobResult(job.name, self._drain, time.monotonic() - started_s, stages)

    def _prepare(self, queue: Queue) -> None:
        plan = json.dumps([[stage.name, stage.upstream and stage.upstream.name] for stage in self._job.stages])
        known = queue.remember("plan", plan)
        if known != plan:
            raise PlanChangedError(
                f"job {self._job.name!r} was started with the stages {known}, and now has {plan}.",
                remedy=f"Restore them; or, to start over, remove {self._job.state} and the output.",
            )
        for stage in self._job.stages:
            if stage.upstream is not None:
                queue.subscribe(stage.upstream.name, stage.name)
        self._fence_and_sweep(queue)

    def _fence_and_sweep(self, queue: Queue) -> None:
        """Before and after a run: nobody of it may make anything visible; only then is what they left garbage."""
        queue.fence([stage.name for stage in self._job.stages if not _written_by_others(stage)])
        sweep(queue, open_store(self._job.payloads))

    def _start(self, queue: Queue) -> None:
        for stage in self._job.stages:
            if isinstance(stage.work, SourceConfig):
                self._sources[stage.name] = stage.work.master(self._source_context(stage))
            else:
                self._masters[stage.name] = StageMaster(self._stage_context(stage), queue)
        for source in self._sources.values():
            source.start()
        for master in self._masters.values():
            master.start()

    def _watch(self, queue: Queue) -> None:
        stopped = False
        next_progress_s, next_sweep_s = 0.0, time.monotonic() + _SWEEP_S
        while not self._abandon:
            if self._drain and not stopped:
                stopped = True
                for source in self._sources.values():
                    source.stop()
            # Asked before the counters are read: what a source published before it was over is then in them.
            over = {name: source.over for name, source in self._sources.items()}
            for stage in self._job.stages:
                if stage.upstream is not None:
                    master = self._masters[stage.name]
                    master.tick(upstream_over=over[stage.upstream.name])
                    over[stage.name] = master.done
            self._check_dead(queue)
            now_s = time.monotonic()
            if now_s >= next_progress_s:
                next_progress_s = now_s + _PROGRESS_S
                self.progress = self._snapshot(queue)
                if self._on_progress is not None:
                    self._on_progress(self.progress)
            if all(over.values()):
                return
            if now_s >= next_sweep_s:
                next_sweep_s = now_s + _SWEEP_S
                sweep(queue, open_store(self._job.payloads))
            time.sleep(_TICK_S)

    def _end(self, timeout_s: float) -> None:
        """Stop everything. Last comes first, and each is tried even if another one raises: no worker is left behind."""
        with contextlib.ExitStack() as ends:
            for source in self._sources.values():
                ends.callback(source.join, _JOIN_S)
            for master in self._masters.values():
                ends.callback(master.close)
            ends.callback(self._wait_for_workers, timeout_s)
            for source in self._sources.values():
                ends.callback(source.stop)
            for master in self._masters.values():
                ends.callback(master.stop)

    def _end_after(self, error: BaseException) -> None:
        """End without hiding what made the job fail."""
        try:
            self._end(_JOIN_AFTER_ERROR_S)
        except Exception as another:  # noqa: BLE001 - it becomes a part of the first
            error.add_note(f"And while the job ended: {type(another).__name__}: {another}")

    def _wait_for_workers(self, timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        while any(master.workers for master in self._masters.values()) and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)

    def _check_dead(self, queue: Queue) -> None:
        if self._job.on_error != "fail" or not any(master.group.dead for master in self._masters.values()):
            return
        letters = queue.dead_letters()
        raise JobFailedError(
            f"job {self._job.name!r} stopped: {len(letters)} splits failed for good, the first in stage "
            f"{letters[0].group!r}: {letters[0].error}",
            remedy="job.dead_letters() has the tracebacks.",
        )

    def _source_context(self, stage: "Stage") -> SourceContext:
        job = self._job
        return SourceContext(job.name, stage.name, job.queue, job.payloads, job.state)

    def _stage_context(self, stage: "Stage") -> StageContext:
        job = self._job
        if stage.upstream is None or isinstance(stage.work, SourceConfig):
            raise ConfigError(f"stage {stage.name!r} has nothing before it.", option="stage", value=stage.name)
        return StageContext(
            stage=stage.name,
            upstream=stage.upstream.name,
            queue=job.queue,
            payloads=job.payloads,
            work=stage.work,
            workers=stage.min_workers,
            retries=stage.retries,
            lease_s=job.lease_s,
            backoff=job.backoff,
        )

    def _snapshot(self, queue: Queue) -> list[StageProgress]:
        workers = {name: master.workers for name, master in self._masters.items()}
        done = {name: master.done for name, master in self._masters.items()}
        return [
            StageProgress(
                **vars(stage)
                | {
                    "records_per_s": self._rates.of(stage),
                    "workers": workers.get(stage.stage, 0),
                    "done": done.get(stage.stage, stage.done),
                }
            )
            for stage in snapshot(self._job, queue)
        ]

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Turn Ctrl-C into a stop while the job runs; only the main thread may."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def interrupt(number: int, frame: FrameType | None) -> None:
            self.stop(drain=not self._drain)

        before = signal.signal(signal.SIGINT, interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


class _Rates:
    """Records per second of each stage, from one look to the next."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, int, float]] = {}

    def of(self, stage: StageProgress) -> float:
        now_s, records = time.monotonic(), stage.settled_records or stage.produced_records
        before_s, before, rate = self._seen.get(stage.stage, (now_s, records, 0.0))
        if now_s - before_s >= _PROGRESS_S / 2:
            # Smoothed: splits are large, so that records arrive in jumps.
            rate = 0.7 * rate + 0.3 * (records - before) / (now_s - before_s)
        elif stage.stage in self._seen:
            return rate
        self._seen[stage.stage] = (now_s, records, rate)
        return rate


def snapshot(job: "Job", queue: Queue) -> list[StageProgress]:
    """The counters of each stage, as the queue has them."""
    progress = []
    for stage in job.stages:
        topic = queue.topic_progress(stage.name)
        values: dict[str, Any] = {
            "produced": topic.produced,
            "produced_records": topic.produced_records,
            "done": topic.ended,
        }
        if stage.upstream is not None:
            upstream = queue.topic_progress(stage.upstream.name)
            group = queue.group_progress(stage.upstream.name, stage.name)
            values |= {
                "settled": group.settled,
                "settled_records": group.settled_records,
                "dead": group.dead,
                "in_flight": group.in_flight,
                "waiting": upstream.produced - group.taken,
                "waiting_bytes": upstream.produced_bytes - group.settled_bytes - group.dead_bytes,
            }
        progress.append(StageProgress(stage.name, **values))
    return progress


def _written_by_others(stage: "Stage") -> bool:
    return isinstance(stage.work, SourceConfig) and not stage.work.owned
