"""Exactly-once delivery with the official client."""

import pytest
from conformance import payloads, wait_until
from google.api_core.exceptions import InvalidArgument
from google.cloud.pubsub_v1.subscriber.exceptions import AcknowledgeError, AcknowledgeStatus


@pytest.fixture
def exactly_once(service, topic) -> str:
    return service.subscription(topic, enable_exactly_once_delivery=True)


def ack_errors(error: InvalidArgument) -> dict[str, str]:
    """What the service says of each ack id."""
    return dict(error.metadata)


def test_an_acknowledgement_is_confirmed(service, topic, exactly_once):
    results = []

    def callback(message) -> None:
        results.append(message.ack_with_response().result(10))

    with service.subscribed(exactly_once, callback):
        service.publish(topic, b"1", b"2", b"3")
        wait_until(lambda: len(results) == 3, "three confirmations")
    assert results == [AcknowledgeStatus.SUCCESS] * 3
    assert service.emulator.counters(exactly_once)["acked"] == 3


def test_a_modified_deadline_and_a_nack_are_confirmed(service, topic, exactly_once):
    results = []

    def callback(message) -> None:
        if not results:
            results.append(message.modify_ack_deadline_with_response(60).result(10))
            results.append(message.nack_with_response().result(10))
        else:
            results.append(message.ack_with_response().result(10))

    with service.subscribed(exactly_once, callback):
        service.publish(topic, b"1")
        wait_until(lambda: len(results) == 3, "three confirmations")
    assert results == [AcknowledgeStatus.SUCCESS] * 3


def test_an_acknowledgement_after_the_deadline_fails_for_good(service, topic, exactly_once):
    outcomes = []
    calls = []

    def callback(message) -> None:
        calls.append(message)
        if len(calls) == 1:
            service.advance(3600)
        else:
            # In one request with the first one, the client would count both as failed.
            wait_until(lambda: outcomes, "the first outcome")
        try:
            outcomes.append(message.ack_with_response().result(10))
        except AcknowledgeError as error:
            outcomes.append(error.error_code)

    with service.subscribed(exactly_once, callback):
        service.publish(topic, b"1")
        wait_until(lambda: len(outcomes) == 2, "the second delivery")
    assert outcomes == [AcknowledgeStatus.INVALID_ACK_ID, AcknowledgeStatus.SUCCESS]


def test_ack_ids_that_are_over_are_named_one_by_one(service, topic, exactly_once):
    service.publish(topic, b"1", b"2")
    over, _ = service.receive(exactly_once, 2)
    service.advance(11)
    again = service.receive(exactly_once, 2)
    with pytest.raises(InvalidArgument) as caught:
        service.ack(exactly_once, over, *again)
    assert ack_errors(caught.value) == {over.ack_id: "PERMANENT_FAILURE_INVALID_ACK_ID"}
    with pytest.raises(InvalidArgument) as caught:
        service.extend(exactly_once, 60, over)
    assert ack_errors(caught.value) == {over.ack_id: "PERMANENT_FAILURE_INVALID_ACK_ID"}
    service.advance(700)
    assert service.pull(exactly_once) == [], "the valid ones of the request count"


def test_a_message_does_not_come_again_within_its_lease(service, topic, exactly_once):
    service.publish(topic, b"1")
    (received,) = service.receive(exactly_once, 1)
    service.advance(9)
    assert service.pull(exactly_once) == []
    service.extend(exactly_once, 600, received)
    service.advance(590)
    assert service.pull(exactly_once) == []
    service.advance(11)
    assert payloads(service.receive(exactly_once, 1)) == [b"1"]


def test_an_acknowledged_message_never_comes_again(service, topic, exactly_once):
    service.publish(topic, b"1")
    service.ack(exactly_once, *service.receive(exactly_once, 1))
    service.advance(3600)
    assert service.pull(exactly_once) == []


def test_without_exactly_once_every_acknowledgement_counts_as_a_success(service, topic, subscription):
    results = []

    def callback(message) -> None:
        results.append(message.ack_with_response().result(10))

    with service.subscribed(subscription, callback):
        service.publish(topic, b"1")
        wait_until(lambda: results, "the confirmation")
    assert results == [AcknowledgeStatus.SUCCESS]
