"""Readers with real agents on a real emulator, for tests that need no Spark."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from solstice.pubsub import publish
from solstice.pubsub._options import parse_source
from solstice.pubsub._reader import PubSubStreamReader
from solstice.pubsub._shape import Shape
from solstice.testing import PubSubEmulator
from waiting import wait_until

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
    values = parse_source(given)
    reader = PubSubStreamReader(values, Shape.of(values, None))
    try:
        yield reader
    finally:
        reader.stop()


@contextmanager
def lives(emulator: PubSubEmulator, log: Path) -> Iterator[Callable[..., PubSubStreamReader]]:
    """Makes readers of ``delivery="log"`` one after the other: each is a new life of the same query."""
    with ExitStack() as stack:
        given = {"delivery": "log", "logPath": str(log)}
        yield lambda **options: stack.enter_context(reading(emulator, **given | options))


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


@contextmanager
def own_agents() -> Iterator[Path]:
    """A temporary folder of the test's own, where its agents are the only ones; short, for the sake of sockets."""
    with tempfile.TemporaryDirectory(prefix="s-") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def agent_process(reader: PubSubStreamReader) -> psutil.Process:
    assert reader._agent is not None
    return psutil.Process(reader._agent._process.pid)
