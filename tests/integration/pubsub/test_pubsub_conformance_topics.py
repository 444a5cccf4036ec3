"""Topics as the official client sees them: create, get, update, list, delete."""

import pytest
from conformance import PROJECT, Service, payloads
from google.api_core.exceptions import AlreadyExists, InvalidArgument, NotFound
from google.protobuf.duration_pb2 import Duration


def test_a_topic_is_read_as_it_was_created(service):
    created = service.publisher.create_topic(
        request={
            "name": f"{PROJECT}/topics/events",
            "labels": {"team": "a"},
            "message_retention_duration": Duration(seconds=600),
        }
    )
    read = service.publisher.get_topic(topic=f"{PROJECT}/topics/events")
    assert read == created
    assert read.name == f"{PROJECT}/topics/events"
    assert dict(read.labels) == {"team": "a"}
    assert read.message_retention_duration.total_seconds() == 600


def test_a_topic_that_exists_is_not_created_again(service, topic):
    with pytest.raises(AlreadyExists):
        service.publisher.create_topic(name=topic)


@pytest.mark.parametrize(
    "name",
    [
        "events",
        "projects/p/topics/",
        "projects/p/topics/ab",
        "projects/p/topics/1abc",
        "projects/p/topics/googly",
        "projects/p/topics/a b c",
        "projects/p/topics/" + "a" * 256,
        "projects/p/subscriptions/events",
    ],
)
def test_a_topic_name_outside_the_rules_is_an_invalid_argument(service, name):
    with pytest.raises(InvalidArgument):
        service.publisher.create_topic(name=name)


def test_every_letter_of_the_name_rules_is_taken(service):
    name = f"{PROJECT}/topics/aZ0-_.~+%"
    assert service.publisher.create_topic(name=name).name == name


@pytest.mark.parametrize("seconds", [599, 31 * 86400 + 1])
def test_a_topic_retains_messages_for_10_minutes_to_31_days(service, seconds):
    with pytest.raises(InvalidArgument):
        service.topic(message_retention_duration=Duration(seconds=seconds))


@pytest.mark.parametrize("call", ["get_topic", "delete_topic"])
def test_a_missing_topic_is_not_found(service, call):
    with pytest.raises(NotFound):
        getattr(service.publisher, call)(topic=f"{PROJECT}/topics/missing")


def test_an_update_of_a_topic_changes_the_fields_of_its_mask_only(service):
    topic = service.topic(labels={"a": "1"}, message_retention_duration=Duration(seconds=600))
    updated = service.publisher.update_topic(
        request={
            "topic": {"name": topic, "labels": {"b": "2"}, "message_retention_duration": Duration(seconds=900)},
            "update_mask": {"paths": ["labels"]},
        }
    )
    assert updated == service.publisher.get_topic(topic=topic)
    assert dict(updated.labels) == {"b": "2"}
    assert updated.message_retention_duration.total_seconds() == 600


@pytest.mark.parametrize("paths", [[], ["name"], ["no_such_field"]])
def test_an_update_of_a_topic_needs_a_mask_of_mutable_fields(service, topic, paths):
    with pytest.raises(InvalidArgument):
        service.publisher.update_topic(request={"topic": {"name": topic}, "update_mask": {"paths": paths}})


def test_a_missing_topic_is_not_updated(service):
    missing = {"name": f"{PROJECT}/topics/missing", "labels": {"a": "1"}}
    with pytest.raises(NotFound):
        service.publisher.update_topic(request={"topic": missing, "update_mask": {"paths": ["labels"]}})


def test_topics_are_listed_page_by_page_and_by_project(service):
    names = {service.topic(f"topic-{number}") for number in range(7)}
    service.publisher.create_topic(name="projects/conformance-2/topics/other")
    pages = list(service.publisher.list_topics(request={"project": PROJECT, "page_size": 3}).pages)
    assert [len(page.topics) for page in pages] == [3, 3, 1]
    assert {topic.name for page in pages for topic in page.topics} == names
    assert {topic.name for topic in service.publisher.list_topics(project=PROJECT)} == names


def test_a_page_token_of_nobody_is_an_invalid_argument(service):
    with pytest.raises(InvalidArgument):
        service.publisher.list_topics(request={"project": PROJECT, "page_token": "made up"})


def test_the_subscriptions_of_a_topic_are_listed_page_by_page(service: Service):
    topic, other = service.topic(), service.topic("other")
    names = {service.subscription(topic, f"sub-{number}") for number in range(5)}
    service.subscription(other, "of-the-other")
    request = {"topic": topic, "page_size": 2}
    pages = list(service.publisher.list_topic_subscriptions(request=request).pages)
    assert [len(page.subscriptions) for page in pages] == [2, 2, 1]
    assert {name for page in pages for name in page.subscriptions} == names
    with pytest.raises(NotFound):
        service.publisher.list_topic_subscriptions(topic=f"{PROJECT}/topics/missing")


def test_the_subscription_of_a_deleted_topic_keeps_its_messages(service, topic, subscription):
    service.publish(topic, b"before")
    service.publisher.delete_topic(topic=topic)
    assert service.subscriber.get_subscription(subscription=subscription).topic == "_deleted-topic_"
    assert payloads(service.receive(subscription, 1)) == [b"before"]
    with pytest.raises(NotFound):
        service.publish(topic, b"after")


def test_a_topic_created_again_has_none_of_the_old_subscriptions(service, topic, subscription):
    service.publisher.delete_topic(topic=topic)
    service.publisher.create_topic(name=topic)
    service.publish(topic, b"for nobody")
    assert list(service.publisher.list_topic_subscriptions(topic=topic)) == []
    assert service.pull(subscription) == []
