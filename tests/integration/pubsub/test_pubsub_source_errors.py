"""Mistakes that users make: each fails within seconds, at ``load()`` or in the query, and the message has the fix."""

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from pubsub_queries import SUBSCRIPTION, TOPIC
from solstice.testing import PubSubEmulator

pytestmark = pytest.mark.spark

SECONDS = 15


@pytest.fixture(scope="module")
def emulator() -> Iterator[PubSubEmulator]:
    with PubSubEmulator() as emulator:
        emulator.create_topic(TOPIC)
        emulator.create_subscription(SUBSCRIPTION, TOPIC)
        yield emulator


def reader(spark: Any, emulator: PubSubEmulator, schema: str | None = None, **options: str) -> Any:
    given = {"subscriptionId": SUBSCRIPTION, "emulatorHost": emulator.address, **options}
    stream = spark.readStream.format("pubsub").options(**given)
    return stream.schema(schema) if schema else stream


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"maxMessagePerTrigger": "5"}, r"no option 'maxmessagepertrigger'.*maxMessagesPerTrigger"),
        ({"ackDeadline": "1h"}, r"'ackDeadline' is '1h'.*between 10s and 600s"),
        ({"subscriptionId": "events"}, r"'events' and there is no project.*Set projectId"),
        ({"emulatorHost": "127.0.0.1"}, r"emulatorHost is '127\.0\.0\.1'.*host:port"),
        ({"endpoint": "127.0.0.1:1"}, r"two places.*Set emulatorHost for an emulator"),
        ({"logPath": "/log"}, r"logPath is /log, but delivery is ack-on-commit.*Set delivery to log"),
        ({"mode": "FAILFAST"}, r"mode is FAILFAST, but there is no format"),
        ({"topicId": TOPIC}, r"createSubscription=true needs the topicId"),
        ({"format": "json"}, r"needs to know the columns of the payload.*\.schema\("),
        ({"columns": "payload"}, r"'payload', which a message does not have.*message_id, publish_time"),
    ],
)
def test_wrong_options_fail_at_load(spark, emulator, options, says) -> None:
    with pytest.raises(Exception, match=says):
        reader(spark, emulator, **options).load()


def failure(frame: Any) -> str:
    """What the query says when it fails, which it does soon."""
    query = frame.writeStream.format("noop").start()
    try:
        with pytest.raises(StreamingQueryException) as raised:
            assert query.awaitTermination(SECONDS), f"it did not fail within {SECONDS} s"
    finally:
        query.stop()
    return str(raised.value)


@pytest.mark.parametrize(
    ("schema", "options", "says"),
    [
        ("id BIGINT", {}, "Set the option format to json or avro"),
        ("id BIGINT", {"fromat": "json"}, "Did you mean 'format'?"),
        ("id BIGINT", {"format": "avro"}, "format=avro and avroSchema go together"),
        ("id BIGINT, publish_time TIMESTAMP", {"format": "json"}, "Name publish_time in the option columns"),
        ("id BIGINT NOT NULL", {"format": "json"}, "Leave NOT NULL out"),
        (None, {"maxMessages": "10"}, "it is for spark.read"),
        (
            None,
            {"subscriptionId": "projects/test/subscriptions/nobody"},
            "solstice pubsub subscriptions create nobody --topic TOPIC --project test",
        ),
        (
            None,
            {
                "subscriptionId": "projects/test/subscriptions/new",
                "createSubscription": "true",
                "topicId": "projects/test/topics/nobody",
            },
            "Create the topic (solstice pubsub topics create projects/test/topics/nobody)",
        ),
        (
            "id BIGINT",
            {"format": "json", "deadLetterTopic": "projects/test/topics/nobody"},
            "Create it (solstice pubsub topics create projects/test/topics/nobody)",
        ),
    ],
)
def test_what_only_the_query_can_find_fails_it_with_the_fix(spark, emulator, schema, options, says) -> None:
    assert says in failure(reader(spark, emulator, schema, **options).load())


def test_without_permission_the_query_fails_and_names_the_role(spark, emulator) -> None:
    emulator.deny("pubsub.subscriptions.consume")
    try:
        said = failure(reader(spark, emulator).load())
        assert "may not pull from subscription events of project test" in said
        assert "Grant it roles/pubsub.subscriber" in said
        with pytest.raises(Exception, match=r"roles/pubsub\.subscriber"):
            spark.read.format("pubsub").option("subscriptionId", SUBSCRIPTION).option(
                "emulatorHost", emulator.address
            ).load().collect()
    finally:
        emulator.deny()


def test_without_an_emulator_the_query_fails_and_says_where_it_looked(spark, emulator) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
    said = failure(reader(spark, emulator, emulatorHost=address).load())
    assert address in said
    assert "Start it there (solstice pubsub emulator)" in said
