"""Faults of the service while an agent is busy: what fails the query, and what it goes on with."""

from collections.abc import Iterator

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from pubsub_agents import START, SUBSCRIPTION, cut, reading, send, serving
from solstice.errors import PermissionDeniedError, SolsticeError
from solstice.pubsub._reader import PubSubStreamReader
from solstice.testing import PubSubEmulator
from waiting import wait_until


@pytest.fixture
def emulator() -> Iterator[PubSubEmulator]:
    with serving() as emulator:
        yield emulator


def failure(reader: PubSubStreamReader, start: dict) -> SolsticeError:
    """What the query fails with, which it does within seconds."""
    errors: list[SolsticeError] = []

    def failed() -> bool:
        try:
            reader.latestOffset(start, ReadMaxRows(10))
        except SolsticeError as error:
            errors.append(error)
        return bool(errors)

    wait_until(failed)
    return errors[0]


def test_a_stream_that_fails_for_good_fails_the_query_though_there_are_rows_to_read(emulator) -> None:
    with reading(emulator, streams="2") as reader:
        send(emulator, 0, 5_000)
        end, _ = cut(reader, START, 5_000, limit=1_000)
        emulator.faults.answer("StreamingPull", "PERMISSION_DENIED", times=1)
        emulator.faults.cut_streams(0, times=1)
        assert isinstance(failure(reader, end), PermissionDeniedError)


def test_acknowledgements_that_are_denied_fail_the_query_under_load(emulator) -> None:
    with reading(emulator) as reader:
        send(emulator, 0, 20_000)
        end, _ = cut(reader, START, 20_000, limit=10_000)
        emulator.faults.answer("Acknowledge", "PERMISSION_DENIED", times=1)
        error = failure(reader, end)
        assert isinstance(error, PermissionDeniedError)
        assert SUBSCRIPTION in str(error)
        # All but the one request that was denied.
        wait_until(lambda: emulator.counters(SUBSCRIPTION)["acked"] == 9_000)


def test_acknowledgements_that_fail_for_a_while_are_sent_again_and_the_query_goes_on(emulator) -> None:
    with reading(emulator) as reader:
        send(emulator, 0, 20_000)
        start, _ = cut(reader, START, 20_000, limit=10_000)
        emulator.faults.answer("Acknowledge", "UNAVAILABLE", times=15)
        end = reader.latestOffset(start, ReadMaxRows(10_000))
        assert end != start
        assert reader.latestOffset(end, ReadMaxRows(10_000)) == end
        wait_until(lambda: emulator.counters(SUBSCRIPTION)["acked"] == 20_000, seconds=20)
        wait_until(lambda: reader.reportLatestOffset()["acked"] == 20_000)


def test_acknowledgements_that_come_too_late_are_counted_and_the_query_goes_on() -> None:
    with serving(enable_exactly_once_delivery=True) as emulator, reading(emulator) as reader:
        send(emulator, 0, 3_000)
        end, _ = cut(reader, START, 3_000)
        emulator.faults.answer("ModifyAckDeadline", "UNAVAILABLE", times=100)
        emulator.advance(120)  # all leases end on the service's side only
        reader.latestOffset(end, ReadMaxRows(1))
        wait_until(lambda: reader.reportLatestOffset()["refused"] == 3_000)
        emulator.faults.clear()
        wait_until(lambda: reader.reportLatestOffset()["received"] >= 6_000)
