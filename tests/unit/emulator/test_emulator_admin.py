"""Topics and subscriptions: what the official client sees of creating, reading and deleting them."""

import pytest
from google.api_core import exceptions

from solstice.errors import AlreadyExistsError, ConfigError, InvalidRequestError, NotFoundError
from solstice.testing import PubSubEmulator

TOPIC = "projects/p/topics/events"
SUBSCRIPTION = "projects/p/subscriptions/events"


def test_what_is_created_can_be_read(publisher, subscriber):
    publisher.create_topic(request={"name": TOPIC, "labels": {"team": "a"}})
    created = subscriber.create_subscription(
        request={"name": SUBSCRIPTION, "topic": TOPIC, "ack_deadline_seconds": 20, "labels": {"team": "b"}}
    )
    assert dict(publisher.get_topic(topic=TOPIC).labels) == {"team": "a"}
    assert subscriber.get_subscription(subscription=SUBSCRIPTION) == created
    assert (created.topic, created.ack_deadline_seconds, dict(created.labels)) == (TOPIC, 20, {"team": "b"})


def test_a_subscription_without_a_deadline_gets_ten_seconds(publisher, subscriber):
    publisher.create_topic(name=TOPIC)
    assert subscriber.create_subscription(name=SUBSCRIPTION, topic=TOPIC).ack_deadline_seconds == 10


def test_creating_a_second_time_is_refused(publisher, subscriber):
    publisher.create_topic(name=TOPIC)
    subscriber.create_subscription(name=SUBSCRIPTION, topic=TOPIC)
    with pytest.raises(exceptions.AlreadyExists, match=TOPIC):
        publisher.create_topic(name=TOPIC)
    with pytest.raises(exceptions.AlreadyExists, match=SUBSCRIPTION):
        subscriber.create_subscription(name=SUBSCRIPTION, topic=TOPIC)


def test_what_is_not_there_is_not_found(publisher, subscriber, subscribed):
    missing_topic, missing = "projects/p/topics/missing", "projects/p/subscriptions/missing"
    for call in (
        lambda: publisher.get_topic(topic=missing_topic),
        lambda: publisher.delete_topic(topic=missing_topic),
        lambda: publisher.publish(missing_topic, b"x").result(timeout=10),
        lambda: subscriber.create_subscription(name=missing, topic=missing_topic),
        lambda: subscriber.get_subscription(subscription=missing),
        lambda: subscriber.delete_subscription(subscription=missing),
        lambda: subscriber.acknowledge(subscription=missing, ack_ids=["1:0:1"]),
        lambda: subscriber.modify_ack_deadline(subscription=missing, ack_ids=["1:0:1"], ack_deadline_seconds=10),
    ):
        with pytest.raises(exceptions.NotFound, match="missing"):
            call()


@pytest.mark.parametrize("name", ["events", "projects/p/topics/ab", "projects/p/topics/1events", "projects/p/subs/abc"])
def test_bad_names_are_invalid(name, publisher, subscriber, subscribed):
    for call in (
        lambda: publisher.create_topic(name=name),
        lambda: publisher.publish(name, b"x").result(timeout=10),
        lambda: subscriber.create_subscription(name=SUBSCRIPTION, topic=name),
        lambda: subscriber.create_subscription(name=name, topic=TOPIC),
        lambda: subscriber.get_subscription(subscription=name),
    ):
        with pytest.raises(exceptions.InvalidArgument, match="Invalid"):
            call()


@pytest.mark.parametrize("seconds", [-1, 1, 9, 601])
def test_a_subscriptions_deadline_lies_between_10_and_600_seconds(seconds, publisher, subscriber):
    publisher.create_topic(name=TOPIC)
    with pytest.raises(exceptions.InvalidArgument, match="10 and 600"):
        subscriber.create_subscription(request={"name": SUBSCRIPTION, "topic": TOPIC, "ack_deadline_seconds": seconds})


@pytest.mark.parametrize(
    ("feature", "name"),
    [
        ({"push_config": {"push_endpoint": "http://127.0.0.1:1"}}, "push_config.push_endpoint"),
        ({"bigquery_config": {"table": "p.d.t"}}, "bigquery_config"),
        ({"cloud_storage_config": {"bucket": "b"}}, "cloud_storage_config"),
        ({"message_transforms": [{"javascript_udf": {"function_name": "f", "code": "c"}}]}, "message_transforms"),
    ],
)
def test_a_subscription_that_the_emulator_cannot_have_is_refused_by_name(feature, name, publisher, subscriber):
    publisher.create_topic(name=TOPIC)
    with pytest.raises(exceptions.MethodNotImplemented, match=name):
        subscriber.create_subscription(request={"name": SUBSCRIPTION, "topic": TOPIC, **feature})


@pytest.mark.parametrize(
    "feature",
    [
        {"kms_key_name": "projects/p/locations/l/keyRings/r/cryptoKeys/k"},
        {"schema_settings": {"schema": "projects/p/schemas/s"}},
        {"ingestion_data_source_settings": {"cloud_storage": {"bucket": "b"}}},
    ],
    ids=lambda feature: next(iter(feature)),
)
def test_a_topic_that_the_emulator_cannot_have_is_refused_by_name(feature, publisher):
    with pytest.raises(exceptions.MethodNotImplemented, match=next(iter(feature))):
        publisher.create_topic(request={"name": TOPIC, **feature})


def test_a_call_that_is_not_there_is_refused_by_name(publisher):
    with pytest.raises(exceptions.MethodNotImplemented, match="GetIamPolicy"):
        publisher.get_iam_policy(request={"resource": TOPIC})


def test_a_deleted_topic_leaves_its_subscriptions_with_their_messages(publisher, subscriber, subscribed, publish, pull):
    ids = publish(b"before")
    publisher.delete_topic(topic=TOPIC)
    assert subscriber.get_subscription(subscription=SUBSCRIPTION).topic == "_deleted-topic_"
    assert [received.message.message_id for received in pull().receive(1)] == ids
    publisher.create_topic(name=TOPIC)
    publish(b"after")
    assert pull().receive(1, wait_s=0.2) == [], "the new topic is another one"


def test_a_subscription_created_anew_is_empty(subscriber, subscribed, publish):
    publish(b"before")
    subscriber.delete_subscription(subscription=SUBSCRIPTION)
    with pytest.raises(exceptions.NotFound):
        subscriber.get_subscription(subscription=SUBSCRIPTION)
    subscriber.create_subscription(name=SUBSCRIPTION, topic=TOPIC)
    assert subscribed.counters(SUBSCRIPTION)["backlog"] == 0


def test_the_helpers_raise_the_errors_of_solstice(emulator):
    with pytest.raises(InvalidRequestError, match="projects/PROJECT/topics/ID"):
        emulator.create_topic("events")
    with pytest.raises(NotFoundError, match=TOPIC):
        emulator.create_subscription(SUBSCRIPTION, TOPIC)
    emulator.create_topic(TOPIC)
    with pytest.raises(AlreadyExistsError):
        emulator.create_topic(TOPIC)
    with pytest.raises(InvalidRequestError, match="5 s"):
        emulator.create_subscription(SUBSCRIPTION, TOPIC, ack_deadline_s=5)
    with pytest.raises(NotFoundError, match=SUBSCRIPTION):
        emulator.counters(SUBSCRIPTION)


def test_a_taken_port_is_an_error_with_the_fix(emulator):
    with pytest.raises(ConfigError, match=rf"127\.0\.0\.1:{emulator.port}.*port 0 takes a free one"):
        PubSubEmulator(port=emulator.port).start()


def test_stopping_twice_is_fine_and_the_port_is_free_again(emulator):
    emulator.stop()
    emulator.stop()
    with PubSubEmulator(port=emulator.port) as next_one:
        assert next_one.address == emulator.address


def test_counters_can_be_read_after_the_end_but_not_before_the_start(subscribed, publish):
    publish(b"x")
    subscribed.stop()
    assert subscribed.counters(SUBSCRIPTION)["backlog"] == 1
    assert subscribed.published(TOPIC) == 1
    with pytest.raises(ConfigError, match="not running"):
        PubSubEmulator().counters(SUBSCRIPTION)
