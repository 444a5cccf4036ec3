"""Keeps the workers of one stage alive and knows when the stage is done."""

import contextlib
import logging
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from solstice._core.retry import RetryPolicy
from solstice.errors import PipelineError
from solstice.pipeline._autoscale import Autoscaler
from solstice.pipeline._events import EventLog
from solstice.pipeline._intake import writer_ids
from solstice.pipeline._operator import Operator
from solstice.pipeline._queue import GroupProgress, Prepared, Queue, TopicProgress
from solstice.pipeline._runner import Runner, WorkerHandle
from solstice.pipeline._settings import StageSettings
from solstice.pipeline._sink import Sink
from solstice.pipeline._source_master import Source
from solstice.pipeline._worker import WorkerSpec

_RESPAWN = RetryPolicy(initial_s=0.05, max_s=5.0, multiplier=2.0, jitter=0.0)
_START_S = 60.0
_HEALTHY_S = 10.0  # a worker that lived this long did not die of its start
_FAILED_STARTS = 5

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StageContext:
    """What the workers of a stage are told."""

    stage: str
    upstreams: tuple[str, ...]
    queue: str
    payloads: str
    state: Path
    work: Operator | Sink
    settings: StageSettings
    lease_s: float
    backoff: RetryPolicy
    sources: dict[str, Source]


class StageMaster:
    """Runs the workers of a stage. All of it in one thread: ``start``, ``tick`` until ``done``, ``stop``, ``close``."""

    def __init__(self, context: StageContext, queue: Queue, runner: Runner) -> None:
        self.context = context
        self.done = False
        self.dead = 0
        self._queue = queue
        self._runner = runner
        self._events = EventLog(context.state)
        self._autoscaler = Autoscaler(context.settings.min_workers, context.settings.max_workers)
        self._wanted = context.settings.min_workers
        self._workers: dict[WorkerHandle, float] = {}
        self._retired: set[WorkerHandle] = set()
        self._deaths = 0
        self._failed_starts = 0
        self._spawn_after_s = 0.0

    def start(self) -> None:
        """Finish what workers of an earlier run had committed, then spawn. Those workers have to be fenced before."""
        self._recover(None)
        self._spawn_missing()

    def tick(self, upstream_over: bool) -> None:
        """Look after the workers and the counters. Raises the error of a worker that no other would escape."""
        self._replace_ended()
        # In this order: what came after the end of the stage before is nothing.
        upstreams = [self._queue.topic_progress(name) for name in self.context.upstreams]
        groups = [self._queue.group_progress(name, self.context.stage) for name in self.context.upstreams]
        self.dead = sum(group.dead for group in groups)
        self._scale(upstreams, groups)
        settled = all(
            group.settled + group.dead == upstream.produced and group.in_flight == 0
            for upstream, group in zip(upstreams, groups, strict=True)
        )
        if upstream_over and not self.done and settled:
            self.done = True
            if all(upstream.ended for upstream in upstreams):
                self._queue.end(self.context.stage)

    def stop(self) -> None:
        """Ask the workers to end after the splits that they have."""
        for worker in self._workers:
            worker.stop()

    def close(self) -> None:
        """End by force the workers that still run, give back their splits, and finish what they had committed."""
        workers, self._workers = list(self._workers), {}
        for worker in workers:
            worker.kill()
        errors = [error for worker in workers if (error := worker.close()) is not None]
        with contextlib.ExitStack() as ends:  # each is tried even if another one raises
            for error in errors[:1]:
                ends.callback(_raise, error)
            ends.callback(self._recover, None)
            for writer in [writer for worker in workers for writer in self._writers(worker.worker)]:
                ends.callback(self._queue.withdraw_writer, writer, at_fault=False)

    @property
    def workers(self) -> int:
        """How many workers are alive."""
        return sum(worker.alive for worker in list(self._workers))

    @property
    def pids(self) -> list[int]:
        """The processes of the workers."""
        return [worker.pid for worker in list(self._workers) if worker.alive]

    def _replace_ended(self) -> None:
        for worker, started_s in list(self._workers.items()):
            if worker.alive:
                continue
            self._bury(worker)
            if worker.orderly:
                self._tell("worker ended", worker)
                continue
            self._tell("worker died", worker, ending=worker.ending)
            _log.warning("a worker of stage %s ended with %s", self.context.stage, worker.ending)
            self._count_failed_start(worker)
            self._deaths = 0 if time.monotonic() - started_s > _HEALTHY_S else self._deaths + 1
            if self._deaths:
                self._spawn_after_s = time.monotonic() + _RESPAWN.delay_s(self._deaths)
        if time.monotonic() >= self._spawn_after_s:
            self._spawn_missing()

    def _bury(self, worker: WorkerHandle) -> None:
        """A worker that is gone needs no lease: give its split back now, and finish what it had committed.

        Raises the error that the worker reported. Such an error is not the fault of the split that it had.
        """
        del self._workers[worker]
        self._retired.discard(worker)
        error = worker.close()
        with contextlib.ExitStack() as ends:
            if error is not None:
                error.add_note(f"Raised by a worker of stage {self.context.stage!r}.")
                ends.callback(_raise, error)
            at_fault = error is None and worker.at_fault
            for writer in self._writers(worker.worker):
                ends.callback(self._recover, writer)
                ends.callback(self._queue.withdraw_writer, writer, at_fault=at_fault)

    def _count_failed_start(self, worker: WorkerHandle) -> None:
        """A worker that died while it loaded its function had no split yet that could be given up."""
        self._failed_starts = 0 if worker.ready else self._failed_starts + 1
        if self._failed_starts == _FAILED_STARTS:
            raise PipelineError(
                f"no worker of stage {self.context.stage!r} starts: {_FAILED_STARTS} in a row ended with "
                f"{worker.ending} while they loaded the stage's function.",
                remedy="Their standard error may have the reason; signal 9 is often a lack of memory.",
            )

    def _scale(self, upstreams: list[TopicProgress], groups: list[GroupProgress]) -> None:
        waiting = sum(upstream.produced - group.taken for upstream, group in zip(upstreams, groups, strict=True))
        before, self._wanted = self._wanted, self._autoscaler.wanted(waiting, sum(group.in_flight for group in groups))
        if self._wanted != before:
            self._events.append("scaled", stage=self.context.stage, workers=self._wanted, waiting=waiting)
        surplus = len(self._workers) - len(self._retired) - self._wanted
        for worker in [worker for worker in self._workers if worker not in self._retired][: max(surplus, 0)]:
            self._retired.add(worker)
            worker.stop()

    def _spawn_missing(self) -> None:
        for _ in range(self._wanted - len(self._workers) + len(self._retired)):
            context = self.context
            spec = WorkerSpec(
                stage=context.stage,
                worker=uuid.uuid4().hex[:16],
                upstreams=context.upstreams,
                queue=context.queue,
                payloads=context.payloads,
                work=context.work,
                settings=context.settings,
                lease_s=context.lease_s,
                backoff=context.backoff,
                sources=context.sources,
                limiter=self._runner.limiter(context.stage) if context.settings.rate is not None else None,
                state=str(context.state),
            )
            # The lease counts from here, so it has to cover the start of the process too.
            for writer in self._writers(spec.worker):
                self._queue.register_writer(writer, spec.stage, max(spec.lease_s, _START_S))
            worker = self._runner.start(spec)
            self._workers[worker] = time.monotonic()
            self._tell("worker started", worker, pid=worker.pid)

    def _writers(self, worker: str) -> list[str]:
        """The names under which a worker is known to the queue."""
        return list(writer_ids(worker, self.context.upstreams).values())

    def _tell(self, event: str, worker: WorkerHandle, **fields: object) -> None:
        self._events.append(event, stage=self.context.stage, worker=worker.worker, **fields)

    def _recover(self, owner: str | None) -> None:
        """Finish what a worker had committed and not finished; it must be gone. None: all of them, and they all are."""
        work = self.context.work
        if not isinstance(work, Sink):
            return
        left: list[Prepared] = self._queue.prepared(self.context.stage, owner)
        for prepared in left:
            work.finish(prepared)
        if left:
            self._queue.mark_done(self.context.stage, [prepared.split_id for prepared in left])
        if owner is None:
            work.sweep()


def _raise(error: Exception) -> None:
    raise error
