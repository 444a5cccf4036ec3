"""StreamingPull through ``SubscriberClient.subscribe``."""

import threading

import pytest
from conformance import PROJECT, payloads, wait_until
from google.api_core.exceptions import InvalidArgument, NotFound
from google.cloud.pubsub_v1.types import FlowControl
from google.pubsub_v1.types import StreamingPullRequest


def test_every_message_reaches_the_callback_and_is_acknowledged(service, topic, subscription):
    received: dict[str, bytes] = {}

    def callback(message) -> None:
        received[message.message_id] = message.data
        message.ack()

    with service.subscribed(subscription, callback):
        sent = {service.publisher.publish(topic, b"%d" % number): b"%d" % number for number in range(500)}
        expected = {future.result(10): data for future, data in sent.items()}
        wait_until(lambda: service.emulator.counters(subscription)["acked"] == 500, "500 acks")
    assert received == expected


def test_the_backlog_comes_when_the_stream_opens(service, topic, subscription):
    service.publish(topic, b"before")
    came = threading.Event()
    with service.subscribed(subscription, lambda message: (message.ack(), came.set())):
        assert came.wait(10)


def test_flow_control_bounds_the_messages_outstanding(service, topic, subscription):
    service.publish(topic, *[b"%d" % number for number in range(30)])
    held = []
    with service.subscribed(subscription, held.append, flow_control=FlowControl(max_messages=5)):
        wait_until(lambda: len(held) == 5, "5 messages")
        counters = service.emulator.counters(subscription)
        assert (counters["outstanding"], counters["backlog"]) == (5, 25)
        seen = 0
        while seen < 30:
            wait_until(lambda: held, "the next messages")
            assert len(held) <= 5
            seen += 1
            held.pop(0).ack()
        wait_until(lambda: service.emulator.counters(subscription)["acked"] == 30, "30 acks")


def test_flow_control_bounds_the_bytes_outstanding(service, topic, subscription):
    service.publish(topic, *[b"x" * 10_000 for _ in range(20)])
    held = []
    with service.subscribed(subscription, held.append, flow_control=FlowControl(max_bytes=50_000)):
        wait_until(lambda: held, "the first messages")
        assert 1 <= service.emulator.counters(subscription)["outstanding"] <= 5
        for _ in range(20):
            wait_until(lambda: held, "the next messages")
            assert service.emulator.counters(subscription)["outstanding"] <= 5
            held.pop(0).ack()
        wait_until(lambda: service.emulator.counters(subscription)["acked"] == 20, "20 acks")


def test_a_nacked_message_comes_again(service, topic, subscription):
    deliveries: list[str] = []

    def callback(message) -> None:
        deliveries.append(message.message_id)
        message.nack() if len(deliveries) < 3 else message.ack()

    with service.subscribed(subscription, callback):
        (message_id,) = service.publish(topic, b"thrice")
        wait_until(lambda: len(deliveries) == 3, "three deliveries")
    assert deliveries == [message_id] * 3


def test_two_subscribers_share_the_messages_of_a_subscription(service, topic, subscription):
    shares: tuple[list[str], list[str]] = [], []

    def callback(share):
        return lambda message: (share.append(message.message_id), message.ack())

    with service.subscribed(subscription, callback(shares[0])), service.subscribed(subscription, callback(shares[1])):
        ids = service.publish(topic, *[b"%d" % number for number in range(200)])
        wait_until(lambda: service.emulator.counters(subscription)["acked"] == 200, "200 acks")
    assert sorted(shares[0] + shares[1]) == sorted(ids)


def test_a_client_that_leaves_gives_its_messages_back(service, topic, subscription):
    held = []
    with service.subscribed(subscription, held.append, await_callbacks_on_shutdown=False):
        service.publish(topic, b"1")
        wait_until(lambda: held, "the message")

    def pull_later() -> list[bytes]:
        # The client has asked for a minute at most. Its stream may take the message once more before it is gone.
        service.advance(61)
        return payloads(service.pull(subscription))

    wait_until(lambda: pull_later() == [b"1"], "the message is delivered anew")


def test_a_stream_on_a_missing_subscription_ends_with_not_found(service):
    future = service.subscriber.subscribe(f"{PROJECT}/subscriptions/missing", lambda message: message.ack())
    with pytest.raises(NotFound):
        future.result(10)


def test_a_stream_ends_with_not_found_when_its_subscription_is_deleted(service, topic, subscription):
    came = threading.Event()
    future = service.subscriber.subscribe(subscription, lambda message: (message.ack(), came.set()))
    service.publish(topic, b"1")
    assert came.wait(10)
    service.subscriber.delete_subscription(subscription=subscription)
    with pytest.raises(NotFound):
        future.result(10)


@pytest.mark.parametrize(
    "requests",
    [
        pytest.param([{}], id="no subscription"),
        pytest.param([{"stream_ack_deadline_seconds": 9}], id="a short deadline"),
        pytest.param([{"stream_ack_deadline_seconds": 601}], id="a long deadline"),
        pytest.param([{}, {"subscription": "again"}], id="a subscription in a later request"),
        pytest.param([{}, {"ack_ids": ["made up"]}], id="a made up ack id"),
        pytest.param([{}, {"modify_deadline_ack_ids": ["x"]}], id="an ack id without a deadline"),
    ],
)
def test_a_stream_ends_at_a_request_outside_the_rules(service, subscription, requests):
    first = {"stream_ack_deadline_seconds": 10, **requests[0]}
    if requests != [{}]:
        first["subscription"] = subscription
    sent = [StreamingPullRequest(request) for request in (first, *requests[1:])]
    with pytest.raises(InvalidArgument):
        for _ in service.subscriber.streaming_pull(requests=iter(sent), timeout=10, retry=None):
            pass
