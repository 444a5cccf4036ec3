"""The faults of the matrix, one by one: what is drawn by lot, what happens, and what has to be seen afterwards."""

import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pubsub_crash.driver import Driver
from pubsub_crash.run import ACK_DEADLINE_S, DELIVERIES, SUBSCRIPTION, Outcome, Plan, Run
from pubsub_crash.task_faults import TaskFault

# What Spark needs to have done with; each is a driver of its own.
DRIVERS: dict[str, dict[str, str]] = {
    "forked": {},
    "unforked": {"spark.python.use.daemon": "false", "spark.python.worker.reuse": "false"},
}


class Stage:
    """The drivers of a matrix, each started when it is first needed: a JVM takes its time."""

    def __init__(self) -> None:
        self._drivers: dict[str, Driver] = {}

    def driver(self, kind: str) -> Driver:
        """The one of a kind."""
        if kind not in self._drivers:
            self._drivers[kind] = Driver(**DRIVERS[kind])
        return self._drivers[kind]

    def kill(self, kind: str) -> None:
        """kill -9 of its JVM; the next one of the kind is a new one."""
        driver = self._drivers.pop(kind)
        try:
            driver.kill_jvm()
        finally:
            driver.discard()

    def discard(self) -> None:
        """End every driver, in whatever state."""
        while self._drivers:
            self._drivers.popitem()[1].discard()

    def stop(self) -> None:
        """End every driver in order; it may leave nothing behind."""
        try:
            for kind in list(self._drivers):
                self._drivers[kind].stop()
                del self._drivers[kind]
        finally:
            self.discard()


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


def together(work: Callable[[Run], None], runs: Sequence[Run]) -> None:
    """Do the same with several runs at a time."""
    with ThreadPoolExecutor(len(runs)) as threads:
        list(threads.map(work, runs))


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
    """Let the points happen, all in one, wait until every message has arrived, and judge."""
    [happen] = {point.happen for point in points}
    cases = [(point, run) for point in points for run in point.runs(folder, seed, held=held)]
    runs = [run for _, run in cases]
    try:
        happen(runs, stage)
        together(_settle, runs)
        return [Verdict(point, run.plan.delivery, run.outcome()) for point, run in cases]
    except BaseException:
        stage.discard()  # its queries may be in any state
        raise
    finally:
        for run in runs:
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
    return {"shuffle_batch": lot.randrange(3)}


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
    assert run.agent is not None
    planner = run.agent.parent()
    assert planner is not None
    assert any("python_streaming_source_runner" in part for part in planner.cmdline()), planner.cmdline()
    planner.kill()
    run.wait_until(lambda: not run.agent_lives(), "the end of the agent with its planner", seconds=5)
    _start_again(run)


def _start_again(run: Run) -> None:
    run.release()
    run.wait_for_failure()
    run.note_death()
    run.stop()
    run.start(run.driver)


def kill_jvm(runs: Sequence[Run], stage: Stage) -> None:
    """Kill the JVM under all of them; they go on from their checkpoints in another one."""
    driver = stage.driver("forked")
    together(lambda run: run.start(driver), runs)
    together(_wait_for_moment, runs)
    stage.kill("forked")
    together(lambda run: run.note_death(), runs)
    for run in runs:
        run.release()
    driver = stage.driver("unforked")
    together(lambda run: run.start(driver), runs)


def _between_the_commits(lot: random.Random, held: bool) -> dict[str, Any]:
    """The sink has committed the batch, and Spark has not."""
    return {"sink": "sqlite", "hold_batch": lot.randrange(3)}


# Pub/Sub.


_CUTS = 3


def _cut_streams(run: Run) -> None:
    run.emulator.faults.cut_streams(run.random.randrange(100, 3_000), times=_CUTS)


def _streams_came_back(run: Run) -> None:
    run.wait_until(lambda: run.emulator.calls().get("StreamingPull", 0) > _CUTS, "new streams after the cut ones")


def _fail_acks(run: Run) -> None:
    code = run.random.choice(["UNAVAILABLE", "INTERNAL", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "ABORTED"])
    times = run.random.randrange(4, 10)
    run.emulator.faults.answer("Acknowledge", code, times=times)
    run.wait_until(lambda: run.emulator.calls().get("Acknowledge", 0) > times, "acknowledgements after the failed ones")


def _end_leases(run: Run) -> None:
    run.wait_for_fault()
    run.wait_until(lambda: run.emulator.counters(SUBSCRIPTION)["outstanding"], "messages that are leased")
    run.emulator.advance(ACK_DEADLINE_S + 1)
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
        Point("streams-cut", _on("forked", _streams_came_back, before=_cut_streams)),
        Point("acks-fail", _on("forked", _fail_acks)),
        Point("leases-end", _on("forked", _end_leases), _task_fault("stall", "during"), may_duplicate=True),
        Point("shuffle-stage-again", _on("forked"), _shuffle, second_attempt=True, rerun_of_a_stage=True),
        Point("workers-not-forked", _on("unforked")),
        Point("JVM-killed", kill_jvm, _moment, may_duplicate=True),
        Point("idempotent-sink", kill_jvm, _between_the_commits, may_duplicate=True),
    )
}

# What happens in one go: a JVM is killed once for all.
GROUPS: list[list[Point]] = [[point] for point in POINTS.values() if point.happen is not kill_jvm]
GROUPS.append([point for point in POINTS.values() if point.happen is kill_jvm])
