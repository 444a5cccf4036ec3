"""Dead-letter and retry policies with the official client."""

import pytest
from conformance import PROJECT, payloads, wait_until
from google.api_core.exceptions import NotFound


@pytest.fixture
def dead_letters(service) -> tuple[str, str]:
    """A topic for dead letters, and a subscription on it."""
    topic = service.topic("dead-letters")
    return topic, service.subscription(topic, "dead-letters")


def test_a_message_delivered_too_often_goes_to_the_dead_letter_topic(service, topic, dead_letters):
    letter_topic, letters = dead_letters
    subscription = service.subscription(
        topic, dead_letter_policy={"dead_letter_topic": letter_topic, "max_delivery_attempts": 5}
    )
    (message_id,) = service.publish(topic, b"poison", attributes={"a": "1"})
    attempts = []
    for _ in range(5):
        (received,) = service.receive(subscription, 1)
        attempts.append(received.delivery_attempt)
        service.nack(subscription, received)
    assert attempts == [1, 2, 3, 4, 5]
    (letter,) = service.receive(letters, 1)
    assert letter.message.data == b"poison"
    assert letter.message.message_id != message_id, "it is published anew"
    attributes = dict(letter.message.attributes)
    assert attributes["a"] == "1"
    assert attributes["CloudPubSubDeadLetterSourceDeliveryCount"] == "5"
    assert attributes["CloudPubSubDeadLetterSourceSubscription"] == "events"
    assert attributes["CloudPubSubDeadLetterSourceSubscriptionProject"] == PROJECT.removeprefix("projects/")
    assert attributes["CloudPubSubDeadLetterSourceTopicPublishTime"]
    service.advance(700)
    assert service.pull(subscription) == []


def test_an_expired_deadline_counts_as_an_attempt(service, topic, dead_letters):
    letter_topic, letters = dead_letters
    subscription = service.subscription(
        topic, dead_letter_policy={"dead_letter_topic": letter_topic, "max_delivery_attempts": 5}
    )
    service.publish(topic, b"poison")
    for attempt in range(1, 6):
        (received,) = service.receive(subscription, 1)
        assert received.delivery_attempt == attempt
        service.advance(11)
    assert payloads(service.receive(letters, 1)) == [b"poison"]


def test_a_message_acknowledged_in_time_is_no_dead_letter(service, topic, dead_letters):
    letter_topic, letters = dead_letters
    subscription = service.subscription(
        topic, dead_letter_policy={"dead_letter_topic": letter_topic, "max_delivery_attempts": 5}
    )
    service.publish(topic, b"fine")
    for _ in range(4):
        service.nack(subscription, *service.receive(subscription, 1))
    service.ack(subscription, *service.receive(subscription, 1))
    service.advance(700)
    assert service.pull(letters) == []
    assert service.pull(subscription) == []


def test_a_callback_sees_the_delivery_attempt(service, topic, dead_letters):
    subscription = service.subscription(
        topic, dead_letter_policy={"dead_letter_topic": dead_letters[0], "max_delivery_attempts": 10}
    )
    attempts = []

    def callback(message) -> None:
        attempts.append(message.delivery_attempt)
        message.ack() if len(attempts) == 3 else message.nack()

    with service.subscribed(subscription, callback):
        service.publish(topic, b"1")
        wait_until(lambda: len(attempts) == 3, "three deliveries")
    assert attempts == [1, 2, 3]


def test_without_a_policy_there_is_no_delivery_attempt(service, topic, subscription):
    attempts = []
    with service.subscribed(subscription, lambda message: (attempts.append(message.delivery_attempt), message.ack())):
        service.publish(topic, b"1")
        wait_until(lambda: attempts, "the message")
    assert attempts == [None]


def test_a_policy_added_later_counts_and_applies(service, topic, subscription, dead_letters):
    letter_topic, letters = dead_letters
    service.publish(topic, b"poison")
    service.update(subscription, dead_letter_policy={"dead_letter_topic": letter_topic, "max_delivery_attempts": 5})
    for _ in range(5):
        service.nack(subscription, *service.receive(subscription, 1))
    assert payloads(service.receive(letters, 1)) == [b"poison"]


def test_the_dead_letter_topic_must_exist(service, topic):
    missing = {"dead_letter_topic": f"{PROJECT}/topics/missing", "max_delivery_attempts": 5}
    with pytest.raises(NotFound):
        service.subscription(topic, dead_letter_policy=missing)


def test_a_nacked_message_waits_out_the_minimum_backoff(service, topic):
    subscription = service.subscription(
        topic, retry_policy={"minimum_backoff": {"seconds": 20}, "maximum_backoff": {"seconds": 60}}
    )
    service.publish(topic, b"1")
    service.nack(subscription, *service.receive(subscription, 1))
    service.advance(19)
    assert service.pull(subscription) == []
    service.publish(topic, b"2")
    assert payloads(service.receive(subscription, 1)) == [b"2"], "others do not wait"
    service.advance(2)
    assert b"1" in payloads(service.receive(subscription, 1))


def test_the_backoff_grows_and_never_exceeds_the_maximum(service, topic):
    subscription = service.subscription(
        topic, retry_policy={"minimum_backoff": {"seconds": 10}, "maximum_backoff": {"seconds": 60}}
    )
    service.publish(topic, b"1")
    waits = []
    for _ in range(6):
        service.nack(subscription, *service.receive(subscription, 1))
        waited = 0
        while not (received := service.pull(subscription)):
            service.advance(1)
            waited += 1
            assert waited <= 61
        waits.append(waited)
        service.nack(subscription, *received)
        service.advance(61)
    assert waits[0] >= 10
    assert waits == sorted(waits)
    assert waits[-1] >= 59


def test_an_expired_deadline_triggers_the_backoff_too(service, topic):
    subscription = service.subscription(
        topic, retry_policy={"minimum_backoff": {"seconds": 100}, "maximum_backoff": {"seconds": 100}}
    )
    service.publish(topic, b"1")
    service.receive(subscription, 1)
    service.advance(11)
    assert service.pull(subscription) == []
    service.advance(100)
    service.receive(subscription, 1)
