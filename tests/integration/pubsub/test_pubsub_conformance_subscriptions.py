"""Subscriptions as the official client sees them: create, get, update, list, delete, detach."""

import pytest
from conformance import PROJECT, payloads
from google.api_core.exceptions import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound
from google.protobuf.duration_pb2 import Duration

DAY_S = 86400


def test_a_subscription_has_the_defaults_of_the_service(service, topic, subscription):
    read = service.subscriber.get_subscription(subscription=subscription)
    assert (read.name, read.topic) == (subscription, topic)
    assert read.ack_deadline_seconds == 10
    assert read.message_retention_duration.total_seconds() == 7 * DAY_S
    assert read.expiration_policy.ttl.total_seconds() == 31 * DAY_S
    assert not read.retain_acked_messages
    assert not read.enable_message_ordering
    assert not read.enable_exactly_once_delivery
    assert not read.detached
    assert read.state == read.State.ACTIVE


def test_a_subscription_is_read_as_it_was_created(service, topic):
    dead_letters = service.topic("dead-letters")
    fields = {
        "ack_deadline_seconds": 600,
        "labels": {"team": "a"},
        "enable_message_ordering": True,
        "retain_acked_messages": True,
        "message_retention_duration": Duration(seconds=3600),
        "filter": "attributes:x",
        "dead_letter_policy": {"dead_letter_topic": dead_letters, "max_delivery_attempts": 7},
        "retry_policy": {"minimum_backoff": Duration(seconds=1), "maximum_backoff": Duration(seconds=60)},
        "enable_exactly_once_delivery": True,
        "expiration_policy": {"ttl": Duration(seconds=2 * DAY_S)},
    }
    name = f"{PROJECT}/subscriptions/events"
    created = service.subscriber.create_subscription(request={"name": name, "topic": topic, **fields})
    read = service.subscriber.get_subscription(subscription=name)
    assert read == created
    assert read.ack_deadline_seconds == 600
    assert dict(read.labels) == {"team": "a"}
    assert (read.enable_message_ordering, read.retain_acked_messages) == (True, True)
    assert read.enable_exactly_once_delivery
    assert read.message_retention_duration.total_seconds() == 3600
    assert read.filter == "attributes:x"
    assert (read.dead_letter_policy.dead_letter_topic, read.dead_letter_policy.max_delivery_attempts) == (
        dead_letters,
        7,
    )
    assert read.retry_policy.minimum_backoff.total_seconds() == 1
    assert read.retry_policy.maximum_backoff.total_seconds() == 60
    assert read.expiration_policy.ttl.total_seconds() == 2 * DAY_S


def test_a_policy_in_parts_gets_the_defaults_of_the_service(service, topic):
    dead_letters = service.topic("dead-letters")
    subscription = service.subscription(
        topic, dead_letter_policy={"dead_letter_topic": dead_letters}, retry_policy={}, expiration_policy={}
    )
    read = service.subscriber.get_subscription(subscription=subscription)
    assert read.dead_letter_policy.max_delivery_attempts == 5
    assert read.retry_policy.minimum_backoff.total_seconds() == 10
    assert read.retry_policy.maximum_backoff.total_seconds() == 600
    assert "ttl" not in read.expiration_policy, "a policy without a ttl never expires"


def test_a_subscription_that_exists_is_not_created_again(service, topic, subscription):
    with pytest.raises(AlreadyExists):
        service.subscriber.create_subscription(name=subscription, topic=topic)


def test_a_subscription_needs_a_topic_that_exists(service):
    with pytest.raises(NotFound):
        service.subscription(f"{PROJECT}/topics/missing")


@pytest.mark.parametrize(
    "fields",
    [
        {"name": f"{PROJECT}/subscriptions/ab"},
        {"name": f"{PROJECT}/topics/events"},
        {"topic": "events"},
        {"ack_deadline_seconds": 9},
        {"ack_deadline_seconds": 601},
        {"message_retention_duration": Duration(seconds=599)},
        {"message_retention_duration": Duration(seconds=31 * DAY_S + 1)},
        {"expiration_policy": {"ttl": Duration(seconds=DAY_S - 1)}},
        {"retry_policy": {"minimum_backoff": Duration(seconds=601)}},
        {"retry_policy": {"maximum_backoff": Duration(seconds=601)}},
        {"retry_policy": {"minimum_backoff": Duration(seconds=20), "maximum_backoff": Duration(seconds=10)}},
        {"filter": "no such thing"},
        {"filter": "attributes:a AND attributes:b OR attributes:c"},
        {"filter": 'attributes.a = "' + "x" * 240 + '"'},
        {"dead_letter_policy": {"dead_letter_topic": "topic", "max_delivery_attempts": 5}},
        {"dead_letter_policy": {"dead_letter_topic": f"{PROJECT}/topics/events", "max_delivery_attempts": 4}},
        {"dead_letter_policy": {"dead_letter_topic": f"{PROJECT}/topics/events", "max_delivery_attempts": 101}},
    ],
    ids=str,
)
def test_a_subscription_outside_the_limits_is_an_invalid_argument(service, topic, fields):
    request = {"name": f"{PROJECT}/subscriptions/events", "topic": topic, **fields}
    with pytest.raises(InvalidArgument):
        service.subscriber.create_subscription(request=request)
    assert list(service.subscriber.list_subscriptions(project=PROJECT)) == []


def test_an_update_changes_the_fields_of_its_mask_only(service, topic):
    subscription = service.subscription(topic, labels={"a": "1"})
    updated = service.subscriber.update_subscription(
        request={
            "subscription": {"name": subscription, "ack_deadline_seconds": 30, "labels": {"b": "2"}},
            "update_mask": {"paths": ["ack_deadline_seconds"]},
        }
    )
    assert (updated.ack_deadline_seconds, dict(updated.labels)) == (30, {"a": "1"})
    updated = service.update(
        subscription,
        labels={"c": "3"},
        retain_acked_messages=True,
        message_retention_duration=Duration(seconds=1200),
        enable_exactly_once_delivery=True,
        expiration_policy={"ttl": Duration(seconds=DAY_S)},
    )
    assert updated == service.subscriber.get_subscription(subscription=subscription)
    assert (updated.ack_deadline_seconds, dict(updated.labels)) == (30, {"c": "3"})
    assert updated.retain_acked_messages
    assert updated.enable_exactly_once_delivery
    assert updated.message_retention_duration.total_seconds() == 1200
    assert updated.expiration_policy.ttl.total_seconds() == DAY_S


def test_an_updated_deadline_counts_for_later_deliveries(service, topic, subscription):
    service.update(subscription, ack_deadline_seconds=60)
    service.publish(topic, b"one")
    service.receive(subscription, 1)
    service.advance(50)
    assert service.pull(subscription) == []
    service.advance(11)
    assert payloads(service.receive(subscription, 1)) == [b"one"]


def test_a_policy_is_removed_by_an_update_without_it(service, topic):
    dead_letters = service.topic("dead-letters")
    subscription = service.subscription(
        topic, dead_letter_policy={"dead_letter_topic": dead_letters, "max_delivery_attempts": 5}, retry_policy={}
    )
    updated = service.update(subscription, dead_letter_policy=None, retry_policy=None)
    assert "dead_letter_policy" not in updated
    assert "retry_policy" not in updated


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"no_such_field": 1},
        {"name": f"{PROJECT}/subscriptions/other"},
        {"topic": f"{PROJECT}/topics/other"},
        {"filter": "attributes:x"},
        {"enable_message_ordering": True},
        {"ack_deadline_seconds": 5},
        {"message_retention_duration": Duration(seconds=1)},
    ],
    ids=str,
)
def test_an_update_outside_the_rules_is_an_invalid_argument(service, subscription, fields):
    before = service.subscriber.get_subscription(subscription=subscription)
    known = {name: value for name, value in fields.items() if name not in ("no_such_field", "name")}
    request = {"subscription": {"name": subscription, **known}, "update_mask": {"paths": list(fields)}}
    with pytest.raises(InvalidArgument):
        service.subscriber.update_subscription(request=request)
    assert service.subscriber.get_subscription(subscription=subscription) == before


def test_subscriptions_are_listed_page_by_page(service, topic):
    names = {service.subscription(topic, f"sub-{number}") for number in range(5)}
    request = {"project": PROJECT, "page_size": 2}
    pages = list(service.subscriber.list_subscriptions(request=request).pages)
    assert [len(page.subscriptions) for page in pages] == [2, 2, 1]
    assert {one.name for page in pages for one in page.subscriptions} == names


def test_a_missing_subscription_is_not_found_by_any_call(service):
    missing = f"{PROJECT}/subscriptions/missing"
    calls = [
        lambda: service.subscriber.get_subscription(subscription=missing),
        lambda: service.subscriber.delete_subscription(subscription=missing),
        lambda: service.update(missing, ack_deadline_seconds=20),
        lambda: service.pull(missing),
        lambda: service.subscriber.seek(request={"subscription": missing, "time": {"seconds": 1}}),
        lambda: service.publisher.detach_subscription(request={"subscription": missing}),
        lambda: service.subscriber.create_snapshot(name=f"{PROJECT}/snapshots/snap", subscription=missing),
    ]
    for call in calls:
        with pytest.raises(NotFound):
            call()


def test_a_deleted_subscription_takes_its_messages_with_it(service, topic, subscription):
    service.publish(topic, b"lost")
    service.subscriber.delete_subscription(subscription=subscription)
    with pytest.raises(NotFound):
        service.pull(subscription)
    service.subscriber.create_subscription(name=subscription, topic=topic)
    assert service.pull(subscription) == []


def test_a_detached_subscription_has_no_messages_and_cannot_be_pulled(service, topic, subscription):
    service.publish(topic, b"dropped")
    service.publisher.detach_subscription(request={"subscription": subscription})
    assert service.subscriber.get_subscription(subscription=subscription).detached
    assert list(service.publisher.list_topic_subscriptions(topic=topic)) == []
    service.publish(topic, b"for nobody")
    with pytest.raises(FailedPrecondition):
        service.pull(subscription)
    future = service.subscriber.subscribe(subscription, lambda message: message.ack())
    with pytest.raises(FailedPrecondition):
        future.result(10)
