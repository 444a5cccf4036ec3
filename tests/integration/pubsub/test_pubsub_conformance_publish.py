"""Publishing with the official client."""

import time

import pytest
from conformance import PROJECT, payloads
from google.api_core.exceptions import InvalidArgument, NotFound
from google.pubsub_v1.types import PubsubMessage


def test_a_message_arrives_as_it_was_published(service, topic, subscription):
    before = time.time()
    attributes = {"plain": "x", "empty": "", "unicode": "é😀", "k" * 256: "v" * 1024}
    future = service.publisher.publish(topic, b"\x00\xff payload", ordering_key="key", **attributes)
    message_id = future.result(10)
    (received,) = service.receive(subscription, 1)
    assert received.ack_id
    message = received.message
    assert (message.data, dict(message.attributes)) == (b"\x00\xff payload", attributes)
    assert (message.message_id, message.ordering_key) == (message_id, "key")
    assert before - 1 < message.publish_time.timestamp() < time.time() + 1
    assert received.delivery_attempt == 0, "counted only under a dead-letter policy"


def test_each_message_gets_an_id_of_its_own_in_the_order_of_the_request(service, topic, subscription):
    sent = [b"%d" % number for number in range(1000)]
    ids = service.publish(topic, *sent)
    assert len(set(ids)) == 1000
    received = []
    while len(received) < 1000:
        received += service.pull(subscription, 1000)
    assert {one.message.message_id: one.message.data for one in received} == dict(zip(ids, sent, strict=True))


def test_every_subscription_gets_every_message_published_since_its_creation(service, topic):
    first = service.subscription(topic, "first")
    service.publish(topic, b"1")
    second = service.subscription(topic, "second")
    service.publish(topic, b"2")
    assert sorted(payloads(service.receive(first, 2))) == [b"1", b"2"]
    assert payloads(service.receive(second, 1)) == [b"2"]


def test_a_message_may_have_attributes_and_no_data(service, topic, subscription):
    service.publish(topic, b"", attributes={"a": "1"})
    (received,) = service.receive(subscription, 1)
    assert (received.message.data, dict(received.message.attributes)) == (b"", {"a": "1"})


def test_id_and_time_of_the_client_are_not_taken(service, topic, subscription):
    (message_id,) = service.publish(topic, b"x", message_id="mine", publish_time={"seconds": 1})
    (received,) = service.receive(subscription, 1)
    assert received.message.message_id == message_id != "mine"
    assert received.message.publish_time.timestamp() > 1_000_000_000


@pytest.mark.parametrize(
    "messages",
    [
        pytest.param([], id="no message"),
        pytest.param([PubsubMessage()], id="an empty message"),
        pytest.param([PubsubMessage(data=b"x"), PubsubMessage()], id="an empty message among others"),
        pytest.param([PubsubMessage(ordering_key="only a key")], id="an ordering key alone"),
        pytest.param([PubsubMessage(data=b"x")] * 1001, id="more than 1000 messages"),
        pytest.param([PubsubMessage(data=b"x" * 10_000_001)], id="a message above 10 MB"),
        pytest.param([PubsubMessage(data=b"x" * 3_000_000)] * 4, id="a request above 10 MB"),
        pytest.param([PubsubMessage(data=b"x", attributes={f"a{n}": "" for n in range(101)})], id="101 attributes"),
        pytest.param([PubsubMessage(attributes={"k" * 257: ""})], id="a long attribute name"),
        pytest.param([PubsubMessage(attributes={"k": "v" * 1025})], id="a long attribute value"),
        pytest.param([PubsubMessage(attributes={"googclient": "x"})], id="a reserved attribute name"),
        pytest.param([PubsubMessage(data=b"x", ordering_key="k" * 1025)], id="a long ordering key"),
        pytest.param(
            [PubsubMessage(data=b"x", ordering_key="a"), PubsubMessage(data=b"x", ordering_key="b")],
            id="two ordering keys in one request",
        ),
    ],
)
def test_a_publish_outside_the_limits_is_an_invalid_argument(service, topic, subscription, messages):
    with pytest.raises(InvalidArgument):
        service.publish_messages(topic, messages)
    assert service.pull(subscription) == [], "a refused request publishes nothing"


def test_a_message_of_nearly_10_mb_is_taken(service, topic):
    assert len(service.publish(topic, b"x" * 9_900_000)) == 1


def test_publishing_to_a_missing_topic_is_not_found(service):
    with pytest.raises(NotFound):
        service.publish(f"{PROJECT}/topics/missing", b"x")
    with pytest.raises(NotFound):
        service.publisher.publish(f"{PROJECT}/topics/missing", b"x").result(10)
