"""Unary pull, acknowledge and modifyAckDeadline with the official client."""

import threading
import time

import pytest
from conformance import PROJECT, payloads, wait_until
from google.api_core.exceptions import InvalidArgument, NotFound


def test_a_pull_that_returns_immediately_does_not_wait(service, subscription):
    began = time.monotonic()
    assert service.pull(subscription) == []
    assert time.monotonic() - began < 2


def test_a_pull_waits_for_the_first_message(service, topic, subscription):
    received = []

    def pull() -> None:
        response = service.subscriber.pull(subscription=subscription, max_messages=10, timeout=10)
        received.extend(response.received_messages)

    puller = threading.Thread(target=pull)
    puller.start()
    time.sleep(0.3)  # long enough that the call is there first, on nearly every run
    assert puller.is_alive()
    service.publish(topic, b"at last")
    puller.join(10)
    assert payloads(received) == [b"at last"]


def test_a_pull_gives_no_more_than_it_was_asked_for(service, topic, subscription):
    service.publish(topic, *[b"%d" % number for number in range(10)])
    assert len(service.pull(subscription, 3)) == 3
    assert len(service.receive(subscription, 7)) == 7


@pytest.mark.parametrize("max_messages", [0, -1])
def test_a_pull_asks_for_at_least_one_message(service, subscription, max_messages):
    with pytest.raises(InvalidArgument):
        service.pull(subscription, max_messages)


def test_an_acknowledged_message_does_not_come_again(service, topic, subscription):
    service.publish(topic, b"1", b"2")
    service.ack(subscription, *service.receive(subscription, 2))
    service.advance(700)
    assert service.pull(subscription) == []


def test_a_delivered_message_is_nobody_elses_until_its_deadline(service, topic, subscription):
    service.publish(topic, b"1")
    (first,) = service.receive(subscription, 1)
    service.advance(9)
    assert service.pull(subscription) == []
    service.advance(1.5)
    (second,) = service.receive(subscription, 1)
    assert second.message == first.message
    assert second.ack_id != first.ack_id


def test_a_modified_deadline_counts_from_the_request(service, topic, subscription):
    service.publish(topic, b"1")
    (received,) = service.receive(subscription, 1)
    service.advance(9)
    service.extend(subscription, 600, received)
    service.advance(598)
    assert service.pull(subscription) == []
    service.advance(3)
    service.receive(subscription, 1)


def test_a_deadline_of_zero_gives_the_message_back(service, topic, subscription):
    service.publish(topic, b"1")
    (first,) = service.receive(subscription, 1)
    service.nack(subscription, first)
    (second,) = service.receive(subscription, 1)
    assert second.message.message_id == first.message.message_id


@pytest.mark.parametrize("seconds", [-1, 601])
def test_a_deadline_is_modified_to_0_to_600_seconds(service, topic, subscription, seconds):
    service.publish(topic, b"1")
    (received,) = service.receive(subscription, 1)
    with pytest.raises(InvalidArgument):
        service.extend(subscription, seconds, received)


def test_acknowledging_twice_or_late_is_no_error(service, topic, subscription):
    service.publish(topic, b"1", b"2")
    first, second = service.receive(subscription, 2)
    service.ack(subscription, first)
    service.ack(subscription, first)
    service.advance(11)
    service.ack(subscription, second)
    service.extend(subscription, 30, second)


def test_ack_ids_that_nobody_gave_are_an_invalid_argument(service, subscription):
    with pytest.raises(InvalidArgument):
        service.subscriber.acknowledge(subscription=subscription, ack_ids=["made up"])
    with pytest.raises(InvalidArgument):
        service.subscriber.modify_ack_deadline(subscription=subscription, ack_ids=["made up"], ack_deadline_seconds=10)


def test_no_ack_ids_are_an_invalid_argument(service, subscription):
    with pytest.raises(InvalidArgument):
        service.subscriber.acknowledge(request={"subscription": subscription})
    with pytest.raises(InvalidArgument):
        service.subscriber.modify_ack_deadline(request={"subscription": subscription, "ack_deadline_seconds": 10})


def test_acks_for_a_missing_subscription_are_not_found(service, topic, subscription):
    service.publish(topic, b"1")
    (received,) = service.receive(subscription, 1)
    with pytest.raises(NotFound):
        service.ack(f"{PROJECT}/subscriptions/missing", received)
    with pytest.raises(NotFound):
        service.extend(f"{PROJECT}/subscriptions/missing", 10, received)


def test_unacknowledged_messages_leave_when_the_retention_is_over(service, topic):
    subscription = service.subscription(topic, message_retention_duration={"seconds": 600})
    service.publish(topic, b"old")
    service.advance(590)
    service.publish(topic, b"young")
    service.advance(20)
    wait_until(lambda: payloads(service.pull(subscription)) == [b"young"], "the old one is gone")
    service.advance(600)
    assert service.pull(subscription) == []
