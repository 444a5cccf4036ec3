"""Where Pub/Sub is, from the options and the environment."""

import json

import pytest

from solstice.errors import ConfigError
from solstice.pubsub._connection import connection
from solstice.pubsub._options import PUBLISH_OPTIONS

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
