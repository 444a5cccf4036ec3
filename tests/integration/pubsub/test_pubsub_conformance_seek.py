"""Seek and snapshots with the official client."""

import datetime as dt

import pytest
from conformance import PROJECT, payloads
from google.api_core.exceptions import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound

SNAPSHOT = f"{PROJECT}/snapshots/snap"


def seek(service, subscription: str, to: dt.datetime | str) -> None:
    target = {"snapshot": to} if isinstance(to, str) else {"time": to}
    service.subscriber.seek(request={"subscription": subscription, **target})


def snapshot(service, subscription: str, name: str = SNAPSHOT, **fields):
    return service.subscriber.create_snapshot(request={"name": name, "subscription": subscription, **fields})


def publish_time(received) -> dt.datetime:
    return received.message.publish_time


def test_a_seek_into_the_future_drops_the_backlog(service, topic, subscription):
    service.publish(topic, b"waiting", b"delivered")
    (received,) = service.pull(subscription, 1)
    seek(service, subscription, publish_time(received) + dt.timedelta(hours=1))
    service.advance(700)
    assert service.pull(subscription) == []


def test_a_seek_into_the_past_brings_retained_messages_again(service, topic):
    subscription = service.subscription(topic, retain_acked_messages=True)
    service.publish(topic, b"1")
    service.advance(60)
    service.publish(topic, b"2")
    received = {one.message.data: one for one in service.receive(subscription, 2)}
    service.ack(subscription, *received.values())
    assert service.pull(subscription) == []
    seek(service, subscription, publish_time(received[b"2"]) - dt.timedelta(seconds=30))
    (again,) = service.receive(subscription, 1)
    assert again.message == received[b"2"].message
    service.ack(subscription, again)
    seek(service, subscription, publish_time(received[b"1"]) - dt.timedelta(seconds=30))
    assert sorted(payloads(service.receive(subscription, 2))) == [b"1", b"2"]


def test_a_seek_between_two_messages_acknowledges_the_first_and_keeps_the_second(service, topic, subscription):
    service.publish(topic, b"1")
    service.advance(60)
    service.publish(topic, b"2")
    (first,) = [one for one in service.receive(subscription, 2) if one.message.data == b"1"]
    seek(service, subscription, publish_time(first) + dt.timedelta(seconds=30))
    service.advance(11)
    assert payloads(service.receive(subscription, 1)) == [b"2"]
    assert service.pull(subscription) == []


def test_without_retention_an_acknowledged_message_does_not_come_again(service, topic, subscription):
    service.publish(topic, b"1")
    (received,) = service.receive(subscription, 1)
    service.ack(subscription, received)
    seek(service, subscription, publish_time(received) - dt.timedelta(hours=1))
    assert service.pull(subscription) == []


def test_a_topic_with_retention_serves_a_seek_of_any_of_its_subscriptions(service):
    topic = service.topic(message_retention_duration={"seconds": 3600})
    subscription = service.subscription(topic)
    service.publish(topic, b"1")
    (received,) = service.receive(subscription, 1)
    service.ack(subscription, received)
    seek(service, subscription, publish_time(received) - dt.timedelta(minutes=1))
    assert payloads(service.receive(subscription, 1)) == [b"1"]


def test_retained_messages_leave_when_the_retention_is_over(service, topic):
    subscription = service.subscription(topic, retain_acked_messages=True, message_retention_duration={"seconds": 600})
    service.publish(topic, b"1")
    (received,) = service.receive(subscription, 1)
    service.ack(subscription, received)
    service.advance(601)
    seek(service, subscription, publish_time(received) - dt.timedelta(minutes=1))
    assert service.pull(subscription) == []


def test_ack_ids_from_before_a_seek_do_not_acknowledge_what_it_brought_back(service, topic):
    subscription = service.subscription(topic, retain_acked_messages=True)
    service.publish(topic, b"1")
    (received,) = service.receive(subscription, 1)
    service.ack(subscription, received)
    seek(service, subscription, publish_time(received) - dt.timedelta(minutes=1))
    service.ack(subscription, received)
    assert payloads(service.receive(subscription, 1)) == [b"1"]


def test_a_seek_to_a_snapshot_brings_what_was_unacknowledged_then_and_all_since(service, topic, subscription):
    service.publish(topic, b"acked before", b"open", b"delivered")
    received = {one.message.data: one for one in service.receive(subscription, 3)}
    service.ack(subscription, received[b"acked before"])
    snapshot(service, subscription)
    service.publish(topic, b"since")
    service.ack(subscription, received[b"open"], received[b"delivered"], *service.receive(subscription, 1))
    assert service.emulator.counters(subscription)["backlog"] == 0
    seek(service, subscription, SNAPSHOT)
    assert sorted(payloads(service.receive(subscription, 3))) == [b"delivered", b"open", b"since"]


def test_another_subscription_of_the_topic_can_seek_to_a_snapshot(service, topic, subscription):
    other = service.subscription(topic, "other")
    service.publish(topic, b"done in the snapshot")
    service.ack(subscription, *service.receive(subscription, 1))
    snapshot(service, subscription)
    seek(service, other, SNAPSHOT)
    assert service.pull(other) == []
    service.publish(topic, b"new")
    assert payloads(service.receive(other, 1)) == [b"new"]


def test_a_snapshot_survives_its_subscription(service, topic, subscription):
    other = service.subscription(topic, "other")
    service.publish(topic, b"1")
    snapshot(service, subscription)
    service.subscriber.delete_subscription(subscription=subscription)
    service.ack(other, *service.receive(other, 1))
    seek(service, other, SNAPSHOT)
    assert payloads(service.receive(other, 1)) == [b"1"]


def test_a_snapshot_of_another_topic_is_refused(service, subscription):
    elsewhere = service.subscription(service.topic("elsewhere"), "elsewhere")
    snapshot(service, elsewhere)
    with pytest.raises((InvalidArgument, FailedPrecondition)):
        seek(service, subscription, SNAPSHOT)


def test_a_seek_needs_a_target_that_exists(service, subscription):
    with pytest.raises(InvalidArgument):
        service.subscriber.seek(request={"subscription": subscription})
    with pytest.raises(NotFound):
        seek(service, subscription, f"{PROJECT}/snapshots/missing")


def test_a_snapshot_is_read_as_it_was_created(service, topic, subscription):
    created = snapshot(service, subscription, labels={"a": "1"})
    read = service.subscriber.get_snapshot(snapshot=SNAPSHOT)
    assert read == created
    assert (read.name, read.topic, dict(read.labels)) == (SNAPSHOT, topic, {"a": "1"})
    lifetime = read.expire_time - dt.datetime.now(dt.UTC)
    assert dt.timedelta(days=7) - dt.timedelta(minutes=1) < lifetime <= dt.timedelta(days=7, seconds=1)


def test_the_older_the_backlog_the_sooner_a_snapshot_expires(service, topic, subscription):
    service.publish(topic, b"old")
    fresh = snapshot(service, subscription).expire_time
    service.advance(2 * 86400)
    later = snapshot(service, subscription, f"{PROJECT}/snapshots/later").expire_time
    assert abs(later - fresh) < dt.timedelta(minutes=1)
    service.advance(5 * 86400 - 1800)
    with pytest.raises(FailedPrecondition):
        snapshot(service, subscription, f"{PROJECT}/snapshots/too-late")


def test_a_snapshot_is_gone_when_it_expires(service, subscription):
    snapshot(service, subscription)
    service.advance(7 * 86400 + 60)
    with pytest.raises(NotFound):
        service.subscriber.get_snapshot(snapshot=SNAPSHOT)
    with pytest.raises(NotFound):
        seek(service, subscription, SNAPSHOT)


def test_a_snapshot_is_updated_by_its_mask(service, subscription):
    snapshot(service, subscription, labels={"a": "1"})
    updated = service.subscriber.update_snapshot(
        request={"snapshot": {"name": SNAPSHOT, "labels": {"b": "2"}}, "update_mask": {"paths": ["labels"]}}
    )
    assert dict(updated.labels) == {"b": "2"}
    assert service.subscriber.get_snapshot(snapshot=SNAPSHOT) == updated
    for paths in ([], ["topic"], ["no_such_field"]):
        with pytest.raises(InvalidArgument):
            service.subscriber.update_snapshot(
                request={"snapshot": {"name": SNAPSHOT}, "update_mask": {"paths": paths}}
            )


def test_snapshots_are_listed_page_by_page_and_by_topic(service, topic, subscription):
    names = {f"{PROJECT}/snapshots/snap-{number}" for number in range(5)}
    for name in names:
        snapshot(service, subscription, name)
    elsewhere = service.subscription(service.topic("elsewhere"), "elsewhere")
    snapshot(service, elsewhere, f"{PROJECT}/snapshots/of-the-other")
    pages = list(service.subscriber.list_snapshots(request={"project": PROJECT, "page_size": 4}).pages)
    assert [len(page.snapshots) for page in pages] == [4, 2]
    assert set(service.publisher.list_topic_snapshots(topic=topic)) == names


def test_a_snapshot_name_is_given_once_and_follows_the_rules(service, subscription):
    snapshot(service, subscription)
    with pytest.raises(AlreadyExists):
        snapshot(service, subscription)
    with pytest.raises(InvalidArgument):
        snapshot(service, subscription, "projects/p/topics/snap")


def test_a_deleted_snapshot_is_gone(service, subscription):
    snapshot(service, subscription)
    service.subscriber.delete_snapshot(snapshot=SNAPSHOT)
    for call in (
        lambda: service.subscriber.get_snapshot(snapshot=SNAPSHOT),
        lambda: service.subscriber.delete_snapshot(snapshot=SNAPSHOT),
        lambda: seek(service, subscription, SNAPSHOT),
    ):
        with pytest.raises(NotFound):
            call()
