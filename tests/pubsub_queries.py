"""What tests of streaming queries on the emulator share: events in, rows out, and the wait in between."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

import waiting
from processes import descendants, has_ended
from solstice.pubsub import publish
from solstice.testing import PubSubEmulator

TOPIC = "projects/test/topics/events"
SUBSCRIPTION = "projects/test/subscriptions/events"


def send(emulator: PubSubEmulator, first: int, count: int) -> set[str]:
    """Publish so many events; returns their payloads."""
    payloads = [f"event-{number}" for number in range(first, first + count)]
    assert publish(TOPIC, pa.table({"data": payloads}), emulator_host=emulator.address).published == count
    return set(payloads)


def files_of(folder: Path) -> list[str]:
    """The files that Spark has committed: those its log names, not all there are."""
    files = set()
    for entry in sorted((folder / "out" / "_spark_metadata").glob("[0-9]*")):
        files |= {json.loads(line)["path"] for line in entry.read_text().splitlines()[1:]}
    return sorted(file.removeprefix("file://") for file in files)


def stored(folder: Path, column: str = "event") -> list[str]:
    """A column of all that Spark has committed."""
    return [value for file in files_of(folder) for value in pq.read_table(file)[column].to_pylist()]


def is_settled(emulator: PubSubEmulator, count: int, subscription: str = SUBSCRIPTION) -> bool:
    """Whether so many are acknowledged and no more are there."""
    counters = emulator.counters(subscription)
    return counters["acked"] == count and counters["outstanding"] == counters["backlog"] == 0


def wait_until(condition: Callable[[], bool], query: Any = None, seconds: float = 90.0) -> None:
    """Fails when the query does, or when the time is over."""

    def holds() -> bool:
        if query is not None:
            assert query.exception() is None, query.exception()
        return condition()

    waiting.wait_until(holds, seconds=seconds, poll_s=0.1)


def agents_of(query: Any) -> list[psutil.Process]:
    """The agent of a query, once it runs; with those of other queries of this process."""
    found: list[psutil.Process] = []
    wait_until(lambda: bool(found.extend(descendants("solstice.pubsub._agent")) or found), query)
    return found


def wait_for_end(agents: list[psutil.Process], seconds: float = 5.0) -> None:
    """No agent outlives its query."""
    assert agents
    wait_until(lambda: all(has_ended(agent) for agent in agents), seconds=seconds)
