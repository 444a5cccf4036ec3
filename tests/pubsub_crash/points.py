"""The faults of the matrix, one by one: what is drawn by lot, what happens, and what has to be seen afterwards."""

import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil

from pubsub_crash.driver import Driver
from pubsub_crash.run import DELIVERIES, SUBSCRIPTION, Outcome, Plan, Run
from pubsub_crash.task_faults import TaskFault, attempts
from spark_standalone import Daemon, standalone_cluster

# The settings of each kind of driver; they belong to a JVM.
SETTINGS = {
    "forked": {},
    "unforked": {"spark.python.use.daemon": "false", "spark.python.worker.reuse": "false"},
    "cluster": {
        "spark.executor.memory": "512m",
        "spark.speculation": "true",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.task.duration.threshold": "3s",
    },
}


class Stage:
    """The drivers of a matrix, each started when it is first needed: a JVM takes its time. Several threads may ask."""

    def __init__(self) -> None:
        self._starting = threading.Lock()
        self._drivers: dict[str, Driver] = {}
        self._cluster = ExitStack()
        self._workers: list[Daemon] = []

    def driver(self, kind: str) -> Driver:
        """The one of a kind."""
        with self._starting:
            if kind == "cluster" and len(self._workers) < 2:
                self.stop(kind)
            if kind not in self._drivers:
                master = {"spark.master": self._start_cluster()} if kind == "cluster" else {}
                self._drivers[kind] = Driver(SETTINGS[kind] | master)
            return self._drivers[kind]

    def _start_cluster(self) -> str:
        """Two workers at two addresses: Spark starts no second attempt on the host of the first."""
        folder = Path(self._cluster.enter_context(tempfile.TemporaryDirectory(prefix="s-")))
        cluster = self._cluster.enter_context(standalone_cluster(folder, cores=2))
        self._workers = cluster.workers
        return cluster.url

    def kill(self, kind: str) -> None:
        """kill -9 of its JVM; the next one of the kind is a new one."""
        driver = self._drivers.pop(kind)
        try:
            driver.kill_jvm()
        finally:
            driver.discard()

    def kill_worker(self) -> None:
        """kill -9 of one of the cluster's workers and all that it started; the next cluster is a new one."""
        self._workers.pop().kill()

    def stop(self, kind: str) -> None:
        """End a driver in order; it may leave nothing behind."""
        driver = self._drivers.pop(kind, None)
        try:
            if driver is not None:
                driver.stop()
        finally:
            if kind == "cluster":
                self._cluster.close()

    def stop_all(self) -> None:
        """End every driver in order."""
        for kind in list(self._drivers):
            self.stop(kind)

    def discard(self) -> None:
        """End every driver, in whatever state."""
        while self._drivers:
            self._drivers.popitem()[1].discard()
        self._cluster.close()


Draw = Callable[[random.Random, bool], dict[str, Any]]
Happen = Callable[[Sequence[Run], Stage], None]


@dataclass(frozen=True)
class Point:
    """A point of the matrix. ``draw`` is given whether the fault has to hit a batch in the middle of a task."""

    name: str
    happen: Happen
    draw: Draw = lambda lot, held: {}
    may_duplicate: bool = False  # with ack-on-commit: a death, or a lost lease
    second_attempt: bool = False
    rerun_of_a_stage: bool = False
    deliveries: tuple[str, ...] = DELIVERIES

    def runs(self, folder: Path, seed: int, *, held: bool) -> list[Run]:
        """One run for each delivery, with the same fault."""
        drawn = self.draw(random.Random(f"{self.name} {seed}"), held)
        return [Run(folder / self.name / each, Plan(each, seed, **drawn)) for each in self.deliveries]

    def complaints(self, delivery: str, outcome: Outcome) -> list[str]:
        """What is wrong with an outcome; nothing, most of all."""
        exact = delivery == "log" or not self.may_duplicate
        wrong = {
            "the fault did not happen": not outcome.faulted,
            f"{outcome.lost} messages are lost": outcome.lost,
            f"{outcome.wrongly_acked} were acknowledged and not in the sink": outcome.wrongly_acked,
            f"{outcome.duplicates} are there twice": exact and outcome.duplicates,
            f"{outcome.duplicates_of_acked} came again though acknowledged": outcome.duplicates_of_acked,
            "no second attempt ran": self.second_attempt and not outcome.second_attempts,
            "no stage ran again": self.rerun_of_a_stage and not outcome.reruns_of_a_stage,
        }
        return [f"{self.name}, {delivery}: {what}" for what, is_wrong in wrong.items() if is_wrong]


T = TypeVar("T")


def together(work: Callable[[T], None], things: Iterable[T]) -> None:
    """Do the same with several things at a time."""
    things = list(things)
    with ThreadPoolExecutor(len(things)) as threads:
        list(threads.map(work, things))


@dataclass(frozen=True)
class Verdict:
    """What came of a point with one delivery."""

    point: Point
    delivery: str
    outcome: Outcome

    @property
    def complaints(self) -> list[str]:
        """What is wrong with it."""
        return self.point.complaints(self.delivery, self.outcome)


def execute(points: Sequence[Point], folder: Path, seed: int, stage: Stage, *, held: bool) -> list[Verdict]:
    """Let the points happen side by side, wait until every message has arrived, and judge."""
    cases = [(point, run) for point in points for run in point.runs(folder, seed, held=held)]
    runs_of: dict[Happen, list[Run]] = {}  # what kills a JVM kills it once, under all of its runs
    for point, run in cases:
        runs_of.setdefault(point.happen, []).append(run)

    def go_through(happen: Happen) -> None:
        happen(runs_of[happen], stage)
        together(_settle, runs_of[happen])

    try:
        together(go_through, runs_of)
        return [Verdict(point, run.plan.delivery, run.outcome()) for point, run in cases]
    except BaseException:
        stage.discard()  # its queries may be in any state
        raise
    finally:
        for _, run in cases:
            run.close()


def _settle(run: Run) -> None:
    run.settle()
    run.stop()


def _nothing(run: Run) -> None:
    pass


def _on(kind: str, harm: Callable[[Run], None] = _nothing, *, before: Callable[[Run], None] = _nothing) -> Happen:
    """Each run for itself, on a driver of the kind."""

    def happen(runs: Sequence[Run], stage: Stage) -> None:
        driver = stage.driver(kind)

        def one(run: Run) -> None:
            before(run)
            run.start(driver)
            harm(run)

        together(one, runs)

    return happen


# Inside a task.


def _task_fault(kind: Any, where: Any) -> Draw:
    return lambda lot, held: {"fault": TaskFault(kind, where, lot.randrange(3))}


def _shuffle(lot: random.Random, held: bool) -> dict[str, Any]:
    return {"shuffle_batch": lot.randrange(2)}


def _small(lot: random.Random, held: bool) -> dict[str, Any]:
    """Every task costs the start of two interpreters."""
    return {"waves": 1}


# A process that dies.


def _moment(lot: random.Random, held: bool) -> dict[str, Any]:
    """In the middle of a task, which waits for it; or whenever it happens to be."""
    where = lot.choice(["before", "during", "after"])
    return {"fault": TaskFault("stall", where, lot.randrange(3))} if held else {}


def _wait_for_moment(run: Run) -> None:
    if run.plan.fault is not None or run.plan.hold_batch is not None:
        run.wait_for_fault()
    else:
        run.wait_for_batch(run.random.randrange(3))
        time.sleep(run.random.uniform(0, 1.5))


def _kill_agent(run: Run) -> None:
    _wait_for_moment(run)
    assert run.agent is not None
    run.agent.kill()
    _start_again(run)


def _kill_planner(run: Run) -> None:
    _wait_for_moment(run)
    run.planner.kill()
    run.wait_until(lambda: not run.agent_lives(), "the end of the agent with its planner", seconds=5)
    _start_again(run)


def _start_again(run: Run) -> None:
    run.release()
    run.wait_for_failure()
    run.note_death()
    run.stop()
    run.start(run.driver)


def kill_jvm(runs: Sequence[Run], stage: Stage) -> None:
    """Kill the JVM under all of them; they go on from their checkpoints in another one, which may be elsewhere."""
    driver = stage.driver("forked")
    together(lambda run: run.start(driver), runs)
    together(_wait_for_moment, runs)
    stage.kill("forked")
    together(lambda run: run.note_death(), runs)
    for run in runs:
        run.release()
    driver = stage.driver("cluster")
    together(lambda run: run.start(driver), runs)


def _between_the_commits(lot: random.Random, held: bool) -> dict[str, Any]:
    """The sink has committed the batch, and Spark has not."""
    return {"sink": "sqlite", "hold_batch": lot.randrange(3)}


def _speculate(run: Run) -> None:
    """The first attempt of one task stalls until its twin has begun."""
    run.wait_for_fault()
    assert run.plan.fault is not None
    first = run.plan.fault.batch
    run.wait_until(
        lambda: any(note.attempt > 0 and note.batch >= first for note in attempts(run.notes)),
        "a twin of the task that stalls",
    )
    run.release()


# So many messages at the start that every batch but the first is full, and has a part for each worker.
_AT_ONCE = {"waves": 1, "wave_rows": 24_000}


def _slow_task(lot: random.Random, held: bool) -> dict[str, Any]:
    where = lot.choice(["before", "during", "after"])
    return {"fault": TaskFault("stall", where, lot.randrange(1, 3)), **_AT_ONCE}


def _slow_batch(lot: random.Random, held: bool) -> dict[str, Any]:
    where = lot.choice(["before", "during", "after"])
    return {"fault": TaskFault("stall", where, lot.randrange(1, 3), every=True), **_AT_ONCE}


def lose_worker(runs: Sequence[Run], stage: Stage) -> None:
    """Kill one of two workers, with its executor and all, under a batch that has a task on each."""
    driver = stage.driver("cluster")
    together(lambda run: run.start(driver), runs)
    together(_wait_for_two_tasks, runs)
    stage.kill_worker()
    for run in runs:
        run.release()


def _wait_for_two_tasks(run: Run) -> None:
    run.wait_for_fault()
    assert run.plan.fault is not None
    first = run.plan.fault.batch
    run.wait_until(
        lambda: len({note.partition for note in attempts(run.notes) if note.batch >= first}) == 2,
        "both tasks of the batch that stalls",
    )


# Disks.


def _fill_disk(run: Run) -> None:
    """The agent, which writes the rows, or the planner, which writes all else, can make no file longer than some bytes.

    Each is far less than a wave of messages takes.
    """
    run.wait_for_batch(run.random.randrange(2))
    assert run.agent is not None
    writer = run.random.choice([run.agent, run.planner])
    limit = run.random.choice([0, 100, 1_000])
    writer.rlimit(psutil.RLIMIT_FSIZE, (limit, psutil.RLIM_INFINITY))
    run.publish_wave()
    error = run.wait_for_failure()
    assert "no space" in error, error
    _start_again(run)


# Pub/Sub.


_CUTS = 3


def _short_leases(lot: random.Random, held: bool) -> dict[str, Any]:
    """What a cut stream lost on its way comes again when its lease ends, and the others' must not end."""
    return {"ack_deadline_s": 10}


def _cut_streams(run: Run) -> None:
    run.emulator.faults.cut_streams(run.random.randrange(100, 3_000), times=_CUTS)


def _streams_came_back(run: Run) -> None:
    run.wait_until(lambda: run.emulator.calls().get("StreamingPull", 0) > _CUTS, "new streams after the cut ones")


def _fail_acks(run: Run) -> None:
    code = run.random.choice(["UNAVAILABLE", "INTERNAL", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "ABORTED"])
    times = run.random.randrange(4, 10)
    run.emulator.faults.answer("Acknowledge", code, times=times)
    run.wait_until(lambda: run.emulator.calls().get("Acknowledge", 0) > times, "acknowledgements after the failed ones")


def _early_stall(lot: random.Random, held: bool) -> dict[str, Any]:
    """Before the last batch: with a log, only what is in the agent's buffer has leases that can end."""
    return {"fault": TaskFault("stall", "during", lot.randrange(2))}


def _end_leases(run: Run) -> None:
    run.wait_for_fault()
    run.wait_until(lambda: run.emulator.counters(SUBSCRIPTION)["outstanding"], "messages that are leased")
    run.emulator.advance(run.plan.ack_deadline_s + 1)
    assert run.emulator.counters(SUBSCRIPTION)["expired"] > 0
    run.release()


POINTS = {
    point.name: point
    for point in (
        Point("task-raises-before-reading", _on("forked"), _task_fault("raise", "before"), second_attempt=True),
        Point("task-raises-while-reading", _on("forked"), _task_fault("raise", "during"), second_attempt=True),
        Point("task-raises-after-reading", _on("forked"), _task_fault("raise", "after"), second_attempt=True),
        Point("worker-killed", _on("forked"), _task_fault("kill", "during"), second_attempt=True),
        Point("agent-killed", _on("forked", _kill_agent), _moment, may_duplicate=True),
        Point("planner-killed", _on("forked", _kill_planner), _moment, may_duplicate=True),
        Point("streams-cut", _on("forked", _streams_came_back, before=_cut_streams), _short_leases),
        Point("acks-fail", _on("forked", _fail_acks)),
        Point("leases-end", _on("forked", _end_leases), _early_stall, may_duplicate=True),
        Point("shuffle-stage-again", _on("forked"), _shuffle, second_attempt=True, rerun_of_a_stage=True),
        Point("disk-full", _on("forked", _fill_disk), deliveries=("log",)),
        Point("workers-not-forked", _on("unforked"), _small),
        Point("JVM-killed", kill_jvm, _moment, may_duplicate=True),
        Point("idempotent-sink", kill_jvm, _between_the_commits, may_duplicate=True),
        Point("speculation", _on("cluster", _speculate), _slow_task, second_attempt=True),
        Point("worker-lost", lose_worker, _slow_batch, second_attempt=True),
    )
}

# What happens side by side: most of a run is waiting. A worker that is killed takes those of the other queries along,
# and what kills a JVM or a host takes all: these have no company.
GROUPS = [
    [POINTS[name] for name in names]
    for names in (
        ("worker-killed",),
        ("streams-cut", "acks-fail", "disk-full", "workers-not-forked"),
        ("task-raises-before-reading", "task-raises-while-reading", "task-raises-after-reading", "shuffle-stage-again"),
        ("agent-killed", "planner-killed", "leases-end"),
        ("JVM-killed", "idempotent-sink"),
        ("speculation",),
        ("worker-lost",),
    )
]
