"""One run: a query on a subscription of its own through one fault, and the judgement over it."""

import random
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from pubsub_crash import task_faults
from pubsub_crash.driver import Driver, wait_until
from pubsub_crash.sinks import Log, sink_in
from pubsub_crash.task_faults import TaskFault
from solstice.pubsub import publish
from solstice.testing import PubSubEmulator

DELIVERIES = ("ack-on-commit", "log")
TOPIC = "projects/crash/topics/events"
SUBSCRIPTION = "projects/crash/subscriptions/events"
SETTLE_S = 180.0


@dataclass
class Outcome:
    """What a run has come to."""

    faulted: bool
    published: int
    lost: int
    wrongly_acked: int
    duplicates: int
    duplicates_of_acked: int
    second_attempts: int
    reruns_of_a_stage: int
    seconds: float


@dataclass
class Plan:
    """What a run is made of; the moments in it were drawn by lot."""

    delivery: str
    seed: int
    sink: str = "parquet"
    fault: TaskFault | None = None
    hold_batch: int | None = None
    shuffle_batch: int | None = None
    waves: int = 4
    wave_rows: int = 6_000
    # No lease ends by itself while a busy machine is slow: where leases have to end, the emulator's clock is moved.
    ack_deadline_s: int = 30


class Run:
    """A query that is started, harmed, started again where that is needed, and judged."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.plan = plan
        self.random = random.Random(plan.seed)
        self.name = "-".join((*folder.parts[-2:], str(plan.seed)))
        self.folder = folder
        self.notes = folder / "notes"
        self.notes.mkdir(parents=True)
        self.emulator = PubSubEmulator().start()
        self.emulator.create_topic(TOPIC)
        self.emulator.create_subscription(SUBSCRIPTION, TOPIC, ack_deadline_s=plan.ack_deadline_s)
        self.agent: psutil.Process | None = None
        self._began = 0.0
        self._life = 0
        self._driver: Driver | None = None
        self._sink = sink_in(folder, plan.sink)
        self._log = Log(folder)
        self._published: set[str] = set()
        self._wrongly_acked: set[str] = set()
        self._compared = 0
        self._acked_before_death: set[str] = set()
        self._publisher = threading.Thread(target=self._publish)

    def _publish(self) -> None:
        lot = random.Random(f"publisher {self.plan.seed}")  # a thread of its own would mix up what others draw
        for _ in range(self.plan.waves):
            self.publish_wave()
            time.sleep(lot.uniform(0.2, 0.6))

    def publish_wave(self) -> None:
        """Publish so many messages as are sent at a time."""
        rows = pa.table({"data": [f"event-{number}" for number in range(self.plan.wave_rows)]})
        sent = publish(TOPIC, rows, return_ids=True, emulator_host=self.emulator.address)
        self._published.update(sent.message_ids.to_pylist())

    # What happens to it.

    def start(self, driver: Driver) -> None:
        """Start the query on a driver, or start it again from its checkpoint."""
        if self._life == 0:
            self._began = time.monotonic()
            self._publisher.start()
        self._driver = driver
        self._life += 1
        options = {
            "subscriptionId": SUBSCRIPTION,
            "emulatorHost": self.emulator.address,
            "ackDeadline": f"{self.plan.ack_deadline_s}s",
            "numPartitions": "2",
            "maxMessagesPerTrigger": "8000",
            "delivery": self.plan.delivery,
        }
        if self.plan.delivery == "log":
            options["logPath"] = str(self._log.folder)
        self.agent = driver.start_query(
            self.emulator.port,
            name=self.name,
            folder=str(self.folder),
            life=self._life,
            options=options,
            sink=self.plan.sink,
            fault=task_faults.as_json(self.plan.fault),
            hold_batch=self.plan.hold_batch,
            shuffle_batch=self.plan.shuffle_batch,
        )

    def wait_for_fault(self) -> None:
        """Until the fault in the task, or the stop in the sink, has come."""
        self.wait_until((self.notes / "fired").exists, "the fault in the query")

    def wait_for_batch(self, number: int) -> None:
        """Until a task of that batch or a later one has begun."""
        self.wait_until(
            lambda: any(attempt.batch >= number for attempt in task_faults.attempts(self.notes)), f"batch {number}"
        )

    def release(self) -> None:
        """Let go on what stalls."""
        (self.notes / "released").touch()

    def wait_for_failure(self) -> str:
        """Until Spark has seen the query fail, and why."""
        state: dict[str, Any] = {}

        def failed() -> bool:
            state.update(self.driver.ask("state", name=self.name))
            return not state["active"]

        self.wait_until(failed, "the failure of the query")
        return str(state["error"])

    @property
    def planner(self) -> psutil.Process:
        """Spark's process that plans the query: the agent is its child."""
        assert self.agent is not None
        planner = self.agent.parent()
        assert planner is not None
        assert any("python_streaming_source_runner" in part for part in planner.cmdline()), planner.cmdline()
        return planner

    def agent_lives(self) -> bool:
        """Whether the agent of the query is there."""
        assert self.agent is not None
        return self.agent.is_running() and self.agent.status() != psutil.STATUS_ZOMBIE

    def note_death(self) -> None:
        """Everything that held messages is dead: compare, and let the leases of the dead end."""
        self._look()
        self._acked_before_death |= set(self.emulator.acked_ids(SUBSCRIPTION))
        self.emulator.advance(self.plan.ack_deadline_s + 1)

    def settle(self) -> None:
        """Until everything is in the sink and acknowledged."""
        self._publisher.join(60)
        self.wait_until(self._is_settled, "every message in the sink and acknowledged", SETTLE_S)

    def stop(self) -> None:
        """Stop the query."""
        self.driver.ask("stop", name=self.name)

    def close(self) -> None:
        """End the emulator."""
        if self._life > 0:
            self._publisher.join(60)
        self.emulator.stop()

    @property
    def driver(self) -> Driver:
        assert self._driver is not None
        return self._driver

    def wait_until(self, condition, what: str, seconds: float = 120.0) -> None:
        """Wait, and compare meanwhile; a time-out tells what there is to know."""

        def look_and_see() -> bool:
            self._look()
            return condition()

        try:
            wait_until(look_and_see, f"{self.name}: {what}", seconds)
        except TimeoutError as error:
            raise AssertionError(f"{error}\n{self.evidence()}") from error

    # How it is judged.

    def _look(self) -> None:
        """What is acknowledged has to be in the sink by now, or in the log. Read in the order in which rows move."""
        count = self.emulator.counters(SUBSCRIPTION)["acked"]
        if count != self._compared:
            acked = set(self.emulator.acked_ids(SUBSCRIPTION))
            logged = self._log.ids()
            self._wrongly_acked |= acked - logged - self._sink.ids().keys()
            self._compared = count

    def _is_settled(self) -> bool:
        counters = self.emulator.counters(SUBSCRIPTION)
        if not counters["outstanding"] == counters["backlog"] == 0:
            return self._no_failure()
        acked = self.emulator.acked_ids(SUBSCRIPTION)
        return (len(acked) == len(self._published) and self._sink.ids().keys() >= self._published) or self._no_failure()

    def _no_failure(self) -> bool:
        if error := self.driver.ask("state", name=self.name)["error"]:
            raise AssertionError(f"{self.name}: the query failed: {error}\n{self.evidence()}")
        return False

    def outcome(self) -> Outcome:
        """The judgement; the run has to be over."""
        self._look()
        stored = self._sink.ids()
        twice = {message_id for message_id, count in stored.items() if count > 1}
        notes = task_faults.attempts(self.notes)
        tries = Counter(note.work for note in notes)
        first_tries = Counter(note.work for note in notes if note.attempt == 0)
        asked = self.plan.fault or self.plan.hold_batch is not None or self.plan.shuffle_batch is not None
        return Outcome(
            faulted=not asked or (self.notes / "fired").exists(),
            published=len(self._published),
            lost=len(self._published - stored.keys()),
            wrongly_acked=len(self._wrongly_acked),
            duplicates=stored.total() - len(stored),
            duplicates_of_acked=len(twice & self._acked_before_death),
            second_attempts=tries.total() - len(tries),
            reruns_of_a_stage=first_tries.total() - len(first_tries),
            seconds=time.monotonic() - self._began,
        )

    def evidence(self) -> str:
        """All there is to know about a run that does not go on."""
        stored = self._sink.ids()
        try:
            state = self.driver.ask("state", name=self.name)
        except (RuntimeError, OSError, AssertionError) as error:
            state = {"driver": str(error)}
        return "\n".join(
            (
                f"plan: {self.plan}",
                f"published {len(self._published)}, in the sink {len(stored)} ({stored.total()} rows)",
                f"emulator: {self.emulator.counters(SUBSCRIPTION)} {self.emulator.calls()}",
                f"query: {state}",
                f"log: {self.driver.log_tail()}",
            )
        )
