import pytest

from solstice.errors import ConfigError, UnknownOptionError
from solstice.pubsub._options import SOURCE_OPTIONS, resource_name

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
