"""Topics and subscriptions: created, read, listed, deleted. What the command line does."""

from contextlib import suppress
from typing import Any, Self

from solstice import _native
from solstice._core.logging import start_native_logging
from solstice._core.options import OptionValues
from solstice.errors import AlreadyExistsError, ConfigError, NotFoundError, PermissionDeniedError
from solstice.pubsub._connection import connection
from solstice.pubsub._options import ADMIN_OPTIONS, project_name, resource_name


class Admin:
    """The calls on topics and subscriptions at one place. Names without a project are those of ``projectId``."""

    def __init__(self, **options: str) -> None:
        self._open(ADMIN_OPTIONS.parse(options))

    @classmethod
    def of(cls, values: OptionValues) -> Self:
        """At the place that parsed options name."""
        admin = cls.__new__(cls)
        admin._open(values)
        return admin

    def _open(self, values: OptionValues) -> None:
        self._values = values
        self._connection = connection(values)
        start_native_logging()

    def create_topic(self, topic: str) -> dict[str, Any]:
        """Create a topic; gives what the server made of it."""
        return _native.create_topic(self._connection, self._topic(topic))

    def get_topic(self, topic: str) -> dict[str, Any]:
        """Read a topic."""
        return _native.get_topic(self._connection, self._topic(topic))

    def list_topics(self) -> list[dict[str, Any]]:
        """The topics of the project."""
        return _native.list_topics(self._connection, project_name(self._values))

    def delete_topic(self, topic: str) -> None:
        """Delete a topic; its subscriptions stay, with what they hold."""
        _native.delete_topic(self._connection, self._topic(topic))

    def create_subscription(
        self,
        subscription: str,
        topic: str,
        *,
        ack_deadline_s: int = 10,
        enable_message_ordering: bool = False,
        enable_exactly_once_delivery: bool = False,
        filter: str = "",
        dead_letter_topic: str | None = None,
        max_delivery_attempts: int = 5,
    ) -> dict[str, Any]:
        """Create a subscription of a topic; it gets what is published from now on."""
        return _native.create_subscription(
            self._connection,
            self._subscription(subscription),
            self._topic(topic),
            ack_deadline_s=ack_deadline_s,
            enable_message_ordering=enable_message_ordering,
            enable_exactly_once_delivery=enable_exactly_once_delivery,
            filter=filter,
            dead_letter_topic=None if dead_letter_topic is None else self._topic(dead_letter_topic),
            max_delivery_attempts=max_delivery_attempts,
        )

    def get_subscription(self, subscription: str) -> dict[str, Any]:
        """Read a subscription."""
        return _native.get_subscription(self._connection, self._subscription(subscription))

    def list_subscriptions(self) -> list[dict[str, Any]]:
        """The subscriptions of the project."""
        return _native.list_subscriptions(self._connection, project_name(self._values))

    def delete_subscription(self, subscription: str) -> None:
        """Delete a subscription and what it holds."""
        _native.delete_subscription(self._connection, self._subscription(subscription))

    def _topic(self, given: str) -> str:
        return resource_name("topics", given, self._values)

    def _subscription(self, given: str) -> str:
        return resource_name("subscriptions", given, self._values)


def ensure_subscription(values: OptionValues) -> None:
    """Make the subscription of ``createSubscription`` where it is missing."""
    admin = Admin.of(values)
    subscription = resource_name("subscriptions", values["subscriptionId"], values)
    topic = resource_name("topics", values["topicId"], values)
    try:
        try:
            found = admin.get_subscription(subscription)
        except NotFoundError:
            found = admin.create_subscription(subscription, topic, ack_deadline_s=round(values["ackDeadline"]))
    except AlreadyExistsError:
        found = admin.get_subscription(subscription)  # somebody else was quicker
    except NotFoundError as error:
        raise NotFoundError(
            f"createSubscription cannot make {subscription}: there is no topic {topic}.",
            code=error.code,
            remedy=f"Create the topic (solstice pubsub topics create {topic}), or correct topicId.",
        ) from error
    if found["topic"] != topic:
        raise ConfigError(
            f"topicId is {topic!r}, but {subscription} is there already and belongs to {found['topic']!r}.",
            option="topicId",
            value=topic,
            remedy="Give the topic of the subscription, or leave topicId and createSubscription out.",
        )


def check_dead_letter_topic(values: OptionValues) -> None:
    """Find out now, and not at the first corrupt message, that there is no ``deadLetterTopic`` or that it loops."""
    topic = resource_name("topics", values["deadLetterTopic"], values, "deadLetterTopic")
    admin = Admin.of(values)
    try:
        admin.get_topic(topic)
    except PermissionDeniedError:
        pass  # who may publish to a topic need not be allowed to read it
    except NotFoundError as error:
        raise NotFoundError(
            f"deadLetterTopic is {topic}, and there is no such topic.",
            code=error.code,
            remedy=f"Create it (solstice pubsub topics create {topic}), or correct deadLetterTopic.",
        ) from error
    with suppress(PermissionDeniedError, NotFoundError):  # the agent says what is missing
        read = admin.get_subscription(resource_name("subscriptions", values["subscriptionId"], values))
        if read["topic"] == topic and not read["filter"]:  # a filter may keep dead letters out
            raise ConfigError(
                f"deadLetterTopic is {topic}, the topic of the subscription itself: dead letters would come back and "
                "be published again, without an end.",
                option="deadLetterTopic",
                value=topic,
                remedy="Give a topic of its own.",
            )
