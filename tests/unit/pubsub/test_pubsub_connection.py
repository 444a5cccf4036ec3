"""Where Pub/Sub is, from the options and the environment, and the one connection of a process to there."""

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import psutil
import pytest

import solstice
from solstice.errors import ConfigError, UnavailableError
from solstice.pubsub._admin import Admin
from solstice.pubsub._connection import connection
from solstice.pubsub._options import PUBLISH_OPTIONS
from solstice.testing import PubSubEmulator

TOPIC = "projects/p/topics/events"

GOOGLE = "pubsub.googleapis.com:443"


def place(environ: dict[str, str] | None = None, **options: str) -> tuple[str, bool, str | None]:
    """(endpoint, plaintext, credentials file)"""
    found = json.loads(connection(PUBLISH_OPTIONS.parse(options, environ=environ or {})).as_json())
    return found["endpoint"], found["plaintext"], found["credentials_file"]


def test_without_options_it_is_google_with_tls() -> None:
    assert place() == (GOOGLE, False, None)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"endpoint": "host:443"}, ("host:443", False, None)),
        ({"endpoint": "https://host:443"}, ("host:443", False, None)),
        ({"endpoint": "http://host:80"}, ("host:80", True, None)),
        ({"endpoint": "[::1]:443"}, ("[::1]:443", False, None)),
        ({"emulatorHost": "localhost:8085"}, ("localhost:8085", True, None)),
        ({"credentialsFile": "key.json"}, (GOOGLE, False, "key.json")),
    ],
)
def test_options_say_where_and_how(options: dict[str, str], expected: tuple[str, bool, str | None]) -> None:
    assert place(**options) == expected


def test_the_environment_counts_where_no_option_is_set() -> None:
    environ = {"PUBSUB_EMULATOR_HOST": "emulator:1", "GOOGLE_APPLICATION_CREDENTIALS": "key.json"}
    assert place(environ) == ("emulator:1", True, None), "an emulator sees no credentials"
    assert place({"GOOGLE_APPLICATION_CREDENTIALS": "key.json"}) == (GOOGLE, False, "key.json")
    assert place(environ, credentialsFile="mine.json", endpoint="host:443") == ("host:443", False, "mine.json")


def test_an_endpoint_beats_the_emulator_of_the_environment() -> None:
    assert place({"PUBSUB_EMULATOR_HOST": "emulator:1"}, endpoint="host:443") == ("host:443", False, None)


def test_endpoint_and_emulator_together_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"endpoint is 'a:1' and emulatorHost is 'b:2'.*Set emulatorHost for"):
        place(endpoint="a:1", emulatorHost="b:2")


@pytest.mark.parametrize("address", ["localhost", ":8085", "localhost:port", "host:0", "host:65536", "a:1:2", "u@h:1"])
@pytest.mark.parametrize("option", ["endpoint", "emulatorHost"])
def test_an_address_that_is_none_names_option_value_and_fix(option: str, address: str) -> None:
    with pytest.raises(ConfigError, match=f"{option} is '{address}'.*host:port") as caught:
        place(**{option: address})
    assert (caught.value.option, caught.value.value) == (option, address)


@pytest.mark.parametrize("address", ["ftp://host:21", "grpc://host:443", "https://host", "https://host:443/path"])
def test_a_url_that_is_no_endpoint_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="endpoint is '"):
        place(endpoint=address)


def connections_to(port: int) -> int:
    """How many of this process's sockets are connected to a port."""
    sockets = psutil.Process().net_connections("tcp")
    return sum(s.status == psutil.CONN_ESTABLISHED and bool(s.raddr) and s.raddr.port == port for s in sockets)


def test_everybody_in_a_process_shares_one_connection() -> None:
    with PubSubEmulator() as emulator:
        emulator.create_topic(TOPIC)
        with ThreadPoolExecutor(16) as threads:
            for found in threads.map(lambda _: Admin(emulatorHost=emulator.address).get_topic(TOPIC), range(64)):
                assert found["name"] == TOPIC
        assert connections_to(emulator.port) == 1


def test_a_broken_connection_is_made_again_by_the_next_call() -> None:
    with PubSubEmulator() as emulator:
        emulator.create_topic(TOPIC)
        Admin(emulatorHost=emulator.address).get_topic(TOPIC)
    with PubSubEmulator(port=emulator.port) as next_one:
        next_one.create_topic(TOPIC)
        assert Admin(emulatorHost=emulator.address).get_topic(TOPIC)["name"] == TOPIC


def test_a_forked_process_has_connections_of_its_own() -> None:
    script = """
import os, sys, warnings
warnings.simplefilter("ignore")
from solstice.pubsub._admin import Admin
admin = Admin(emulatorHost=sys.argv[1])
admin.create_topic("projects/p/topics/parent-1")
child = os.fork()
admin.create_topic(f"projects/p/topics/{'parent' if child else 'child'}-2")
if not child:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
admin.create_topic("projects/p/topics/parent-3")
"""
    with PubSubEmulator() as emulator:
        subprocess.run([sys.executable, "-c", script, emulator.address], timeout=60, check=True)
        names = {"parent-1", "parent-2", "child-2", "parent-3"}
        for name in names:
            assert emulator.published(f"projects/p/topics/{name}") == 0, "it is there"


def test_a_place_where_nobody_listens_is_an_error_at_once() -> None:
    started = time.monotonic()
    with pytest.raises(UnavailableError, match=r"no Pub/Sub answers at 127\.0\.0\.1:1: .*refused.*emulatorHost"):
        Admin(emulatorHost="127.0.0.1:1").get_topic(TOPIC)
    assert time.monotonic() - started < 5


def test_the_user_agent_is_solstice() -> None:
    seen: list[str] = []

    def answer(request: object, context: grpc.ServicerContext) -> bytes:
        seen.append(dict(context.invocation_metadata())["user-agent"])
        return b""

    server = grpc.server(ThreadPoolExecutor(1))
    handler = grpc.unary_unary_rpc_method_handler(answer)
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("google.pubsub.v1.Publisher", {"GetTopic": handler})]
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        Admin(emulatorHost=f"127.0.0.1:{port}").get_topic(TOPIC)
    finally:
        server.stop(0).wait()
    assert seen[0].startswith(f"solstice/{solstice.__version__} ")
