"""Peeks without Spark: what they warn of, and where they stop."""

import logging
import time

import pyarrow as pa
import pytest

from pubsub_agents import SUBSCRIPTION, TOPIC, serving
from solstice.pubsub import publish
from solstice.pubsub._options import SOURCE_OPTIONS
from solstice.pubsub._peek import PeekReader
from solstice.pubsub._shape import Shape
from solstice.testing import PubSubEmulator


def reader(emulator: PubSubEmulator, **options: str) -> PeekReader:
    given = {"subscriptionId": SUBSCRIPTION, "emulatorHost": emulator.address, "availableNowIdle": "300ms"} | options
    return PeekReader(SOURCE_OPTIONS.parse(given), Shape())


def test_a_peek_warns_where_deliveries_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    dead = "projects/test/topics/dead"
    with serving() as emulator:
        emulator.create_topic(dead)
        with caplog.at_level(logging.WARNING):
            assert reader(emulator).partitions() == []
        assert not caplog.records
        counted = "projects/test/subscriptions/counted"
        emulator.create_subscription(counted, TOPIC, dead_letter_topic=dead, max_delivery_attempts=7)
        with caplog.at_level(logging.WARNING):
            reader(emulator, subscriptionId=counted).partitions()
    [warning] = caplog.records
    for word in (counted, "after 7 of them", dead):
        assert word in warning.message


def test_whoever_may_pull_but_not_read_the_settings_may_peek() -> None:
    with serving() as emulator:
        publish(TOPIC, pa.table({"data": ["x"]}), emulator_host=emulator.address)
        emulator.deny("pubsub.subscriptions.get")
        [part] = reader(emulator).partitions()
    assert pa.ipc.open_stream(part.rows).read_all()["data"].to_pylist() == [b"x"]


def test_a_peek_stops_at_64_megabytes_and_acknowledges_nothing() -> None:
    with serving() as emulator:
        for _ in range(12):
            publish(TOPIC, pa.table({"data": [bytes(8_000_000)]}), emulator_host=emulator.address)
        started = time.monotonic()
        parts = reader(emulator, numPartitions="2", availableNowIdle="60s").partitions()
        assert time.monotonic() - started < 45  # it does not wait for more
        rows = sum(pa.ipc.open_stream(part.rows).read_all().num_rows for part in parts)
        assert 8 <= rows <= 10
        counters = emulator.counters(SUBSCRIPTION)
    assert (counters["acked"], counters["outstanding"], counters["backlog"]) == (0, 0, 12)
