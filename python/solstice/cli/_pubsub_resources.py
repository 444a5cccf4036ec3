"""``solstice pubsub topics`` and ``solstice pubsub subscriptions``: one JSON object a line, for people and for jq."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from solstice.cli._output import console

if TYPE_CHECKING:
    from solstice.pubsub._admin import Admin

topics = typer.Typer(help="Create, show, list and delete topics.", no_args_is_help=True)
subscriptions = typer.Typer(help="Create, show, list and delete subscriptions.", no_args_is_help=True)

Project = Annotated[str | None, typer.Option(help="The project of names without one; else GOOGLE_CLOUD_PROJECT.")]
EmulatorHost = Annotated[str | None, typer.Option(help="host:port of an emulator; else PUBSUB_EMULATOR_HOST.")]
Endpoint = Annotated[str | None, typer.Option(help="host:port of Pub/Sub; http://host:port goes without TLS.")]
CredentialsFile = Annotated[
    str | None, typer.Option(help="A key or login; else GOOGLE_APPLICATION_CREDENTIALS, gcloud's, the machine's.")
]
Topic = Annotated[str, typer.Argument(help="projects/P/topics/T, or T alone.")]
Subscription = Annotated[str, typer.Argument(help="projects/P/subscriptions/S, or S alone.")]


def _admin(
    project: str | None, emulator_host: str | None, endpoint: str | None, credentials_file: str | None
) -> "Admin":
    from solstice.pubsub._admin import Admin

    options = {
        "projectId": project,
        "emulatorHost": emulator_host,
        "endpoint": endpoint,
        "credentialsFile": credentials_file,
    }
    return Admin(**{name: value for name, value in options.items() if value is not None})


def _show(fields: dict[str, Any]) -> None:
    console().print(json.dumps(fields, ensure_ascii=False))


@topics.command("list", epilog="Example: solstice pubsub topics list --project p | jq -r .name")
def list_topics(
    project: Project = None,
    emulator_host: EmulatorHost = None,
    endpoint: Endpoint = None,
    credentials_file: CredentialsFile = None,
) -> None:
    """The topics of a project, one JSON object a line."""
    for fields in _admin(project, emulator_host, endpoint, credentials_file).list_topics():
        _show(fields)


@topics.command("create", epilog="Example: solstice pubsub topics create events --project p")
def create_topic(
    topic: Topic,
    project: Project = None,
    emulator_host: EmulatorHost = None,
    endpoint: Endpoint = None,
    credentials_file: CredentialsFile = None,
) -> None:
    """Create a topic and show it."""
    _show(_admin(project, emulator_host, endpoint, credentials_file).create_topic(topic))


@topics.command("show", epilog="Example: solstice pubsub topics show projects/p/topics/events")
def show_topic(
    topic: Topic,
    project: Project = None,
    emulator_host: EmulatorHost = None,
    endpoint: Endpoint = None,
    credentials_file: CredentialsFile = None,
) -> None:
    """Show a topic as a JSON object."""
    _show(_admin(project, emulator_host, endpoint, credentials_file).get_topic(topic))


@topics.command("delete", epilog="Example: solstice pubsub topics delete events --project p")
def delete_topic(
    topic: Topic,
    project: Project = None,
    emulator_host: EmulatorHost = None,
    endpoint: Endpoint = None,
    credentials_file: CredentialsFile = None,
) -> None:
    """Delete a topic. Its subscriptions stay, with what they hold."""
    _admin(project, emulator_host, endpoint, credentials_file).delete_topic(topic)


@subscriptions.command("list", epilog="Example: solstice pubsub subscriptions list --project p | jq -r .name")
def list_subscriptions(
    project: Project = None,
    emulator_host: EmulatorHost = None,
    endpoint: Endpoint = None,
    credentials_file: CredentialsFile = None,
) -> None:
    """The subscriptions of a project, one JSON object a line."""
    for fields in _admin(project, emulator_host, endpoint, credentials_file).list_subscriptions():
        _show(fields)


@subscriptions.command(
    "create", epilog="Example: solstice pubsub subscriptions create events --topic events --project p --ordering"
)
def create_subscription(
    subscription: Subscription,
    topic: Annotated[str, typer.Option(help="projects/P/topics/T, or T alone.")],
    ack_deadline: Annotated[int, typer.Option(help="The lease of a message, in seconds.", min=10, max=600)] = 10,
    ordering: Annotated[bool, typer.Option("--ordering", help="Messages of one ordering key come in order.")] = False,
    exactly_once: Annotated[bool, typer.Option("--exactly-once", help="Acknowledgements are confirmed.")] = False,
    message_filter: Annotated[
        str, typer.Option("--filter", help="Only these messages, such as 'attributes.kind = \"a\"'.")
    ] = "",
    dead_letter_topic: Annotated[
        str | None, typer.Option(help="Where messages go that were delivered too often.")
    ] = None,
    max_delivery_attempts: Annotated[
        int, typer.Option(help="How often is too often, with a dead-letter topic.", min=5, max=100)
    ] = 5,
    project: Project = None,
    emulator_host: EmulatorHost = None,
    endpoint: Endpoint = None,
    credentials_file: CredentialsFile = None,
) -> None:
    """Create a subscription and show it. It gets what is published from now on."""
    created = _admin(project, emulator_host, endpoint, credentials_file).create_subscription(
        subscription,
        topic,
        ack_deadline_s=ack_deadline,
        enable_message_ordering=ordering,
        enable_exactly_once_delivery=exactly_once,
        filter=message_filter,
        dead_letter_topic=dead_letter_topic,
        max_delivery_attempts=max_delivery_attempts,
    )
    _show(created)


@subscriptions.command("show", epilog="Example: solstice pubsub subscriptions show projects/p/subscriptions/events")
def show_subscription(
    subscription: Subscription,
    project: Project = None,
    emulator_host: EmulatorHost = None,
    endpoint: Endpoint = None,
    credentials_file: CredentialsFile = None,
) -> None:
    """Show a subscription as a JSON object."""
    _show(_admin(project, emulator_host, endpoint, credentials_file).get_subscription(subscription))


@subscriptions.command("delete", epilog="Example: solstice pubsub subscriptions delete events --project p")
def delete_subscription(
    subscription: Subscription,
    project: Project = None,
    emulator_host: EmulatorHost = None,
    endpoint: Endpoint = None,
    credentials_file: CredentialsFile = None,
) -> None:
    """Delete a subscription and what it holds."""
    _admin(project, emulator_host, endpoint, credentials_file).delete_subscription(subscription)
