"""Subscription filters with the official client."""

import pytest

MESSAGES: dict[bytes, dict[str, str]] = {
    b"com": {"domain": "com", "lang": "en"},
    b"org": {"domain": "org", "lang": "de"},
    b"co.jp": {"domain": "co.jp", "lang": "ja", "iana.org/tag": "ja-JP"},
    b"bare": {"lang": "en"},
}


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("attributes:domain", {b"com", b"org", b"co.jp"}),
        ("NOT attributes:domain", {b"bare"}),
        ("-attributes:domain", {b"bare"}),
        ('attributes.domain = "com"', {b"com"}),
        ('attributes.domain != "com"', {b"org", b"co.jp", b"bare"}),
        ('hasPrefix(attributes.domain, "co")', {b"com", b"co.jp"}),
        ('NOT hasPrefix(attributes.domain, "co")', {b"org", b"bare"}),
        ('attributes:domain AND attributes.lang = "en"', {b"com"}),
        ('attributes.lang = "de" OR attributes.lang = "ja"', {b"org", b"co.jp"}),
        ('attributes.lang = "en" AND (attributes:domain OR attributes:other)', {b"com"}),
        ('attributes:"iana.org/tag"', {b"co.jp"}),
        (r'attributes.domain = "\x63om"', {b"com"}),
        ('attributes.domain = "COM"', set()),
    ],
)
def test_a_filter_lets_matching_messages_through(service, topic, expression, expected):
    subscription = service.subscription(topic, filter=expression)
    for data, attributes in MESSAGES.items():
        service.publish(topic, data, attributes=attributes)
    received = service.receive(subscription, len(expected))
    assert {one.message.data for one in received} == expected
    assert service.pull(subscription) == []


def test_filtered_messages_are_acknowledged_by_the_service(service, topic):
    filtered = service.subscription(topic, "filtered", filter="attributes:x")
    everything = service.subscription(topic, "everything")
    service.publish(topic, b"1", b"2")
    assert service.emulator.counters(filtered)["backlog"] == 0
    assert len(service.receive(everything, 2)) == 2


def test_filtered_messages_do_not_hold_up_an_ordering_key(service, topic):
    subscription = service.subscription(topic, filter='attributes.keep = "yes"', enable_message_ordering=True)
    for number in range(6):
        service.publish(topic, b"%d" % number, ordering_key="key", attributes={"keep": "yes" if number % 2 else "no"})
    assert [one.message.data for one in service.receive(subscription, 3)] == [b"1", b"3", b"5"]
