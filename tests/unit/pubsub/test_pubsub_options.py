from pathlib import Path

import pytest

from solstice._core.options import OptionTable
from solstice.errors import ConfigError, UnknownOptionError
from solstice.pubsub import Publisher, pull
from solstice.pubsub._connection import connection_keywords
from solstice.pubsub._options import (
    PULL_OPTIONS,
    SINK_OPTIONS,
    SOURCE_OPTIONS,
    check_for_peek,
    check_for_stream,
    parse_keywords,
    parse_source,
    resource_name,
)

FULL = "projects/p/subscriptions/s"


def parse(**options: str):
    return SOURCE_OPTIONS.parse(options, environ={})


def test_a_full_name_needs_no_project() -> None:
    assert resource_name("subscriptions", FULL, parse(subscriptionId=FULL)) == FULL


def test_a_short_name_is_completed_from_the_option_or_the_environment() -> None:
    assert resource_name("subscriptions", "s", parse(subscriptionId="s", projectId="p")) == FULL
    from_environment = SOURCE_OPTIONS.parse({"subscriptionId": "s"}, environ={"GOOGLE_CLOUD_PROJECT": "p"})
    assert resource_name("subscriptions", "s", from_environment) == FULL


@pytest.mark.parametrize("name", ["projects/p/topics/t", "projects//subscriptions/s", "a/b"])
def test_a_name_of_another_kind_is_refused_with_the_right_form(name: str) -> None:
    with pytest.raises(ConfigError, match="projects/PROJECT/subscriptions/NAME"):
        resource_name("subscriptions", name, parse(subscriptionId=name))


def test_a_short_name_without_a_project_says_where_to_set_it() -> None:
    with pytest.raises(ConfigError, match="GOOGLE_CLOUD_PROJECT"):
        resource_name("subscriptions", "s", parse(subscriptionId="s"))


def test_the_subscription_is_required() -> None:
    with pytest.raises(ConfigError, match="subscriptionId"):
        parse()


def test_an_unknown_option_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UnknownOptionError, match="maxMessagesPerTrigger"):
        parse(subscriptionId=FULL, maxMessagePerTrigger="3")


def test_an_ack_deadline_out_of_bounds_names_option_and_value() -> None:
    with pytest.raises(ConfigError, match=r"ackDeadline.*5s|5s.*ackDeadline"):
        parse(subscriptionId=FULL, ackDeadline="5s")


def source(**options: str):
    return parse_source({"subscriptionId": FULL, "emulatorHost": "127.0.0.1:1", **options})


def test_the_defaults_are_those_of_the_docs() -> None:
    values = source()
    assert values["delivery"] == "ack-on-commit"
    assert values["logRetention"] == 600
    assert values["availableNowIdle"] == 5
    assert values["maxMessages"] == 10_000
    assert values["mode"] == "PERMISSIVE"
    assert values["maxOutstandingBytes"] == 1 << 30


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"logPath": "/log"}, "delivery is ack-on-commit.*Set delivery to log"),
        ({"logRetention": "1h"}, "delivery is ack-on-commit.*Set delivery to log"),
        ({"delivery": "log"}, "there is no logPath.*Set logPath"),
        ({"mode": "FAILFAST"}, "mode is FAILFAST, but there is no format.*json or avro"),
        ({"deadLetterTopic": "projects/p/topics/d"}, "there is no format"),
        ({"avroSchema": '"string"'}, "there is no format"),
        ({"format": "avro"}, "avroSchema"),
        ({"format": "json", "avroSchema": '"string"'}, "format=avro and avroSchema go together"),
        ({"format": "json", "mode": "failfast", "deadLetterTopic": "projects/p/topics/d"}, "PERMISSIVE"),
        ({"topicId": "projects/p/topics/t"}, "createSubscription=true needs the topicId"),
        ({"createSubscription": "true"}, "createSubscription is true, but topicId is None"),
    ],
)
def test_options_that_contradict_each_other_say_which_and_the_fix(options: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        source(**options)


def test_options_of_a_stream_and_of_a_peek_are_not_mixed_up() -> None:
    check_for_stream(source(maxMessagesPerTrigger="5", streams="2"))
    check_for_peek(source(maxMessages="5", numPartitions="2"))
    with pytest.raises(ConfigError, match=r"'maxMessages' means nothing to spark\.readStream"):
        check_for_stream(source(maxMessages="5"))
    with pytest.raises(ConfigError, match=r"'delivery' means nothing to spark\.read\."):
        check_for_peek(source(delivery="log", logPath="/log"))


def test_a_keyword_that_nobody_knows_is_a_type_error_with_the_known_ones() -> None:
    with pytest.raises(TypeError, match=r"'batch_size'; known: project_id.*idle_s, columns"):
        pull(FULL, batch_size=3)
    with pytest.raises(TypeError, match=r"'idle_s'; known: project_id.*compression"):
        Publisher("projects/p/topics/t", idle_s=3)
    assert parse_keywords(PULL_OPTIONS, {"max_lease_s": 90.0, "idle_s": None})["maxLeaseDuration"] == 90


def test_what_leaves_the_process_names_the_place_whatever_the_environment_there_says() -> None:
    elsewhere = {"PUBSUB_EMULATOR_HOST": "127.0.0.1:2"}
    for given, environ, expected in (
        ({"endpoint": "http://127.0.0.1:1"}, elsewhere, {"endpoint": "http://127.0.0.1:1"}),
        ({}, elsewhere, {"emulator_host": "127.0.0.1:2"}),
        ({}, {}, {"endpoint": "pubsub.googleapis.com:443"}),
    ):
        keywords = connection_keywords(PULL_OPTIONS.parse({"projectId": "p", **given}, environ=environ))
        assert keywords == {**expected, "project_id": "p", "credentials_file": None}


@pytest.mark.parametrize("table", [SOURCE_OPTIONS, SINK_OPTIONS], ids=["source", "sink"])
def test_the_docs_hold_the_table_of_the_code(table: OptionTable) -> None:
    docs = Path(__file__).parents[3] / "docs" / "pubsub.md"
    assert table.markdown() in docs.read_text(), f"put this into docs/pubsub.md:\n{table.markdown()}"
