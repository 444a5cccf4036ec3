"""AvailableNow, as Spark drives it: what a run reads, when it ends, and what it leaves for the next one."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows, SupportsTriggerAvailableNow

from pubsub_agents import START, SUBSCRIPTION, agent_process, cut, read, reading, send, serving
from solstice.pubsub import _reader
from solstice.pubsub._reader import PubSubStreamReader
from solstice.testing import PubSubEmulator

IDLE_S = 2.0


@pytest.fixture
def emulator() -> Iterator[PubSubEmulator]:
    with serving() as emulator:
        yield emulator


@contextmanager
def run(emulator: PubSubEmulator, **options: str) -> Iterator[PubSubStreamReader]:
    with reading(emulator, **{"availableNowIdle": f"{IDLE_S}s"} | options) as reader:
        reader.prepareForTriggerAvailableNow()
        yield reader


def drain(reader: PubSubStreamReader, start: dict, limit: int = 100_000) -> tuple[list[list[bytes]], dict]:
    """All batches of a run, and where it ended."""
    batches = []
    while True:
        end = reader.latestOffset(start, ReadMaxRows(limit))
        if end == start:
            return batches, end
        batches.append(read(reader, list(reader.partitions(start, end))))
        start = end


def all_of(batches: list[list[bytes]]) -> list[bytes]:
    return [row for batch in batches for row in batch]


def test_a_run_reads_what_is_there_in_batches_of_the_limit_and_ends_with_all_of_it_acknowledged(emulator) -> None:
    sent = send(emulator, 0, 1_000)
    with run(emulator) as reader:
        assert isinstance(reader, SupportsTriggerAvailableNow)
        batches, _ = drain(reader, START, limit=300)
        counters = emulator.counters(SUBSCRIPTION)
    assert max(len(batch) for batch in batches) <= 300
    assert sorted(all_of(batches)) == sorted(sent)
    assert (counters["acked"], counters["outstanding"], counters["backlog"]) == (1_000, 0, 0)


def test_an_empty_subscription_ends_the_run_after_the_idle_time_and_says_so_ever_after(emulator) -> None:
    with run(emulator) as reader:
        began = time.monotonic()
        assert drain(reader, START) == ([], START)
        assert IDLE_S <= time.monotonic() - began < IDLE_S + 5
        send(emulator, 0, 10)
        began = time.monotonic()
        assert drain(reader, START) == ([], START)
        assert time.monotonic() - began < IDLE_S / 2


def test_what_is_published_later_does_not_keep_the_run_alive(emulator) -> None:
    sent = send(emulator, 0, 2_000)
    ended = threading.Event()

    def publish_steadily() -> None:
        number = 1_000_000
        while not ended.wait(0.02):
            send(emulator, number, 5)
            number += 5

    publisher = threading.Thread(target=publish_steadily)
    publisher.start()
    try:
        with run(emulator) as reader:
            began = time.monotonic()
            batches, _ = drain(reader, START, limit=500)
            took = time.monotonic() - began
    finally:
        ended.set()
        publisher.join()
    assert sent <= set(all_of(batches))
    assert took < 15  # two seconds of margin for the clocks, the idle time, and the batches
    assert emulator.counters(SUBSCRIPTION)["backlog"] > 0


def test_the_next_run_goes_on_where_the_last_one_ended(emulator) -> None:
    first = send(emulator, 0, 500)
    with run(emulator) as reader:
        batches, end = drain(reader, START)
    second = send(emulator, 500, 500)
    with run(emulator) as reader:
        # A restart after a crash may replay the last batch: it is planned empty.
        assert list(reader.partitions(START, end)) == []
        more, last = drain(reader, end)
    assert (set(all_of(batches)), set(all_of(more))) == (
        first,
        second,
    )
    assert last["seq"] == end["seq"] + len(more)
    assert emulator.counters(SUBSCRIPTION)["acked"] == 1_000


def test_what_a_killed_agent_held_is_left_to_a_run_after_its_leases(emulator) -> None:
    sent = send(emulator, 0, 100)
    with run(emulator, ackDeadline="10s") as reader:
        cut(reader, START, 100)
        os.kill(agent_process(reader).pid, signal.SIGKILL)
    with run(emulator) as reader:
        assert drain(reader, START) == ([], START)
    emulator.advance(11)
    with run(emulator) as reader:
        batches, _ = drain(reader, START)
    assert set(all_of(batches)) == sent


def test_a_run_waits_for_streams_that_open_late_or_break(emulator) -> None:
    sent = send(emulator, 0, 1_000)
    emulator.faults.answer("StreamingPull", "UNAVAILABLE", times=1)
    emulator.faults.delay("StreamingPull", 2 * IDLE_S, times=2)
    with run(emulator) as reader:
        batches, _ = drain(reader, START)
        assert reader.reportLatestOffset()["reconnects"] == 1
    assert set(all_of(batches)) == sent


def test_a_run_that_waits_long_for_its_streams_says_so_and_what_to_check(emulator, monkeypatch, caplog) -> None:
    monkeypatch.setattr(_reader, "_WARN_EVERY_S", 0.2)
    sent = send(emulator, 0, 10)
    emulator.faults.delay("StreamingPull", 2 * IDLE_S, times=1)
    with run(emulator) as reader:
        batches, _ = drain(reader, START)
    assert set(all_of(batches)) == sent
    warnings = [record.getMessage() for record in caplog.records if "availableNow waits" in record.getMessage()]
    assert len(warnings) > 1
    assert all(SUBSCRIPTION in warning and "emulatorHost" in warning for warning in warnings)


def test_a_run_ends_after_the_answers_to_its_acknowledgements(emulator) -> None:
    send(emulator, 0, 100)
    emulator.faults.answer("Acknowledge", "UNAVAILABLE", times=1)
    emulator.faults.delay("Acknowledge", 2 * IDLE_S, times=2)
    with run(emulator) as reader:
        drain(reader, START)
        counters = emulator.counters(SUBSCRIPTION)
    assert (counters["acked"], counters["outstanding"]) == (100, 0)


def test_a_buffer_that_is_smaller_than_the_backlog_is_no_end(emulator) -> None:
    sent = send(emulator, 0, 1_000)
    with run(emulator, maxOutstandingMessages="150") as reader:
        batches, _ = drain(reader, START)
    assert sorted(all_of(batches)) == sorted(sent)


def test_the_time_of_the_service_decides_not_that_of_this_host(emulator) -> None:
    emulator.advance(3_600)
    sent = send(emulator, 0, 100)
    with run(emulator) as reader:
        batches, _ = drain(reader, START)
    assert set(all_of(batches)) == sent
