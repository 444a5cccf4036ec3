"""Keeps the workers of one stage alive and knows when the stage is done."""

import contextlib
import logging
import time
import uuid
from dataclasses import dataclass

from solstice._core.retry import RetryPolicy
from solstice.errors import PipelineError
from solstice.pipeline._local_runner import WorkerProcess
from solstice.pipeline._operator import Operator
from solstice.pipeline._queue import GroupProgress, Prepared, Queue, TopicProgress
from solstice.pipeline._sink import ParquetSink
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
    upstream: str
    queue: str
    payloads: str
    work: Operator | ParquetSink
    workers: int
    retries: int
    lease_s: float
    backoff: RetryPolicy


class StageMaster:
    """Runs the workers of a stage. All of it in one thread: ``start``, ``tick`` until ``done``, ``stop``, ``close``."""

    def __init__(self, context: StageContext, queue: Queue) -> None:
        self.context = context
        self.done = False
        self.topic = TopicProgress()
        self.group = GroupProgress()
        self.upstream = TopicProgress()
        self._queue = queue
        self._workers: dict[WorkerProcess, float] = {}
        self._deaths = 0
        self._failed_starts = 0
        self._spawn_after_s = 0.0

    def start(self) -> None:
        """Finish what workers of an earlier run had committed, then spawn. Those workers have to be fenced before."""
        self._recover(None)
        self._spawn_missing()

    def tick(self, upstream_over: bool) -> None:
        """Look after the workers and the counters. Raises the error of a worker that no other would escape."""
        self._replace_dead()
        # In this order: what came after the end of the stage before is nothing.
        self.upstream = self._queue.topic_progress(self.context.upstream)
        self.group = self._queue.group_progress(self.context.upstream, self.context.stage)
        self.topic = self._queue.topic_progress(self.context.stage)
        settled = self.group.settled + self.group.dead
        if upstream_over and not self.done and settled == self.upstream.produced and self.group.in_flight == 0:
            self.done = True
            if self.upstream.ended:
                self._queue.end(self.context.stage)

    def stop(self) -> None:
        """Ask the workers to end after the split that they have."""
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
            for worker in workers:
                ends.callback(self._queue.withdraw_writer, worker.worker, at_fault=False)

    @property
    def workers(self) -> int:
        """How many workers are alive."""
        return sum(worker.alive for worker in list(self._workers))

    @property
    def pids(self) -> list[int]:
        """The processes of the workers."""
        return [worker.pid for worker in list(self._workers) if worker.alive]

    def _replace_dead(self) -> None:
        for worker, started_s in list(self._workers.items()):
            if worker.alive:
                continue
            self._bury(worker)
            _log.warning("a worker of stage %s ended with %s", self.context.stage, worker.ending)
            self._count_failed_start(worker)
            self._deaths = 0 if time.monotonic() - started_s > _HEALTHY_S else self._deaths + 1
            if self._deaths:
                self._spawn_after_s = time.monotonic() + _RESPAWN.delay_s(self._deaths)
        if time.monotonic() >= self._spawn_after_s:
            self._spawn_missing()

    def _bury(self, worker: WorkerProcess) -> None:
        """A process that is gone needs no lease: give its split back now, and finish what it had committed.

        Raises the error that the worker reported. Such an error is not the fault of the split that it had.
        """
        del self._workers[worker]
        error = worker.close()
        with contextlib.ExitStack() as ends:
            if error is not None:
                ends.callback(_raise, error)
            ends.callback(self._recover, worker.worker)
            ends.callback(self._queue.withdraw_writer, worker.worker, at_fault=error is None)

    def _count_failed_start(self, worker: WorkerProcess) -> None:
        """A worker that died while it loaded its function had no split yet that could be given up."""
        self._failed_starts = 0 if worker.ready else self._failed_starts + 1
        if self._failed_starts == _FAILED_STARTS:
            raise PipelineError(
                f"no worker of stage {self.context.stage!r} starts: {_FAILED_STARTS} in a row ended with "
                f"{worker.ending} while they loaded the stage's function.",
                remedy="Their standard error may have the reason; signal 9 is often a lack of memory.",
            )

    def _spawn_missing(self) -> None:
        for _ in range(self.context.workers - len(self._workers)):
            context = self.context
            spec = WorkerSpec(
                stage=context.stage,
                worker=uuid.uuid4().hex[:16],
                upstream=context.upstream,
                queue=context.queue,
                payloads=context.payloads,
                work=context.work,
                retries=context.retries,
                lease_s=context.lease_s,
                backoff=context.backoff,
            )
            # The lease counts from here, so it has to cover the start of the process too.
            self._queue.register_writer(spec.worker, spec.stage, max(spec.lease_s, _START_S))
            self._workers[WorkerProcess(spec)] = time.monotonic()

    def _recover(self, owner: str | None) -> None:
        """Rename what a worker had committed and not renamed; it must be gone. None: all of them, and they all are."""
        work = self.context.work
        if not isinstance(work, ParquetSink):
            return
        left: list[Prepared] = self._queue.prepared(self.context.stage, owner)
        for prepared in left:
            work.directory.finish(prepared)
        if left:
            self._queue.mark_done(self.context.stage, [prepared.split_id for prepared in left])
        if owner is None:
            work.directory.sweep()


def _raise(error: Exception) -> None:
    raise error
