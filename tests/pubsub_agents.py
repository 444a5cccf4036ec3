"""Readers with real agents on a real emulator, for tests that need no Spark."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil
import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadMaxRows

from solstice.pubsub import publish
from solstice.pubsub._options import SOURCE_OPTIONS
from solstice.pubsub._reader import PubSubStreamReader
from solstice.pubsub._shape import Shape
from solstice.testing import PubSubEmulator

TOPIC = "projects/test/topics/events"
SUBSCRIPTION = "projects/test/subscriptions/events"
START = {"epoch": "", "seq": 0}


@contextmanager
def serving(**settings: object) -> Iterator[PubSubEmulator]:
    """An emulator with a topic and a subscription of these settings."""
    with PubSubEmulator() as emulator:
        emulator.create_topic(TOPIC)
        emulator.create_subscription(SUBSCRIPTION, TOPIC, **settings)
        yield emulator


@contextmanager
def reading(emulator: PubSubEmulator, **options: str) -> Iterator[PubSubStreamReader]:
    """A reader; its agent starts with the first ``latestOffset``."""
    given = {"subscriptionId": SUBSCRIPTION, "emulatorHost": emulator.address} | options
    reader = PubSubStreamReader(SOURCE_OPTIONS.parse(given), Shape())
    try:
        yield reader
    finally:
        reader.stop()


def send(emulator: PubSubEmulator, first: int, count: int) -> set[bytes]:
    payloads = [f"event-{number}".encode() for number in range(first, first + count)]
    assert publish(TOPIC, pa.table({"data": payloads}), emulator_host=emulator.address).published == count
    return set(payloads)


def cut(reader: PubSubStreamReader, start: dict, rows: int, limit: int = 100_000) -> tuple[dict, list]:
    """The next batch, once the agent has received ``rows`` rows in all."""
    reader._deliver()
    wait_until(lambda: reader.reportLatestOffset()["received"] >= rows)
    end = reader.latestOffset(start, ReadMaxRows(limit))
    return end, list(reader.partitions(start, end))


def read(reader: PubSubStreamReader, partitions: list) -> list[bytes]:
    return [
        value for partition in partitions for batch in reader.read(partition) for value in batch["data"].to_pylist()
    ]


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.02)


def agent_process(reader: PubSubStreamReader) -> psutil.Process:
    assert reader._agent is not None
    return psutil.Process(reader._agent._process.pid)
