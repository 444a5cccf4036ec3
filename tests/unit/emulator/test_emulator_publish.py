"""Publishing: what arrives, and what the service's limits refuse."""

import datetime

import pytest
from google.api_core import exceptions
from google.pubsub_v1 import PublisherClient

TOPIC = "projects/p/topics/events"
SUBSCRIPTION = "projects/p/subscriptions/events"


def test_a_message_arrives_whole_with_the_servers_id_and_time(publisher, subscribed, pull):
    before = datetime.datetime.now(datetime.UTC)
    message_id = publisher.publish(TOPIC, b"\x00data\xff", kind="a", empty="", größe="ß").result(timeout=10)
    (received,) = pull().receive(1)
    message = received.message
    assert (message.data, dict(message.attributes)) == (b"\x00data\xff", {"kind": "a", "empty": "", "größe": "ß"})
    assert (message.message_id, message.ordering_key) == (message_id, "")
    assert before <= message.publish_time <= datetime.datetime.now(datetime.UTC)


def test_attributes_alone_are_a_message(publisher, subscribed, pull):
    publisher.publish(TOPIC, b"", kind="a").result(timeout=10)
    assert dict(pull().receive(1)[0].message.attributes) == {"kind": "a"}


def test_a_publisher_cannot_choose_id_and_time(publisher, subscribed, pull):
    forged = {"data": b"x", "message_id": "mine", "publish_time": {"seconds": 1, "nanos": 2}}
    (message_id,) = PublisherClient.publish(publisher, topic=TOPIC, messages=[forged]).message_ids
    message = pull().receive(1)[0].message
    assert message.message_id == message_id != "mine"
    assert message.publish_time.year > 2000


def test_ids_are_unique_and_in_the_order_of_the_request(subscribed, publish, pull):
    payloads = [str(n).encode() for n in range(1000)]
    ids = publish(*payloads)
    received = {r.message.message_id: r.message.data for r in pull().receive(1000)}
    assert [received[message_id] for message_id in ids] == payloads
    assert subscribed.published(TOPIC) == 1000


def test_messages_of_several_megabytes_arrive(subscribed, publish, pull, large_subscriber):
    payloads = [bytes([n]) * size for n, size in enumerate((3_000_000, 9_900_000, 1, 5_000_000))]
    for payload in payloads:
        publish(payload)
    assert sorted(r.message.data for r in pull(client=large_subscriber).receive(4)) == sorted(payloads)


def test_a_request_takes_1000_messages_and_no_more(subscribed, publish):
    assert len(publish(*[b"x"] * 1000)) == 1000
    with pytest.raises(exceptions.InvalidArgument, match=r"message_count is too large\. You passed 1001"):
        publish(*[b"x"] * 1001)
    with pytest.raises(exceptions.InvalidArgument, match="no messages"):
        publish()
    assert subscribed.published(TOPIC) == 1000


def test_a_request_takes_10_megabytes_and_no_more(subscribed, publish):
    publish(b"x" * 9_999_900)
    for payloads in ([b"x" * 10_000_000], [b"x" * 1_000_000] * 10, [b"x" * 40_000_000]):
        with pytest.raises(exceptions.InvalidArgument, match=r"request_size is too large.*maximum value is 10000000"):
            publish(*payloads)
    assert subscribed.published(TOPIC) == 1


@pytest.mark.parametrize(
    ("message", "what"),
    [
        ({}, "data or at least one attribute"),
        ({"data": b"x", "attributes": {"goog_x": "1"}}, "goog"),
        ({"data": b"x", "attributes": {"": "1"}}, "empty"),
        ({"data": b"x", "attributes": {"k" * 257: "1"}}, "attribute key has 257"),
        ({"data": b"x", "attributes": {"k": "v" * 1025}}, "attribute value has 1025"),
        ({"data": b"x", "attributes": {str(n): "" for n in range(101)}}, "101 attributes"),
        ({"data": b"x", "ordering_key": "k" * 1025}, "ordering key has 1025"),
        ({"data": b"x", "ordering_key": "k"}, "the same ordering key"),
    ],
)
def test_an_invalid_message_refuses_the_whole_request(message, what, publisher, subscribed):
    with pytest.raises(exceptions.InvalidArgument, match=what):
        PublisherClient.publish(publisher, topic=TOPIC, messages=[{"data": b"fine"}, message])
    assert subscribed.counters(SUBSCRIPTION)["backlog"] == 0


def test_a_subscription_gets_only_what_is_published_after_its_creation(emulator, publish, pull):
    emulator.create_topic(TOPIC)
    publish(b"before")
    emulator.create_subscription(SUBSCRIPTION, TOPIC)
    publish(b"after")
    assert [r.message.data for r in pull().receive(2, wait_s=0.5)] == [b"after"]
