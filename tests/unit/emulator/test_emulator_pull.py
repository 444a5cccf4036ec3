"""StreamingPull: deliveries, acknowledgements, leases, flow control, several streams, and how streams end."""

import threading
from collections import defaultdict

import grpc
import pytest
from google.api_core import exceptions

TOPIC = "projects/p/topics/events"
SUBSCRIPTION = "projects/p/subscriptions/events"
OTHER = "projects/p/subscriptions/other"


def payloads(count):
    return [str(n).encode() for n in range(count)]


def data(received):
    return [r.message.data for r in received]


def ack_ids(received):
    return [r.ack_id for r in received]


def test_the_official_client_receives_and_acks_10000_messages(subscribed, publisher, subscriber, eventually):
    futures = [publisher.publish(TOPIC, b"x" * 100, number=str(n)) for n in range(10_000)]
    published = {future.result(timeout=20) for future in futures}
    received, done = [], threading.Event()

    def callback(message):
        received.append(message.message_id)
        message.ack()
        if len(received) >= len(published):
            done.set()

    stream = subscriber.subscribe(SUBSCRIPTION, callback=callback)
    assert done.wait(20)
    eventually(lambda: subscribed.counters(SUBSCRIPTION)["acked"], 10_000)
    stream.cancel()
    stream.result(timeout=10)
    assert len(received) == 10_000
    assert set(received) == published
    assert set(subscribed.acked_ids(SUBSCRIPTION)) == published


def test_counters_tell_where_every_message_is(subscribed, subscriber, publish, pull, eventually):
    ids = publish(*payloads(10))
    received = pull(max_outstanding_messages=6).receive(6)
    subscriber.acknowledge(subscription=SUBSCRIPTION, ack_ids=ack_ids(received[:1]))
    expected = {"outstanding": 6, "backlog": 3, "acked": 1, "delivered": 7}
    nothing_else = dict.fromkeys(["nacked", "expired", "redelivered", "dead_lettered", "filtered"], 0)
    eventually(lambda: subscribed.counters(SUBSCRIPTION), expected | nothing_else)
    assert subscribed.acked_ids(SUBSCRIPTION) == ids[:1]


def test_a_nack_is_redelivered_at_once(subscribed, subscriber, publish, pull):
    publish(b"a", b"b")
    stream = pull()
    first = {r.message.data: r for r in stream.receive(2)}
    subscriber.modify_ack_deadline(subscription=SUBSCRIPTION, ack_ids=[first[b"a"].ack_id], ack_deadline_seconds=0)
    (again,) = stream.receive(1)
    assert again.message == first[b"a"].message
    assert again.ack_id != first[b"a"].ack_id
    counters = subscribed.counters(SUBSCRIPTION)
    assert (counters["nacked"], counters["redelivered"], counters["outstanding"]) == (1, 1, 2)


def test_an_expired_lease_is_redelivered_and_a_modified_one_lasts(subscribed, subscriber, publish, pull):
    publish(b"short", b"long")
    stream = pull()
    leases = {r.message.data: r.ack_id for r in stream.receive(2)}
    stream.send(
        modify_deadline_ack_ids=[leases[b"short"], leases[b"long"], leases[b"long"]],
        modify_deadline_seconds=[1, 1, 60],
    )
    assert data(stream.receive(2, wait_s=2.0)) == [b"short"]
    subscriber.acknowledge(subscription=SUBSCRIPTION, ack_ids=list(leases.values()))
    counters = subscribed.counters(SUBSCRIPTION)
    assert (counters["expired"], counters["acked"], counters["outstanding"]) == (1, 1, 1), "a late ack does nothing"


def test_acks_and_lease_changes_may_come_in_the_stream(subscribed, publish, pull, eventually):
    publish(b"a", b"b", b"c")
    stream = pull()
    leases = {r.message.data: r.ack_id for r in stream.receive(3)}
    stream.send(
        ack_ids=[leases[b"a"]],
        modify_deadline_ack_ids=[leases[b"b"], leases[b"c"]],
        modify_deadline_seconds=[0, 60],
    )
    assert data(stream.receive(1)) == [b"b"]
    stream.send()  # a keepalive
    eventually(lambda: subscribed.counters(SUBSCRIPTION)["acked"], 1)
    assert subscribed.counters(SUBSCRIPTION)["outstanding"] == 2


def test_messages_published_while_a_stream_waits_arrive(subscribed, publish, pull):
    stream = pull()
    for payload in payloads(20):
        publish(payload)
        assert data(stream.receive(1)) == [payload]


def test_flow_control_by_messages_bounds_what_is_outstanding(subscribed, publish, pull):
    publish(*payloads(100))
    stream = pull(max_outstanding_messages=7)
    remaining = 100
    while remaining:
        received = stream.receive(min(7, remaining))
        assert len(received) == min(7, remaining)
        assert subscribed.counters(SUBSCRIPTION)["outstanding"] <= 7
        assert stream.receive(1, wait_s=0.02) == []
        stream.send(ack_ids=ack_ids(received))
        remaining -= len(received)


def test_flow_control_by_bytes_bounds_what_is_outstanding(subscribed, publish, pull):
    publish(*[b"x" * 1000] * 7)
    stream = pull(max_outstanding_bytes=3500)
    for expected in (3, 3, 1):
        received = stream.receive(expected)
        assert len(received) == expected
        assert stream.receive(1, wait_s=0.1) == []
        stream.send(ack_ids=ack_ids(received))


def test_a_message_larger_than_the_flow_control_goes_out_alone(subscribed, publish, pull):
    publish(b"x" * 5000, b"y" * 5000)
    stream = pull(max_outstanding_bytes=100)
    first = stream.receive(2, wait_s=0.2)
    assert len(first) == 1
    stream.send(ack_ids=ack_ids(first))
    assert len(stream.receive(1)) == 1


def test_every_subscription_of_a_topic_gets_everything(subscribed, subscriber, publish, pull):
    subscribed.create_subscription(OTHER, TOPIC)
    ids = publish(*payloads(500))
    streams = [pull(), pull(OTHER)]
    for stream in streams:
        assert sorted(r.message.message_id for r in stream.receive(500)) == sorted(ids)


def test_an_ack_counts_only_for_its_own_subscription(subscribed, subscriber, publish, pull):
    subscribed.create_subscription(OTHER, TOPIC)
    publish(b"x")
    (received,) = pull().receive(1)
    (other,) = pull(OTHER).receive(1)
    subscriber.acknowledge(subscription=OTHER, ack_ids=[received.ack_id])
    assert subscribed.counters(OTHER)["acked"] == subscribed.counters(SUBSCRIPTION)["acked"] == 0
    subscriber.acknowledge(subscription=OTHER, ack_ids=[other.ack_id])
    assert (subscribed.counters(OTHER)["acked"], subscribed.counters(SUBSCRIPTION)["acked"]) == (1, 0)


def test_two_streams_split_a_subscription(subscribed, publish, pull):
    streams = [pull(), pull()]
    publish(b"warm")
    assert sum(len(stream.receive(1, wait_s=0.3)) for stream in streams) == 1
    for _ in range(20):
        publish(*payloads(100))
    parts = [data(stream.receive(2000, wait_s=1.0)) for stream in streams]
    assert sum(map(len, parts)) == 2000
    assert min(map(len, parts)) > 200


def test_what_a_cancelled_stream_held_comes_again_only_after_its_lease(subscribed, subscriber, publish, pull):
    publish(b"x")
    first = pull()
    (received,) = first.receive(1)
    first.cancel()
    second = pull()
    assert second.receive(1, wait_s=0.2) == []
    subscriber.modify_ack_deadline(subscription=SUBSCRIPTION, ack_ids=[received.ack_id], ack_deadline_seconds=0)
    assert data(second.receive(1)) == [b"x"]


def test_ordering_keys_keep_their_order_through_a_nack(emulator, subscriber, publish, pull):
    emulator.create_topic(TOPIC)
    emulator.create_subscription(SUBSCRIPTION, TOPIC, enable_message_ordering=True)
    streams = [pull(max_outstanding_messages=50), pull(max_outstanding_messages=50)]
    for number in range(40):
        for key in ("a", "b", "c"):
            publish(f"{key}{number}".encode(), ordering_key=key)
    seen, nacked, acked = defaultdict(list), False, 0
    while acked < 120:
        received = [r for stream in streams for r in stream.receive(1, wait_s=0.05)]
        for r in received:
            if r.message.data == b"a7" and not nacked:
                nacked = True
                subscriber.modify_ack_deadline(subscription=SUBSCRIPTION, ack_ids=[r.ack_id], ack_deadline_seconds=0)
                continue
            before = emulator.counters(SUBSCRIPTION)["acked"]
            subscriber.acknowledge(subscription=SUBSCRIPTION, ack_ids=[r.ack_id])
            if emulator.counters(SUBSCRIPTION)["acked"] > before:
                seen[r.message.ordering_key].append(r.message.data.decode())
                acked += 1
    assert nacked
    assert seen == {key: [f"{key}{number}" for number in range(40)] for key in ("a", "b", "c")}


def test_a_stream_ends_with_not_found_when_its_subscription_is_deleted(subscribed, subscriber, pull):
    stream = pull()
    assert stream.receive(1, wait_s=0.1) == []
    subscriber.delete_subscription(subscription=SUBSCRIPTION)
    assert stream.end() is grpc.StatusCode.NOT_FOUND


def test_streams_end_with_unavailable_when_the_emulator_stops(subscribed, publish, pull):
    publish(b"x", b"y")
    waiting, full = pull(), pull(max_outstanding_messages=1)
    waiting.receive(1)
    full.receive(1, wait_s=0.2)
    subscribed.stop()
    assert waiting.end() is full.end() is grpc.StatusCode.UNAVAILABLE


def test_a_stream_ends_when_the_client_has_sent_its_last_request(subscribed, pull):
    stream = pull()
    assert stream.receive(1, wait_s=0.1) == []
    stream.half_close()
    assert stream.end() is grpc.StatusCode.OK


@pytest.mark.parametrize(
    ("first", "code"),
    [
        ({"subscription": "projects/p/subscriptions/missing"}, grpc.StatusCode.NOT_FOUND),
        ({"subscription": "nonsense"}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"stream_ack_deadline_seconds": 9}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"stream_ack_deadline_seconds": 601}, grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
def test_a_stream_is_refused_for_a_wrong_first_request(first, code, subscribed, pull):
    assert pull(**first).end() is code


@pytest.mark.parametrize(
    "request_fields",
    [
        {"subscription": SUBSCRIPTION},
        {"ack_ids": ["nonsense"]},
        {"modify_deadline_ack_ids": ["1:0:1"]},
        {"modify_deadline_ack_ids": ["1:0:1"], "modify_deadline_seconds": [601]},
        {"stream_ack_deadline_seconds": 5},
    ],
)
def test_a_stream_ends_for_a_wrong_further_request(request_fields, subscribed, pull):
    stream = pull()
    stream.send(**request_fields)
    assert stream.end() is grpc.StatusCode.INVALID_ARGUMENT


def test_wrong_acks_and_deadlines_are_invalid_and_stale_ones_do_nothing(subscribed, subscriber, publish, pull):
    publish(b"x")
    (received,) = pull().receive(1)

    def acknowledge(*ids):
        subscriber.acknowledge(subscription=SUBSCRIPTION, ack_ids=list(ids))

    def modify(seconds, *ids):
        subscriber.modify_ack_deadline(subscription=SUBSCRIPTION, ack_ids=list(ids), ack_deadline_seconds=seconds)

    for call in (
        lambda: acknowledge(),
        lambda: acknowledge(received.ack_id, "nonsense"),
        lambda: modify(10),
        lambda: modify(-1, received.ack_id),
        lambda: modify(601, received.ack_id),
    ):
        with pytest.raises(exceptions.InvalidArgument):
            call()
    assert subscribed.counters(SUBSCRIPTION)["outstanding"] == 1, "an invalid request does nothing at all"
    acknowledge(received.ack_id)
    acknowledge(received.ack_id)
    modify(0, received.ack_id)
    counters = subscribed.counters(SUBSCRIPTION)
    assert (counters["acked"], counters["nacked"], counters["outstanding"]) == (1, 0, 0)
