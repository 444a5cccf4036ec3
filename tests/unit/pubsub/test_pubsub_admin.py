"""Topics and subscriptions from the shell, and what is checked before one is used."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from google.pubsub_v1.types import (
    ListTopicsRequest,
    ListTopicsResponse,
    Subscription,
    Topic,
)
from pyspark.sql.streaming.datasource import ReadMaxRows

from solstice.cli._app import build_app, run
from solstice.errors import AlreadyExistsError, NotFoundError, PermissionDeniedError
from solstice.pubsub._admin import Admin
from solstice.pubsub._options import SOURCE_OPTIONS
from solstice.pubsub._reader import PubSubStreamReader
from solstice.pubsub._shape import Shape
from solstice.testing import PubSubEmulator

TOPIC = "projects/p/topics/events"
SUBSCRIPTION = "projects/p/subscriptions/events"


@pytest.fixture
def emulator(monkeypatch: pytest.MonkeyPatch) -> Iterator[PubSubEmulator]:
    with PubSubEmulator() as server:
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", server.address)
        monkeypatch.delenv("GOOGLE_CLOUD_PROJECT", raising=False)
        yield server


@pytest.fixture
def shell(emulator: PubSubEmulator, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Runs ``solstice pubsub ...``; gives the objects it wrote, or the one line of its error."""

    def call(*arguments: str, status: int = 0) -> Any:
        assert run(build_app(rich_help=False), ["pubsub", *arguments]) == status
        written = capsys.readouterr()
        if status:
            assert written.err.count("\n") == 1, "one line"
            return written.err
        return [json.loads(line) for line in written.out.splitlines()]

    return call


@contextmanager
def service(name: str, **calls: Callable[[bytes, Any], bytes]) -> Iterator[str]:
    """A gRPC server with these calls; gives its address."""
    server = grpc.server(ThreadPoolExecutor(2))
    handlers = {call: grpc.unary_unary_rpc_method_handler(answer) for call, answer in calls.items()}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(name, handlers)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(0).wait()


def test_a_topic_lives_from_create_to_delete(shell) -> None:
    topic = {"name": TOPIC, "labels": {}}
    assert shell("topics", "create", "events", "--project", "p") == [topic]
    assert shell("topics", "show", TOPIC) == [topic]
    assert shell("topics", "delete", "events", "--project", "p") == []
    assert "create it: solstice pubsub topics create events --project p" in shell("topics", "show", TOPIC, status=1)


def test_a_subscription_lives_from_create_to_delete(shell) -> None:
    shell("topics", "create", TOPIC)
    created = shell("subscriptions", "create", SUBSCRIPTION, "--topic", TOPIC, "--ack-deadline", "30", "--ordering")
    assert created == [
        {
            "name": SUBSCRIPTION,
            "topic": TOPIC,
            "ack_deadline_s": 30,
            "enable_message_ordering": True,
            "enable_exactly_once_delivery": False,
            "filter": "",
            "dead_letter_topic": None,
            "max_delivery_attempts": None,
            "labels": {},
        }
    ]
    assert shell("subscriptions", "show", SUBSCRIPTION) == created
    assert shell("subscriptions", "delete", SUBSCRIPTION) == []
    message = shell("subscriptions", "show", SUBSCRIPTION, status=1)
    assert "solstice pubsub subscriptions create events --topic TOPIC --project p" in message


def test_every_setting_of_a_subscription_reaches_the_server() -> None:
    seen: list[Subscription] = []

    def create(request: bytes, context: object) -> bytes:
        seen.append(Subscription.deserialize(request))
        return request

    options = ["--exactly-once", "--filter", 'attributes.kind = "a"', "--dead-letter-topic", "dead"]
    with service("google.pubsub.v1.Subscriber", CreateSubscription=create) as address:
        command = ["pubsub", "subscriptions", "create", "events", "--topic", "events", "--project", "p", *options]
        command += ["--max-delivery-attempts", "7", "--endpoint", f"http://{address}"]
        assert run(build_app(rich_help=False), command) == 0
    (subscription,) = seen
    assert (subscription.name, subscription.topic) == (SUBSCRIPTION, TOPIC)
    assert subscription.ack_deadline_seconds == 10
    assert subscription.enable_exactly_once_delivery
    assert subscription.filter == 'attributes.kind = "a"'
    assert subscription.dead_letter_policy.dead_letter_topic == "projects/p/topics/dead"
    assert subscription.dead_letter_policy.max_delivery_attempts == 7


def test_a_list_goes_through_all_pages(capsys) -> None:
    def list_topics(request: bytes, context: object) -> bytes:
        asked = ListTopicsRequest.deserialize(request)
        assert asked.project == "projects/p"
        number = int(asked.page_token or 0)
        page = ListTopicsResponse(
            topics=[Topic(name=f"projects/p/topics/topic-{number}")],
            next_page_token=str(number + 1) if number < 2 else "",
        )
        return ListTopicsResponse.serialize(page)

    with service("google.pubsub.v1.Publisher", ListTopics=list_topics) as address:
        command = ["pubsub", "topics", "list", "--project", "p", "--emulator-host", address]
        assert run(build_app(rich_help=False), command) == 0
    names = [json.loads(line)["name"] for line in capsys.readouterr().out.splitlines()]
    assert names == [f"projects/p/topics/topic-{number}" for number in range(3)]


def test_a_missing_topic_of_a_new_subscription_is_the_one_to_create(shell) -> None:
    message = shell("subscriptions", "create", "events", "--topic", "nobody", "--project", "p", status=1)
    assert "create it: solstice pubsub topics create nobody --project p" in message


@pytest.mark.parametrize("arguments", [["topics", "list"], ["subscriptions", "list"], ["topics", "show", "events"]])
def test_without_a_project_the_error_says_where_to_set_it(shell, arguments) -> None:
    assert "GOOGLE_CLOUD_PROJECT" in shell(*arguments, status=1)


def test_creating_twice_is_refused(emulator) -> None:
    Admin().create_topic(TOPIC)
    with pytest.raises(AlreadyExistsError):
        Admin().create_topic(TOPIC)


def test_a_server_that_is_unavailable_for_a_while_is_asked_again() -> None:
    calls: list[bytes] = []

    def get(request: bytes, context: grpc.ServicerContext) -> bytes:
        calls.append(request)
        if len(calls) < 3:
            context.abort(grpc.StatusCode.UNAVAILABLE, "restarting")
        return Topic.serialize(Topic(name=TOPIC))

    with service("google.pubsub.v1.Publisher", GetTopic=get) as address:
        assert Admin(emulatorHost=address).get_topic(TOPIC)["name"] == TOPIC
    assert len(calls) == 3


def test_a_call_that_is_denied_names_project_and_role(emulator, shell) -> None:
    emulator.deny("pubsub.topics.create")
    message = shell("topics", "create", TOPIC, status=1)
    assert "Grant roles/pubsub.editor on project p" in message


def reader(emulator: PubSubEmulator) -> PubSubStreamReader:
    """A reader whose agent has checked the subscription and pulls."""
    given = {"subscriptionId": SUBSCRIPTION, "emulatorHost": emulator.address}
    built = PubSubStreamReader(SOURCE_OPTIONS.parse(given), Shape())
    built.latestOffset(built.initialOffset(), ReadMaxRows(1))
    return built


def test_a_missing_subscription_is_found_before_pulling(emulator) -> None:
    with pytest.raises(NotFoundError, match=r"subscriptions create events --topic TOPIC --project p"):
        reader(emulator)


@pytest.mark.parametrize(
    "denied", [["pubsub.subscriptions.consume"], ["pubsub.subscriptions.consume", "pubsub.subscriptions.get"]]
)
def test_a_caller_who_may_not_pull_is_told_the_role(emulator, denied) -> None:
    emulator.create_topic(TOPIC)
    emulator.create_subscription(SUBSCRIPTION, TOPIC)
    emulator.deny(*denied)
    with pytest.raises(PermissionDeniedError) as caught:
        reader(emulator)
    for part in ("subscription events of project p", "pubsub.subscriptions.consume", "roles/pubsub.subscriber"):
        assert part in str(caught.value)
    assert caught.value.code == "PERMISSION_DENIED"


def test_a_caller_who_may_pull_but_not_read_the_subscription_pulls(emulator) -> None:
    emulator.create_topic(TOPIC)
    emulator.create_subscription(SUBSCRIPTION, TOPIC)
    emulator.deny("pubsub.subscriptions.get")
    reader(emulator).stop()


def test_the_shell_lists_what_a_project_has(shell) -> None:
    for name in ("first", "second"):
        shell("topics", "create", name, "--project", "p")
        shell("subscriptions", "create", name, "--topic", "first", "--project", "p")
    shell("topics", "create", "third", "--project", "other")
    assert [topic["name"] for topic in shell("topics", "list", "--project", "p")] == [
        "projects/p/topics/first",
        "projects/p/topics/second",
    ]
    listed = shell("subscriptions", "list", "--project", "p")
    assert [(subscription["name"], subscription["topic"]) for subscription in listed] == [
        ("projects/p/subscriptions/first", "projects/p/topics/first"),
        ("projects/p/subscriptions/second", "projects/p/topics/first"),
    ]
    assert shell("topics", "list", "--project", "empty") == []
