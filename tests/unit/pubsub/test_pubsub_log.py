"""``delivery="log"`` with a real agent and emulator, without Spark: this file makes Spark's calls, and its crashes.

The rules are those of ``test_delivery_model_log.py``. A new reader is a new life: what a restart of the query makes.
"""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from solstice.errors import AgentLostError, ConfigError, LogError, PartUnavailableError
from solstice.pubsub import publish
from solstice.pubsub._log import Log, name_of
from solstice.pubsub._options import SOURCE_OPTIONS
from solstice.pubsub._reader import PubSubStreamReader
from solstice.pubsub._shape import Shape
from solstice.testing import PubSubEmulator

TOPIC = "projects/test/topics/events"
SUBSCRIPTION = "projects/test/subscriptions/events"
START = {"epoch": "", "seq": 0}


@pytest.fixture
def emulator() -> Iterator[PubSubEmulator]:
    with PubSubEmulator() as emulator:
        emulator.create_topic(TOPIC)
        emulator.create_subscription(SUBSCRIPTION, TOPIC)
        yield emulator


@pytest.fixture
def new_life(emulator: PubSubEmulator, tmp_path: Path) -> Iterator[Callable[..., PubSubStreamReader]]:
    readers = []

    def build(**options: str) -> PubSubStreamReader:
        given = {
            "subscriptionId": SUBSCRIPTION,
            "emulatorHost": emulator.address,
            "delivery": "log",
            "logPath": str(tmp_path / "log"),
        }
        readers.append(PubSubStreamReader(SOURCE_OPTIONS.parse(given | options), Shape()))
        return readers[-1]

    yield build
    for reader in readers:
        reader.stop()


def send(emulator: PubSubEmulator, first: int, count: int) -> list[bytes]:
    payloads = [f"event-{number}".encode() for number in range(first, first + count)]
    assert publish(TOPIC, pa.table({"data": payloads}), emulator_host=emulator.address).published == count
    return payloads


def ask(reader: PubSubStreamReader, start: dict, limit: int = 100_000) -> dict:
    """What Spark is told once there is something: it asks until then."""
    deadline = time.monotonic() + 20
    while (end := reader.latestOffset(start, ReadMaxRows(limit))) == start:
        assert time.monotonic() < deadline, "nothing came"
    return end


def read(reader: PubSubStreamReader, start: dict, end: dict) -> list[bytes]:
    parts = reader.partitions(start, end)
    return [value for part in parts for batch in reader.read(part) for value in batch["data"].to_pylist()]


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.02)


def acked(emulator: PubSubEmulator) -> int:
    return emulator.counters(SUBSCRIPTION)["acked"]


def files(folder: Path) -> list[str]:
    """What is in the log besides its owner, by the end of the names."""
    return sorted(path.name[58:] for path in (folder / "log").iterdir() if path.name != "owner.json")


def test_a_batch_is_acked_as_soon_as_it_is_written_and_read_from_the_log(emulator, new_life, tmp_path) -> None:
    reader = new_life()
    sent = send(emulator, 0, 1_000)
    end = ask(reader, START)
    assert files(tmp_path) == ["0.arrow", "json"]
    wait_until(lambda: acked(emulator) == 1_000)
    for _ in range(2):
        assert read(reader, START, end) == sent
    assert reader.latestOffset(START, ReadMaxRows(1)) == end
    assert reader.latestOffset(end, ReadMaxRows(1)) is end
    assert files(tmp_path) == ["ids"]
    assert read(reader, START, end) == []
