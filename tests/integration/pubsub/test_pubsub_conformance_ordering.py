"""Ordering keys with the official client."""

import threading

from conformance import payloads, wait_until


def test_the_messages_of_a_key_come_in_the_order_of_publishing(service, topic):
    subscription = service.subscription(topic, enable_message_ordering=True)
    received: dict[str, list[bytes]] = {"a": [], "b": [], "c": []}
    lock = threading.Lock()

    def callback(message) -> None:
        with lock:
            received[message.ordering_key].append(message.data)
        message.ack()

    with service.subscribed(subscription, callback):
        for number in range(100):
            for key in received:
                service.publisher.publish(topic, b"%d" % number, ordering_key=key)
        wait_until(lambda: sum(map(len, received.values())) == 300, "300 messages")
    in_order = [b"%d" % number for number in range(100)]
    assert received == {"a": in_order, "b": in_order, "c": in_order}


def test_one_pull_gives_the_messages_of_a_key_in_order(service, topic):
    subscription = service.subscription(topic, enable_message_ordering=True)
    service.publish(topic, *[b"%d" % number for number in range(10)], ordering_key="key")
    received = []
    wait_until(lambda: len(received) == 10 or received.extend(service.pull(subscription)), "10 messages")
    assert payloads(received) == [b"%d" % number for number in range(10)]


def test_a_nacked_message_brings_the_later_ones_of_its_key_again_in_order(service, topic):
    subscription = service.subscription(topic, enable_message_ordering=True)
    service.publish(topic, b"1", b"2", b"3", b"4", ordering_key="key")
    first, second, *_ = service.receive(subscription, 4)
    service.ack(subscription, first)
    service.nack(subscription, second)
    assert payloads(service.receive(subscription, 3)) == [b"2", b"3", b"4"]


def test_an_expired_message_brings_the_later_ones_of_its_key_again_in_order(service, topic):
    subscription = service.subscription(topic, enable_message_ordering=True)
    service.publish(topic, b"1", b"2", b"3", ordering_key="key")
    _, *later = service.receive(subscription, 3)
    service.extend(subscription, 600, *later)
    service.advance(11)
    assert payloads(service.receive(subscription, 3)) == [b"1", b"2", b"3"]


def test_a_key_does_not_wait_for_another_one(service, topic):
    subscription = service.subscription(topic, enable_message_ordering=True)
    service.publish(topic, b"held", ordering_key="a")
    service.receive(subscription, 1)
    service.publish(topic, b"free", ordering_key="b")
    service.publish(topic, b"keyless")
    assert sorted(payloads(service.receive(subscription, 2))) == [b"free", b"keyless"]


def test_without_ordering_a_nack_brings_only_its_message_again(service, topic, subscription):
    service.publish(topic, b"1", b"2", b"3", ordering_key="key")
    received = {one.message.data: one for one in service.receive(subscription, 3)}
    service.nack(subscription, received[b"1"])
    assert payloads(service.receive(subscription, 1)) == [b"1"]
    assert service.pull(subscription) == []
