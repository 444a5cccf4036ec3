"""One run of a job: start, watch, drain, end."""

import contextlib
import json
import logging
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

from solstice.errors import ConfigError, JobFailedError, PlanChangedError
from solstice.pipeline._budget import budget_bytes
from solstice.pipeline._display import Display
from solstice.pipeline._events import EventLog
from solstice.pipeline._progress import JobResult, StageProgress
from solstice.pipeline._queue import WORKER_DIED, Queue, open_queue
from solstice.pipeline._runner import Runner, open_runner
from solstice.pipeline._sink import Sink
from solstice.pipeline._source_master import SourceConfig, SourceContext, SourceMaster
from solstice.pipeline._stage_master import StageContext, StageMaster
from solstice.pipeline._state import JobRecord, exclusive, is_half_removed, removal
from solstice.pipeline._store import open_store
from solstice.pipeline._sweep import sweep

if TYPE_CHECKING:
    from solstice.pipeline._job import Job
    from solstice.pipeline._stage import Stage

_log = logging.getLogger(__name__)

_TICK_S = 0.05
_PROGRESS_S = 0.5
_SWEEP_S = 60.0
_POLL_S = 0.01
_JOIN_S = 60.0
_JOIN_AFTER_ERROR_S = 5.0


class JobRun:
    """The masters of all stages, driven by one loop in the thread that called ``job.run()``."""

    def __init__(
        self,
        job: "Job",
        on_progress: Callable[[list[StageProgress]], None] | None,
        *,
        fresh: bool = False,
        show_progress: bool | None = False,
    ) -> None:
        self.progress: list[StageProgress] = []
        self._job = job
        self._on_progress = on_progress
        self._fresh = fresh
        self._display = Display(job.name, show=show_progress)
        self._events = EventLog(job.state)
        # Plain values: an Event's lock may be held by the very thread that a signal handler interrupts.
        self._drain = False
        self._abandon = False
        self._sources: dict[str, SourceMaster] = {}
        self._masters: dict[str, StageMaster] = {}
        self._rates = _Rates()
        self._suspects: set[str] = set()
        self._burials = _Burials(self._events)

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
        if not any(stage.upstreams for stage in job.stages):
            raise ConfigError(
                f"job {job.name!r} does nothing.", option="stages", remedy="Add job.source(...).map(...).sink(...)."
            )
        with exclusive(job.state, job.name), contextlib.ExitStack() as ends:
            # First of all, because payloads may be in the cluster that it starts.
            runner = ends.enter_context(contextlib.closing(open_runner(job.runner, job.state, job.name)))
            if self._fresh or is_half_removed(job.state):
                self._remove_everything()
            for path in job.state.glob("rate-*"):  # moments of the clock of another run, or of before a reboot
                path.unlink(missing_ok=True)
            queue = ends.enter_context(contextlib.closing(open_queue(job.queue)))
            self._events.append("job started", job=job.name, runner=job.runner, queue=job.queue)
            try:
                with self._signals(), self._display:  # and no longer: a Ctrl-C while the job ends is to end the waiting
                    self._prepare(queue)
                    self._start(queue, runner)
                    self._watch(queue)
            except BaseException as error:
                self._end_after(error)
                self._events.append("job failed", job=job.name, error=f"{type(error).__name__}: {error}")
                raise
            self._end(_JOIN_S)
            self._fence_and_sweep(queue)
            result = JobResult(job.name, self._drain, time.monotonic() - started_s, tuple(self._snapshot(queue)))
            self._tell_progress(result.stages)
            self._events.append("job stopped" if result.stopped else "job done", job=job.name)
        self._display.show_result(result)
        return result

    def _remove_everything(self) -> None:
        """Start over. A crash in the middle is noticed by the next run, which goes on with it."""
        job = self._job
        queue = open_queue(job.queue)
        self._claim(queue)
        with removal(job.state):
            for stage in job.stages:
                if isinstance(stage.work, Sink):
                    stage.work.remove_output()
            queue.remove()
            open_store(job.payloads).clear()
            shutil.rmtree(job.state / "checkpoint", ignore_errors=True)

    def _claim(self, queue: Queue) -> None:
        """Refuse the queue of another job: its splits would be taken for ours, and removed by starting over."""
        name = self._job.name
        if (known := queue.remember("job", name)) != name:
            queue.close()
            raise ConfigError(
                f"the queue {self._job.queue!r} is that of job {known!r}, not of {name!r}.",
                option="queue",
                value=self._job.queue,
                remedy="Give each job a queue, or a state directory, of its own.",
            )

    def _prepare(self, queue: Queue) -> None:
        job = self._job
        self._claim(queue)
        plan = json.dumps([[stage.name, [one.name for one in stage.upstreams]] for stage in job.stages])
        known = queue.remember("plan", plan)
        if known != plan:
            raise PlanChangedError(
                f"job {job.name!r} was started with the stages {known}, and now has {plan}.",
                remedy="Restore them; or start over with fresh=True (solstice run --fresh).",
            )
        for stage in job.stages:
            for upstream in stage.upstreams:
                queue.subscribe(upstream.name, stage.name)
            if stage.code is not None and queue.remember(f"code of {stage.name}", stage.code) != stage.code:
                _log.warning(
                    "the code of stage %s has changed since job %s was started: what is done stays as it is, and only"
                    " the rest is processed by the new code; fresh=True (solstice run --fresh) starts over",
                    stage.name,
                    job.name,
                )
                self._events.append("code changed", stage=stage.name)
        store = open_store(job.payloads)
        store.check()
        if store.caution is not None:
            _log.warning("job %s: %s", job.name, store.caution)
        self._record().write(job.state)
        self._fence_and_sweep(queue)

    def _record(self) -> JobRecord:
        job = self._job
        stages = {stage.name: [upstream.name for upstream in stage.upstreams] for stage in job.stages}
        return JobRecord(job.name, job.queue, job.payloads, job.runner, stages, self._owned())

    def _owned(self) -> list[str]:
        """The stages that nobody but the job itself writes."""
        return [
            stage.name for stage in self._job.stages if not isinstance(stage.work, SourceConfig) or stage.work.owned
        ]

    def _fence_and_sweep(self, queue: Queue) -> None:
        """Before and after a run: nobody of it may make anything visible; only then is what they left garbage."""
        queue.fence(self._owned())
        sweep(queue, open_store(self._job.payloads))

    def _start(self, queue: Queue, runner: Runner) -> None:
        for stage in self._job.stages:
            if isinstance(stage.work, SourceConfig):
                self._sources[stage.name] = stage.work.master(self._source_context(stage))
            else:
                self._masters[stage.name] = StageMaster(self._stage_context(stage), queue, runner)
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
                if stage.upstreams:
                    master = self._masters[stage.name]
                    master.tick(upstream_over=all(over[upstream.name] for upstream in stage.upstreams))
                    over[stage.name] = master.done
            dead = sum(master.dead for master in self._masters.values())
            self._burials.look(queue, dead, last=all(over.values()))
            self._check_dead(queue)
            now_s = time.monotonic()
            if now_s >= next_progress_s:
                next_progress_s = now_s + _PROGRESS_S
                self.progress = self._snapshot(queue)
                self._tell_progress(self.progress)
                if self._on_progress is not None:
                    self._on_progress(self.progress)
            if all(over.values()):
                self._tell_progress(self._snapshot(queue))
                return
            if now_s >= next_sweep_s:
                next_sweep_s = now_s + max(_SWEEP_S, self._job.lease_s)
                sweep(queue, open_store(self._job.payloads), self._suspects)
                self._events.roll()
            time.sleep(_TICK_S)

    def _tell_progress(self, stages: Sequence[StageProgress]) -> None:
        self._display.update(stages)
        self._events.write_progress({"job": self._job.name, "stages": [vars(stage) for stage in stages]})

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
        fatal = [stage.name for stage in self._job.stages if stage.upstreams and stage.settings.on_error == "fail"]
        if not any(self._masters[name].dead for name in fatal):
            return
        letters = [letter for letter in queue.dead_letters() if letter.group in fatal]
        if not letters:
            return  # somebody has replayed them since the counters were read
        raise JobFailedError(
            f"job {self._job.name!r} stopped: {len(letters)} splits failed for good, the first in stage "
            f"{letters[0].group!r}: {letters[0].error}",
            remedy=f"`solstice dlq list {self._job.name}` and job.dead_letters() have the tracebacks; "
            "replay them when the cause is mended.",
        )

    def _source_context(self, stage: "Stage") -> SourceContext:
        job = self._job
        store = open_store(job.payloads)
        budget = budget_bytes(job.payload_budget, store)
        return SourceContext(job.name, stage.name, job.queue, store.shared_url(), job.state, budget)

    def _stage_context(self, stage: "Stage") -> StageContext:
        job = self._job
        if not stage.upstreams or isinstance(stage.work, SourceConfig):
            raise ConfigError(f"stage {stage.name!r} has nothing before it.", option="stage", value=stage.name)
        payloads = open_store(job.payloads).shared_url()
        return StageContext(
            stage=stage.name,
            upstreams=tuple(upstream.name for upstream in stage.upstreams),
            queue=job.queue,
            payloads=payloads,
            state=job.state,
            work=stage.work,
            settings=stage.settings,
            lease_s=job.lease_s,
            backoff=job.backoff,
            sources={
                upstream.name: source
                for upstream in stage.upstreams
                if isinstance(upstream.work, SourceConfig) and (source := upstream.work.source(payloads)) is not None
            },
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


class _Burials:
    """Tells of the splits that were given up because their workers died, who cannot."""

    def __init__(self, events: EventLog) -> None:
        self._events = events
        self._since = time.time()
        self._dead = 0
        self._told: set[tuple[str, str, int, float]] = set()
        self._next_s = 0.0

    def look(self, queue: Queue, dead: int, *, last: bool) -> None:
        """Look through the dead letters if there are others than before. There may be many, so not all the time."""
        started_s = time.monotonic()
        if dead == self._dead or (started_s < self._next_s and not last):
            return
        self._dead = dead
        for letter in queue.dead_letters():
            key = (letter.topic, letter.group, letter.id, letter.at)
            if letter.error != WORKER_DIED or letter.at < self._since or key in self._told:
                continue
            self._told.add(key)
            self._events.append(
                "dead letter",
                stage=letter.group,
                split=letter.message.split_id,
                attempt=letter.attempt,
                error=letter.error,
            )
        self._next_s = time.monotonic() + 20 * (time.monotonic() - started_s)


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
        for upstream in stage.upstreams:
            before = queue.topic_progress(upstream.name)
            group = queue.group_progress(upstream.name, stage.name)
            amounts = {
                "settled": group.settled,
                "settled_records": group.settled_records,
                "dead": group.dead,
                "in_flight": group.in_flight,
                "waiting": before.produced - group.taken,
                "waiting_bytes": before.produced_bytes - group.settled_bytes - group.dead_bytes,
            }
            values |= {name: values.get(name, 0) + amount for name, amount in amounts.items()}
        progress.append(StageProgress(stage.name, **values))
    return progress
