"""Pulling while things go wrong: nothing is lost, and what cannot be mended is said."""

import threading
import time
from collections.abc import Iterator

import pyarrow as pa
import pytest

from solstice.errors import AcknowledgeError, NotFoundError, PermissionDeniedError
from solstice.pubsub import Puller, publish, pull
from solstice.testing import PubSubEmulator
from waiting import wait_until

TOPIC = "projects/test/topics/events"
SUBSCRIPTION = "projects/test/subscriptions/events"


@pytest.fixture
def emulator() -> Iterator[PubSubEmulator]:
    with PubSubEmulator() as emulator:
        emulator.create_topic(TOPIC)
        emulator.create_subscription(SUBSCRIPTION, TOPIC)
        yield emulator


def send(emulator: PubSubEmulator, count: int) -> set[bytes]:
    payloads = [f"event-{number}".encode() for number in range(count)]
    publish(TOPIC, pa.table({"data": payloads}), emulator_host=emulator.address)
    return set(payloads)


def puller_of(emulator: PubSubEmulator, subscription: str = SUBSCRIPTION, **options) -> Puller:
    return pull(subscription, **{"emulator_host": emulator.address, "columns": ["data"], "idle_s": 15.0} | options)


def drain(puller: Puller, wanted: set[bytes]) -> None:
    """Acknowledge until everything was seen."""
    seen: set[bytes] = set()
    while seen != wanted:
        batch = next(puller)
        seen |= set(batch.rows["data"].to_pylist())
        batch.ack()


def test_streams_that_are_cut_all_the_time_lose_nothing(emulator) -> None:
    sent = send(emulator, 2_000)
    emulator.faults.cut_streams(after=200)
    with puller_of(emulator, streams=2, max_batch_rows=100) as puller:
        drain(puller, sent)
        assert puller.stats()["reconnects"] >= 5
    wait_until(lambda: emulator.counters(SUBSCRIPTION)["acked"] == 2_000)


def test_bursts_of_unavailability_delay_and_lose_nothing(emulator) -> None:
    sent = send(emulator, 500)
    for method in ("StreamingPull", "Acknowledge"):
        emulator.faults.answer(method, "UNAVAILABLE", times=4)
    with puller_of(emulator) as puller:
        drain(puller, sent)
    assert emulator.counters(SUBSCRIPTION)["acked"] == 500


def test_an_emulator_that_goes_away_and_comes_back_is_found_again(emulator) -> None:
    with puller_of(emulator) as puller:
        port = emulator.port
        emulator.stop()
        with PubSubEmulator(port=port) as again:
            again.create_topic(TOPIC)
            again.create_subscription(SUBSCRIPTION, TOPIC)
            drain(puller, send(again, 100))
            puller.close()


def test_acks_that_hang_do_not_keep_the_next_batches_away(emulator) -> None:
    send(emulator, 300)
    emulator.faults.delay("Acknowledge", 2.0, times=1)
    with puller_of(emulator, max_batch_rows=100) as puller:
        slow = threading.Thread(target=next(puller).ack)
        slow.start()
        wait_until(lambda: emulator.calls().get("Acknowledge") == 1)
        began = time.monotonic()
        next(puller).ack()
        next(puller).ack()
        assert time.monotonic() - began < 1.5
        slow.join()
    assert emulator.counters(SUBSCRIPTION)["acked"] == 300


def test_exactly_once_acks_that_come_too_late_are_named_and_the_messages_come_again(emulator) -> None:
    subscription = "projects/test/subscriptions/once"
    emulator.create_subscription(subscription, TOPIC, enable_exactly_once_delivery=True)
    sent = send(emulator, 10)
    with puller_of(emulator, subscription) as puller:
        late = next(puller)
        emulator.advance(61)  # their least lease is 60 s
        with pytest.raises(AcknowledgeError, match=r"refused 10 of 10.*rows 0, 1.*PERMANENT_FAILURE") as caught:
            late.ack()
        assert (caught.value.acked, sorted(caught.value.refused)) == (0, list(range(10)))
        drain(puller, sent)
        stats = puller.stats()
        assert (stats["acked"], stats["refused"]) == (10, 10)
    assert emulator.counters(subscription)["acked"] == 10


def test_exactly_once_acks_in_time_are_confirmed(emulator) -> None:
    subscription = "projects/test/subscriptions/once"
    emulator.create_subscription(subscription, TOPIC, enable_exactly_once_delivery=True)
    sent = send(emulator, 3_000)
    with puller_of(emulator, subscription) as puller:
        drain(puller, sent)
    counters = emulator.counters(subscription)
    assert (counters["acked"], counters["redelivered"]) == (3_000, 0)


@pytest.mark.parametrize(
    ("code", "error"), [("PERMISSION_DENIED", PermissionDeniedError), ("NOT_FOUND", NotFoundError)]
)
def test_a_stream_that_is_refused_for_good_fails_the_iteration(emulator, code, error) -> None:
    emulator.faults.answer("StreamingPull", code)
    with puller_of(emulator) as puller, pytest.raises(error, match="projects/test/subscriptions/events"):
        next(puller)


def test_an_ack_that_is_refused_for_good_says_so_and_the_messages_come_again(emulator) -> None:
    sent = send(emulator, 10)
    emulator.faults.answer("Acknowledge", "PERMISSION_DENIED")
    with puller_of(emulator) as puller:
        batch = next(puller)
        with pytest.raises(PermissionDeniedError, match="acknowledging 10 messages"):
            batch.ack()
        emulator.advance(700)
        drain(puller, sent)
    assert emulator.counters(SUBSCRIPTION)["acked"] == 10


def test_a_slow_consumer_holds_no_more_than_its_limits(emulator) -> None:
    payload = b"x" * 10_000
    publish(TOPIC, pa.table({"data": [payload] * 2_000}), emulator_host=emulator.address)
    limit = 1_000_000
    with puller_of(emulator, max_outstanding_bytes=limit, max_batch_rows=50, linger_s=0) as puller:
        seen = 0
        while seen < 2_000:
            batch = next(puller)
            time.sleep(0.005)  # the slowness
            # One response of the server may lie over the limit.
            assert puller.stats()["held_bytes"] <= 2 * limit
            batch.ack()
            seen += len(batch)
