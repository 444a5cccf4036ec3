"""The clock that tests turn, the faults they ask for, and what they can count."""

import time

import grpc
import pytest
from google.api_core import exceptions
from google.pubsub_v1 import PublisherClient

from solstice.errors import ConfigError

TOPIC = "projects/p/topics/events"
SUBSCRIPTION = "projects/p/subscriptions/events"
DEAD = "projects/p/topics/dead"
DEAD_SUBSCRIPTION = "projects/p/subscriptions/dead"


def data(received):
    return [r.message.data for r in received]


def ack_ids(received):
    return [r.ack_id for r in received]


def publish_once(publisher):
    return PublisherClient.publish(publisher, topic=TOPIC, messages=[{"data": b"x"}], retry=None)


def test_an_advanced_clock_ends_leases_and_the_waiting_stream_gets_the_message(subscribed, publish, pull):
    publish(b"x")
    stream = pull()
    (first,) = stream.receive(1)
    subscribed.advance(9.0)
    assert subscribed.counters(SUBSCRIPTION)["expired"] == 0
    subscribed.advance(1.0)
    assert subscribed.counters(SUBSCRIPTION)["expired"] == 1, "done on return"
    (again,) = stream.receive(1)
    assert (again.message.message_id, again.ack_id != first.ack_id) == (first.message.message_id, True)


def test_publish_times_are_of_the_emulators_clock(subscribed, publish, pull):
    publish(b"before")
    subscribed.advance(3600)
    publish(b"after")
    before, after = (r.message.publish_time for r in pull().receive(2))
    assert 3600 <= (after - before).total_seconds() < 3700


def test_a_retry_is_due_when_the_clock_says_so(emulator, subscriber, publish, pull):
    emulator.create_topic(TOPIC)
    emulator.create_subscription(SUBSCRIPTION, TOPIC, minimum_backoff_s=100, maximum_backoff_s=150.5)
    publish(b"x")
    stream = pull()
    for backoff_s in (100, 150.5, 150.5):
        (received,) = stream.receive(1)
        subscriber.modify_ack_deadline(subscription=SUBSCRIPTION, ack_ids=[received.ack_id], ack_deadline_seconds=0)
        emulator.advance(backoff_s - 5)
        assert stream.receive(1, wait_s=0.05) == []
        emulator.advance(5)


def test_messages_past_their_retention_are_gone(emulator, publish):
    emulator.create_topic(TOPIC)
    emulator.create_subscription(SUBSCRIPTION, TOPIC, message_retention_s=600)
    publish(b"x", b"y")
    emulator.advance(590)
    assert emulator.counters(SUBSCRIPTION)["backlog"] == 2
    emulator.advance(10)
    assert emulator.counters(SUBSCRIPTION)["backlog"] == 0


def test_dead_letters_are_there_when_the_clock_was_turned(emulator, subscriber, publish, pull):
    for topic, subscription, dead in ((DEAD, DEAD_SUBSCRIPTION, None), (TOPIC, SUBSCRIPTION, DEAD)):
        emulator.create_topic(topic)
        emulator.create_subscription(subscription, topic, dead_letter_topic=dead, max_delivery_attempts=5)
    (message_id,) = publish(b"x")
    stream = pull()
    for attempt in range(1, 6):
        (received,) = stream.receive(1)
        assert received.delivery_attempt == attempt
        emulator.advance(10)
    assert emulator.counters(SUBSCRIPTION)["dead_lettered"] == emulator.published(DEAD) == 1
    (dead,) = pull(DEAD_SUBSCRIPTION).receive(1)
    attributes = dict(dead.message.attributes)
    assert attributes.pop("CloudPubSubDeadLetterSourceTopicPublishTime").startswith(
        received.message.publish_time.strftime("%Y-%m-%dT%H:%M:%S.")
    )
    assert attributes == {
        "CloudPubSubDeadLetterSourceDeliveryCount": "5",
        "CloudPubSubDeadLetterSourceSubscription": "events",
        "CloudPubSubDeadLetterSourceSubscriptionProject": "p",
    }
    assert (dead.message.data, dead.message.message_id != message_id, dead.delivery_attempt) == (b"x", True, 0)


def test_a_dead_letter_without_a_topic_to_go_to_is_delivered_again(emulator, publisher, publish, pull):
    emulator.create_topic(DEAD)
    emulator.create_topic(TOPIC)
    emulator.create_subscription(SUBSCRIPTION, TOPIC, dead_letter_topic=DEAD)
    publisher.delete_topic(topic=DEAD)
    publish(b"x")
    stream = pull()
    for attempt in range(1, 8):
        assert stream.receive(1)[0].delivery_attempt == attempt
        emulator.advance(10)


def test_a_filter_and_labels_can_be_given_when_creating(emulator, publisher, subscriber):
    emulator.create_topic(TOPIC, message_retention_s=1200, labels={"team": "a"})
    emulator.create_subscription(SUBSCRIPTION, TOPIC, filter="attributes:kind", labels={"team": "b"})
    publisher.publish(TOPIC, b"x").result(timeout=10)
    publisher.publish(TOPIC, b"x", kind="a").result(timeout=10)
    counters = emulator.counters(SUBSCRIPTION)
    assert (counters["filtered"], counters["backlog"]) == (1, 1)
    shown = subscriber.get_subscription(subscription=SUBSCRIPTION)
    assert (shown.filter, dict(shown.labels)) == ("attributes:kind", {"team": "b"})
    assert shown.topic_message_retention_duration.total_seconds() == 1200
    assert dict(publisher.get_topic(topic=TOPIC).labels) == {"team": "a"}


def test_a_code_is_answered_so_many_times_and_the_call_does_nothing(subscribed, publisher):
    subscribed.faults.answer("Publish", "UNAVAILABLE", times=2)
    subscribed.faults.answer("Publish", "PERMISSION_DENIED")
    for error in (exceptions.ServiceUnavailable, exceptions.ServiceUnavailable, exceptions.PermissionDenied):
        with pytest.raises(error, match="fault"):
            publish_once(publisher)
    assert subscribed.published(TOPIC) == 0
    publish_once(publisher)
    assert (subscribed.published(TOPIC), subscribed.calls()["Publish"]) == (1, 4)


def test_a_stream_can_be_refused(subscribed, publish, pull):
    publish(b"x")
    subscribed.faults.answer("StreamingPull", "UNAVAILABLE")
    assert pull().end() is grpc.StatusCode.UNAVAILABLE
    assert data(pull().receive(1)) == [b"x"]
    assert subscribed.calls()["StreamingPull"] == 2


def test_a_delayed_call_is_carried_out_later(subscribed, publisher):
    subscribed.faults.delay("Publish", 0.3)
    started = time.monotonic()
    publish_once(publisher)
    assert time.monotonic() - started >= 0.3
    started = time.monotonic()
    publish_once(publisher)
    assert time.monotonic() - started < 0.3


def test_every_stream_is_cut_after_so_many_messages_until_cleared(subscribed, subscriber, publish, pull):
    publish(*[str(n).encode() for n in range(20)])
    subscribed.faults.cut_streams(after=7)
    for _ in range(2):
        stream = pull()
        received = stream.receive(8, wait_s=2)
        assert (len(received), stream.end()) == (7, grpc.StatusCode.UNAVAILABLE)
        subscriber.acknowledge(subscription=SUBSCRIPTION, ack_ids=ack_ids(received))
    subscribed.faults.clear()
    assert len(pull().receive(6)) == 6


def test_open_streams_can_be_cut_at_once_and_a_bound_holds(subscribed, publish, pull):
    idle = pull()
    assert idle.receive(1, wait_s=0.1) == []
    subscribed.faults.cut_streams(after=0, times=1)
    assert idle.end() is grpc.StatusCode.UNAVAILABLE
    publish(b"x")
    assert data(pull().receive(1)) == [b"x"]


def test_a_duplicate_is_another_delivery_of_the_same_message(subscribed, subscriber, publish, pull, eventually):
    publish(b"a", b"b", b"c", b"d")
    subscribed.faults.duplicate(every=2)
    received = pull().receive(6)
    assert sorted(data(received)) == [b"a", b"b", b"b", b"c", b"d", b"d"]
    assert len(set(ack_ids(received))) == 6
    subscriber.acknowledge(subscription=SUBSCRIPTION, ack_ids=ack_ids(received))
    counters = subscribed.counters(SUBSCRIPTION)
    assert (counters["acked"], counters["outstanding"], counters["delivered"], counters["redelivered"]) == (4, 0, 6, 2)


@pytest.mark.parametrize("in_stream", [False, True])
def test_a_dropped_ack_is_answered_with_success_and_the_message_comes_again(
    in_stream, subscribed, subscriber, publish, pull, eventually
):
    publish(b"x")
    stream = pull()
    subscribed.faults.drop_acks()

    def acknowledge(received):
        if in_stream:
            stream.send(ack_ids=ack_ids(received))
        else:
            subscriber.acknowledge(subscription=SUBSCRIPTION, ack_ids=ack_ids(received))

    first = stream.receive(1)
    acknowledge(first)
    # The lease is still there to be given back; requests of a stream are read in their order.
    stream.send(modify_deadline_ack_ids=ack_ids(first), modify_deadline_seconds=[0])
    again = stream.receive(1)
    assert again[0].message == first[0].message
    acknowledge(again)
    eventually(lambda: subscribed.counters(SUBSCRIPTION)["acked"], 1)


def test_calls_are_counted_by_method(subscribed, publisher, subscriber, publish):
    assert subscribed.calls() == {}, "the emulator's own methods are no calls"
    publish(b"x")
    publish(b"y")
    with pytest.raises(exceptions.NotFound):
        publisher.get_topic(topic="projects/p/topics/missing")
    assert subscribed.calls() == {"Publish": 2, "GetTopic": 1}


@pytest.mark.parametrize(
    ("ask", "what"),
    [
        (lambda faults: faults.answer("Publsh", "UNAVAILABLE"), "Publsh.*StreamingPull"),
        (lambda faults: faults.answer("Publish", "BROKEN"), "BROKEN.*UNAVAILABLE"),
        (lambda faults: faults.answer("Publish", "OK"), "OK"),
        (lambda faults: faults.answer("Publish", "INTERNAL", times=0), "times is 0"),
        (lambda faults: faults.delay("Publish", -1.0), "-1"),
        (lambda faults: faults.cut_streams(after=-1), "after is -1"),
        (lambda faults: faults.duplicate(every=0), "every is 0"),
        (lambda faults: faults.drop_acks(times=-2), "times is -2"),
    ],
)
def test_a_fault_that_makes_no_sense_is_refused(ask, what, emulator):
    with pytest.raises(ConfigError, match=what):
        ask(emulator.faults)


def test_the_clock_does_not_go_back(emulator):
    with pytest.raises(ConfigError, match="-1"):
        emulator.advance(-1)
