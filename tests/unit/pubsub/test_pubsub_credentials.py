"""Credentials and TLS, end to end: a token server and an emulator that asks for its token, both real."""

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest
from cryptography.exceptions import InvalidSignature
from google.iam.v1 import iam_policy_pb2
from google.pubsub_v1.types import StreamingPullResponse
from pyspark.sql.streaming.datasource import ReadMaxRows

from pubsub_authority import Authority, ServiceAccount, TokenServer, user_file
from solstice import _native
from solstice.errors import ConfigError, PubSubError, UnauthenticatedError, UnavailableError
from solstice.pubsub import publish
from solstice.pubsub._admin import Admin
from solstice.pubsub._options import SOURCE_OPTIONS
from solstice.pubsub._reader import PubSubStreamReader
from solstice.pubsub._shape import Shape
from solstice.testing import PubSubEmulator

TOPIC = "projects/p/topics/events"
SUBSCRIPTION = "projects/p/subscriptions/events"
FOUND = {"name": TOPIC, "labels": {}}


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture
def tokens() -> Iterator[TokenServer]:
    with TokenServer() as server:
        yield server


@pytest.fixture
def server(authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PubSubEmulator]:
    """An emulator with TLS, whose CA is trusted, that wants to be shown "token". No credentials but the test's own."""
    trusted = tmp_path / "ca.pem"
    trusted.write_text(authority.certificate)
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "PUBSUB_EMULATOR_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "no-gcloud"))
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:1")
    with PubSubEmulator(tls=authority.identity) as emulator:
        emulator.create_topic(TOPIC)
        emulator.require_token("token")
        yield emulator


@pytest.fixture
def account(tmp_path: Path, tokens: TokenServer) -> ServiceAccount:
    return ServiceAccount(tmp_path, tokens.uri)


def get_topic(server: PubSubEmulator, credentials: Path | None = None) -> dict[str, Any]:
    given = {} if credentials is None else {"credentialsFile": str(credentials)}
    return Admin(endpoint=server.address, **given).get_topic(TOPIC)


def failing(error: type[PubSubError | ConfigError], call: Callable[[], object], *secrets: str) -> str:
    """The message of the error, in which no secret is."""
    with pytest.raises(error) as caught:
        call()
    assert caught.value.remedy, "an error says what to do"
    shown = f"{caught.value} {caught.value!r}"
    assert not [secret for secret in ("s3cret", "PRIVATE KEY", *secrets) if secret in shown]
    return str(caught.value)


def test_a_service_account_signs_for_a_token_of_pubsub(server, tokens, account) -> None:
    assert get_topic(server, account.file) == FOUND
    (form,) = tokens.requests
    assert form["grant_type"] == "urn:ietf:params:oauth:grant-type:jwt-bearer"
    header, claims = account.claims(form["assertion"])
    assert header == {"alg": "RS256", "typ": "JWT", "kid": "key-1"}
    assert (claims["iss"], claims["aud"]) == (account.email, tokens.uri)
    assert claims["scope"] == "https://www.googleapis.com/auth/pubsub"
    assert claims["exp"] == claims["iat"] + 3600
    assert abs(claims["iat"] - time.time()) < 60


def test_an_authorized_user_refreshes(server, tokens, tmp_path) -> None:
    assert get_topic(server, user_file(tmp_path, tokens.uri)) == FOUND
    assert tokens.requests == [
        {
            "grant_type": "refresh_token",
            "client_id": "client",
            "client_secret": "s3cret-client",
            "refresh_token": "s3cret-refresh",
        }
    ]


def test_the_file_of_gcloud_is_found_and_the_environments_file_comes_first(
    server, tokens, account, tmp_path, monkeypatch
) -> None:
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    user_file(tmp_path, tokens.uri, "application_default_credentials.json")
    assert get_topic(server) == FOUND
    assert tokens.requests[-1]["grant_type"] == "refresh_token"
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(account.file))
    assert get_topic(server) == FOUND
    assert "assertion" in tokens.requests[-1]


def test_the_metadata_server_gives_the_token_of_the_machine(server, tokens, monkeypatch) -> None:
    monkeypatch.setenv("GCE_METADATA_HOST", tokens.host)
    assert get_topic(server) == FOUND
    assert tokens.requests == [{}]


def test_without_any_credentials_the_error_says_how_to_get_some(server) -> None:
    message = failing(UnauthenticatedError, lambda: get_topic(server))
    assert "no credentialsFile, no login of gcloud, and no metadata server" in message
    assert "gcloud auth application-default login" in message


def test_a_token_serves_many_calls(server, tokens, account) -> None:
    for _ in range(3):
        assert get_topic(server, account.file) == FOUND
    assert len(tokens.requests) == 1


def test_a_token_is_renewed_before_it_expires(server, tokens, account) -> None:
    tokens.answer = lambda form: (200, tokens.token("token", expires_in=2 if len(tokens.requests) == 1 else 3600))
    deadline = time.monotonic() + 10
    while len(tokens.requests) < 2:
        assert get_topic(server, account.file) == FOUND
        assert time.monotonic() < deadline, "nobody renews the token"
        time.sleep(0.05)
    time.sleep(0.5)
    assert get_topic(server, account.file) == FOUND
    assert len(tokens.requests) == 2, "by one task"


def test_a_token_that_the_server_refuses_is_replaced(server, tokens, account) -> None:
    tokens.answer = lambda form: (200, tokens.token(f"token-{len(tokens.requests)}"))
    server.require_token("token-1")
    assert get_topic(server, account.file) == FOUND
    server.require_token("token-2")
    assert get_topic(server, account.file) == FOUND
    assert len(tokens.requests) == 2
    server.require_token(None)


def test_a_token_that_is_refused_again_is_an_error_that_names_the_account(server, tokens, account) -> None:
    server.require_token("another")
    message = failing(UnauthenticatedError, lambda: get_topic(server, account.file))
    assert account.email in message
    assert "also a fresh one" in message
    assert len(tokens.requests) == 2
    server.require_token("token")
    assert get_topic(server, account.file) == FOUND, "the next call starts over"


def test_a_token_server_that_is_down_for_a_while_delays_the_call(server, tokens, account) -> None:
    tokens.answer = lambda form: (503, {}) if len(tokens.requests) < 3 else (200, tokens.token("token"))
    assert get_topic(server, account.file) == FOUND
    assert len(tokens.requests) == 3


def test_a_key_that_the_token_server_does_not_know_is_an_error_at_once(server, tokens, account, tmp_path) -> None:
    (tmp_path / "other").mkdir()
    stranger = ServiceAccount(tmp_path / "other", tokens.uri)

    def verify(form: dict[str, str]) -> tuple[int, dict[str, Any]]:
        try:
            account.claims(form["assertion"])
        except InvalidSignature:
            return 400, {"error": "invalid_grant", "error_description": "Invalid JWT Signature."}
        return 200, tokens.token("token")

    tokens.answer = verify
    message = failing(UnauthenticatedError, lambda: get_topic(server, stranger.file))
    assert "invalid_grant, Invalid JWT Signature." in message
    assert len(tokens.requests) == 1
    assert get_topic(server, account.file) == FOUND


def test_a_changed_key_file_is_read_for_the_next_token(server, tokens, account) -> None:
    assert get_topic(server, account.file) == FOUND
    account.file.write_text("gone")
    assert get_topic(server, account.file) == FOUND, "the token is still good"
    server.require_token("another")
    assert "is no JSON" in failing(ConfigError, lambda: get_topic(server, account.file))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("{", "is no JSON"),
        ("{}", "has no 'type'"),
        ('{"type": "external_account", "audience": "s3cret"}', "'external_account', which Solstice cannot use"),
        ('{"type": "service_account", "client_email": "a", "private_key": "s3cret"}', "no RSA key"),
        ('{"type": "authorized_user", "client_id": "a", "client_secret": "s3cret"}', "has no 'refresh_token'"),
    ],
)
def test_a_malformed_file_is_named_with_its_fault(server, tmp_path, content, expected) -> None:
    path = tmp_path / "bad.json"
    path.write_text(content)
    message = failing(ConfigError, lambda: get_topic(server, path))
    assert expected in message
    assert str(path) in message


def test_a_missing_file_is_named_with_its_option(server) -> None:
    message = failing(ConfigError, lambda: get_topic(server, Path("/nowhere/key.json")))
    assert "credentialsFile is '/nowhere/key.json', which cannot be read" in message


def test_secrets_are_in_no_log(server, tokens, tmp_path, caplog) -> None:
    caplog.set_level("DEBUG")
    tokens.answer = lambda form: (503, {}) if len(tokens.requests) < 3 else (200, tokens.token("token-s3cret"))
    failing(UnauthenticatedError, lambda: get_topic(server, user_file(tmp_path, tokens.uri)))
    deadline = time.monotonic() + 10
    while "trying again" not in caplog.text:
        assert time.monotonic() < deadline, "the retry is in the log"
        time.sleep(0.02)
    assert "s3cret" not in caplog.text


def test_a_connection_shows_no_more_than_its_place(tmp_path) -> None:
    place = _native.Connection("host:443", False, str(tmp_path / "key.json"))
    assert "host:443" in repr(place)
    assert json.loads(place.as_json()) == {
        "endpoint": "host:443",
        "plaintext": False,
        "credentials_file": str(tmp_path / "key.json"),
    }


def test_a_server_of_an_unknown_authority_is_refused_with_the_fix(server, account, monkeypatch, tmp_path) -> None:
    other = tmp_path / "other.pem"
    other.write_text(Authority().certificate)
    monkeypatch.setenv("SSL_CERT_FILE", str(other))
    message = failing(UnavailableError, lambda: get_topic(server, account.file))
    assert "invalid peer certificate" in message
    assert "SSL_CERT_FILE" in message


def test_a_server_with_tls_that_is_spoken_to_without_is_named_with_the_fix(server) -> None:
    for options in ({"emulatorHost": server.address}, {"endpoint": f"http://{server.address}"}):
        message = failing(ConfigError, lambda options=options: Admin(**options).get_topic(TOPIC))
        assert f"https://{server.address}" in message


def test_a_server_without_tls_that_is_spoken_to_with_tls_is_named_with_the_fix(server, account) -> None:
    with PubSubEmulator() as plain:
        message = failing(UnavailableError, lambda: get_topic(plain, account.file))
    assert "does not speak TLS" in message
    assert "http://host:port" in message


def test_publishing_shows_the_token_too(server, account) -> None:
    publish(TOPIC, pa.table({"data": ["x"]}), endpoint=server.address, credentials_file=str(account.file))
    assert server.published(TOPIC) == 1


def read(reader: PubSubStreamReader, count: int) -> list[bytes]:
    """The payloads of the next ``count`` rows, all acknowledged but those of the last batch."""
    start, payloads, deadline = reader.initialOffset(), [], time.monotonic() + 20
    while len(payloads) < count:
        assert time.monotonic() < deadline, "the rows do not come"
        end = reader.latestOffset(start, ReadMaxRows(100))
        parts = reader.partitions(start, end)
        payloads += [row for part in parts for batch in reader.read(part) for row in batch["data"].to_pylist()]
        start = end
    return payloads


def new_reader(address: str, credentials: Path) -> PubSubStreamReader:
    options = {"subscriptionId": SUBSCRIPTION, "endpoint": address, "credentialsFile": str(credentials)}
    return PubSubStreamReader(SOURCE_OPTIONS.parse(options), Shape())


def test_a_query_reads_and_acknowledges_while_its_token_changes(server, tokens, account) -> None:
    server.create_subscription(SUBSCRIPTION, TOPIC)
    tokens.answer = lambda form: (200, tokens.token(f"token-{len(tokens.requests)}"))
    server.require_token("token-1")
    publish(TOPIC, pa.table({"data": ["a", "b"]}), endpoint=server.address, credentials_file=str(account.file))
    server.require_token("token-2")
    reader = new_reader(server.address, account.file)
    assert sorted(read(reader, 2)) == [b"a", b"b"]
    server.require_token("token-3")
    deadline = time.monotonic() + 10
    while server.counters(SUBSCRIPTION)["acked"] < 2:
        assert time.monotonic() < deadline, "the rows are not acknowledged"
        reader.latestOffset({"epoch": reader._agent.epoch, "seq": 1}, ReadMaxRows(1))
    reader.stop()


@contextmanager
def stub_service(authority: Authority, streaming_pull: Callable[..., Iterator[bytes]]) -> Iterator[str]:
    """A Pub/Sub with TLS that has the subscription, and streams as the test wants; gives its address."""

    def permissions(request: bytes, context: object) -> bytes:
        asked = iam_policy_pb2.TestIamPermissionsRequest.FromString(request)
        return iam_policy_pb2.TestIamPermissionsResponse(permissions=asked.permissions).SerializeToString()

    unary, stream = grpc.unary_unary_rpc_method_handler, grpc.stream_stream_rpc_method_handler
    subscriber = {
        "GetSubscription": unary(lambda request, context: b""),
        "Acknowledge": unary(lambda request, context: b""),
        "ModifyAckDeadline": unary(lambda request, context: b""),
        "StreamingPull": stream(streaming_pull),
    }
    server = grpc.server(ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers(
        [
            grpc.method_handlers_generic_handler("google.pubsub.v1.Subscriber", subscriber),
            grpc.method_handlers_generic_handler("google.iam.v1.IAMPolicy", {"TestIamPermissions": unary(permissions)}),
        ]
    )
    certificate, key = (text.encode() for text in authority.identity)
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(key, certificate)]))
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(0).wait()


def test_a_stream_that_ends_with_a_refused_token_is_opened_again_with_another(
    server, authority, tokens, account
) -> None:
    tokens.answer = lambda form: (200, tokens.token(f"token-{len(tokens.requests)}"))
    shown: list[str] = []

    def pull(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        shown.append(dict(context.invocation_metadata())["authorization"])
        message = {"data": shown[-1].encode(), "message_id": str(len(shown))}
        yield StreamingPullResponse.serialize(
            StreamingPullResponse(received_messages=[{"ack_id": "a", "message": message}])
        )
        if len(shown) == 1:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "expired")
        for _ in requests:
            pass

    with stub_service(authority, pull) as address:
        reader = new_reader(address, account.file)
        assert read(reader, 2) == [b"Bearer token-1", b"Bearer token-2"]
        reader.stop()


def test_a_stream_whose_tokens_are_all_refused_fails_the_query(server, authority, tokens, account) -> None:
    def refuse(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        context.abort(grpc.StatusCode.UNAUTHENTICATED, "never heard of you")

    with stub_service(authority, refuse) as address:
        reader = new_reader(address, account.file)
        message = failing(UnauthenticatedError, lambda: read(reader, 1))
        assert account.email in message
        assert "never heard of you" in message
        reader.stop()
    assert len(tokens.requests) == 2
