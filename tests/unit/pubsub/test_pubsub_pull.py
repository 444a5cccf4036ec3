"""Pulling without Spark, against a real emulator: batches, settling, the end, the options."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import polars as pl
import pyarrow as pa
import pytest

from solstice.errors import ConfigError, NotFoundError, PermissionDeniedError, PullerClosedError, UnavailableError
from solstice.pubsub import PulledBatch, Puller, publish, pull
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


@pytest.fixture
def new_puller(emulator: PubSubEmulator) -> Callable[..., Puller]:
    def build(**options) -> Puller:
        return pull(SUBSCRIPTION, **{"emulator_host": emulator.address, "idle_s": 10.0} | options)

    return build


def send(emulator: PubSubEmulator, count: int, **columns) -> list[bytes]:
    payloads = [f"event-{number}".encode() for number in range(count)]
    publish(TOPIC, pa.table({"data": payloads} | columns), emulator_host=emulator.address)
    return payloads


def data(batch: PulledBatch) -> list[bytes]:
    return batch.rows["data"].to_pylist()


def test_batches_are_acked_when_ack_returns_and_the_iteration_ends_when_nothing_comes(emulator, new_puller) -> None:
    sent = send(emulator, 2_500)
    seen: list[bytes] = []
    with new_puller(max_batch_rows=1_000, idle_s=0.3) as puller:
        for batch in puller:
            assert 0 < len(batch) <= 1_000
            seen += data(batch)
            batch.ack()
            assert emulator.counters(SUBSCRIPTION)["acked"] == len(seen)
            batch.ack()
        stats = puller.stats()
    assert sorted(seen) == sorted(sent)
    assert (stats["received"], stats["acked"], stats["leased"], stats["held_bytes"]) == (2_500, 2_500, 0, 0)
    assert emulator.counters(SUBSCRIPTION)["outstanding"] == 0


def test_the_rows_are_those_that_were_published(emulator, new_puller) -> None:
    attributes = pa.array([[("k", "v"), ("l", "")], None], pa.map_(pa.string(), pa.string()))
    send(emulator, 2, attributes=attributes, ordering_key=["o", None])
    with new_puller() as puller:
        rows = [row for batch in [next(puller)] for row in batch.rows.to_pylist()]
    assert [list(row) for row in rows] == [
        ["message_id", "publish_time", "data", "attributes", "ordering_key", "delivery_attempt"]
    ] * 2
    rows.sort(key=lambda row: row["data"])
    assert [(row["data"], sorted(row["attributes"]), row["ordering_key"]) for row in rows] == [
        (b"event-0", [("k", "v"), ("l", "")], "o"),
        (b"event-1", [], None),
    ]
    assert all(row["message_id"] and row["publish_time"].tzinfo and row["delivery_attempt"] is None for row in rows)


def test_columns_come_in_the_order_asked_for_and_attributes_become_columns(emulator, new_puller) -> None:
    attributes = pa.array([[("kind", "a")], [("other", "x")]], pa.map_(pa.string(), pa.string()))
    send(emulator, 2, attributes=attributes)
    with new_puller(columns=["data", "message_id"], attribute_columns=["kind", "nobody"]) as puller:
        rows = next(puller).rows
    assert rows.schema.names == ["data", "message_id", "kind", "nobody"]
    found = {row["data"]: (row["kind"], row["nobody"]) for row in rows.to_pylist()}
    assert found == {b"event-0": ("a", None), b"event-1": (None, None)}


def test_a_batch_is_arrow_data_itself(emulator, new_puller) -> None:
    send(emulator, 10)
    with new_puller(columns=["data"]) as puller:
        batch = next(puller)
        assert pl.DataFrame(batch).shape == (10, 1)
        assert pa.record_batch(batch) == batch.rows
        kept = batch.rows
    assert kept["data"][0].as_py().startswith(b"event-")  # rows outlive their puller


def test_a_batch_that_is_given_back_comes_again(emulator, new_puller) -> None:
    send(emulator, 10)
    with new_puller() as puller:
        first = next(puller)
        first.nack()
        first.nack()
        again = next(puller)
        assert sorted(data(again)) == sorted(data(first))
        with pytest.raises(ConfigError, match="given back already"):
            first.ack()
        again.ack()
        with pytest.raises(ConfigError, match="acknowledged already"):
            again.nack()
    assert emulator.counters(SUBSCRIPTION)["acked"] == 10


def test_a_batch_can_be_settled_in_two_parts(emulator, new_puller) -> None:
    send(emulator, 10)
    with new_puller(idle_s=0.5) as puller:
        batch = next(puller)
        first, others = batch.split(3)
        assert data(first) + data(others) == data(batch)
        with pytest.raises(ConfigError, match="split already"):
            batch.ack()
        first.ack()
        others.nack()
        assert emulator.counters(SUBSCRIPTION)["acked"] == 3
        assert sorted(data(next(puller))) == sorted(data(others))


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, None])
def test_leaving_the_block_gives_back_everything_that_was_not_acked(emulator, new_puller, error) -> None:
    send(emulator, 3_000)

    def consume() -> None:
        with new_puller(max_batch_rows=1_000) as puller:
            next(puller).ack()
            next(puller)
            wait_until(lambda: puller.stats()["received"] == 3_000)
            if error is not None:
                raise error

    if error is None:
        consume()
    else:
        with pytest.raises(error):
            consume()
    counters = emulator.counters(SUBSCRIPTION)
    assert (counters["acked"], counters["nacked"], counters["outstanding"]) == (1_000, 2_000, 0)


def test_ctrl_c_is_noticed_while_nothing_comes(new_puller) -> None:
    pid = os.getpid()
    sent_at: list[float] = []

    def interrupt() -> None:
        sent_at.append(time.monotonic())
        os.kill(pid, signal.SIGINT)

    with new_puller(idle_s=None) as puller:
        timer = threading.Timer(0.3, interrupt)
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            next(puller)
        assert time.monotonic() - sent_at[0] < 0.2 + 0.1  # and some time for a busy machine
        timer.join()


def test_a_puller_and_its_batches_are_of_no_use_after_the_end(emulator, new_puller) -> None:
    send(emulator, 10)
    with new_puller() as puller:
        batch = next(puller)
    for use in (batch.ack, batch.nack, puller.__next__):
        with pytest.raises(PullerClosedError, match="given back"):
            use()
    puller.close()
    assert puller.stats()["nacked"] == 10
    assert len(batch) == len(batch.rows) == 10
    with pytest.raises(ConfigError, match="opened already"), puller:
        pass


def test_a_puller_that_is_not_open_says_how_to_open_it(new_puller) -> None:
    puller = new_puller()
    for use in (puller.stats, puller.__next__):
        with pytest.raises(ConfigError, match="within `with`"):
            use()
    puller.close()


def test_a_partial_batch_waits_for_more_but_not_longer_than_its_linger(emulator, new_puller) -> None:
    with new_puller(linger_s=2.0, max_batch_rows=20) as puller:
        send(emulator, 10)
        wait_until(lambda: puller.stats()["received"] == 10)
        send(emulator, 10)
        assert len(next(puller)) == 20
        began = time.monotonic()
        send(emulator, 5)
        assert len(next(puller)) == 5
        assert time.monotonic() - began > 1.0
    with new_puller(linger_s=0, idle_s=0.01) as puller:
        wait_until(lambda: puller.stats()["received"] == 25)
        assert sum(len(batch) for batch in puller) == 25


def test_a_row_that_came_before_the_idle_time_ended_is_not_forgotten(emulator, new_puller) -> None:
    with new_puller(linger_s=1.0, idle_s=0.4) as puller:
        threading.Timer(0.1, send, (emulator, 3)).start()
        assert [len(batch) for batch in puller] == [3]


def test_flow_control_bounds_what_is_held(emulator, new_puller) -> None:
    send(emulator, 5_000)
    with new_puller(max_outstanding_messages=500, max_batch_rows=100, linger_s=0) as puller:
        seen = 0
        while seen < 5_000:
            batch = next(puller)
            assert puller.stats()["leased"] <= 500
            batch.ack()
            seen += len(batch)


def test_leases_are_extended_and_their_end_is_reported(emulator, new_puller) -> None:
    send(emulator, 20)
    other = "projects/test/subscriptions/other"
    emulator.create_subscription(other, TOPIC)
    with (
        new_puller(ack_deadline_s=10, max_batch_rows=10) as kept,
        pull(other, emulator_host=emulator.address, ack_deadline_s=10, max_lease_s=10) as lost,
    ):
        batches = [next(kept), next(kept)]
        publish(TOPIC, pa.table({"data": [b"late"]}), emulator_host=emulator.address)
        late = next(lost)
        wait_until(lambda: late.expired == 1, seconds=25)  # the point of this test is the passing of time
        assert [batch.expired for batch in batches] == [0, 0]
        assert (kept.stats()["expired"], lost.stats()["expired"]) == (0, 1)
        assert kept.stats()["oldest_unacked_s"] > 10
        for batch in batches:
            batch.ack()
    assert emulator.counters(SUBSCRIPTION)["expired"] == 0


def test_a_subscription_that_is_not_there_is_named(emulator) -> None:
    with pytest.raises(NotFoundError, match="nobody"):
        pull("projects/test/subscriptions/nobody", emulator_host=emulator.address).open()


def test_a_missing_permission_fails_at_once_and_names_the_role(emulator, new_puller) -> None:
    emulator.deny("pubsub.subscriptions.consume")
    with pytest.raises(PermissionDeniedError, match=r"roles/pubsub\.subscriber"):
        new_puller().open()


def test_nobody_at_the_address_is_said_at_once() -> None:
    with pytest.raises(UnavailableError, match="solstice pubsub emulator"):
        pull(SUBSCRIPTION, emulator_host="127.0.0.1:1").open()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"columns": ["dat"]}, "The columns are message_id"),
        ({"columns": []}, "at least one"),
        ({"columns": "data"}, "list of names"),
        ({"columns": ["data"], "attribute_columns": ["data"]}, "leave that column out"),
        ({"ack_deadline_s": 5}, "ackDeadline"),
        ({"streams": 0}, "streams"),
        ({"max_batch_rows": 0}, "maxBatchRows"),
        ({"linger_s": -1}, "linger"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused_with_the_fix(options, expected) -> None:
    with pytest.raises(ConfigError, match=expected):
        pull(SUBSCRIPTION, emulator_host="127.0.0.1:1", **options).open()


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(TypeError, match=r"max_batch_row.*max_batch_rows"):
        pull(SUBSCRIPTION, max_batch_row=3)


def test_short_names_are_completed(emulator) -> None:
    with pull("events", project_id="test", emulator_host=emulator.address) as puller:
        assert puller.subscription == SUBSCRIPTION


def test_batches_may_be_acked_in_another_thread(emulator, new_puller) -> None:
    send(emulator, 1_000)
    with new_puller(max_batch_rows=100) as puller:
        batches = [next(puller) for _ in range(10)]
        threads = [threading.Thread(target=batch.ack) for batch in batches]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert emulator.counters(SUBSCRIPTION)["acked"] == 1_000
