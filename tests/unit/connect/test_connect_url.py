import os

import pytest

from solstice.connect import _url
from solstice.connect._transport import channel_options
from solstice.connect._url import parse_endpoint
from solstice.errors import ConfigError, UnknownOptionError

EMPTY = {"USER": "ada"}


def parse(url, **options):
    return parse_endpoint(url, environ=EMPTY, **options)


def test_a_bare_host_gets_the_default_port_the_current_user_and_a_new_session():
    first, second = parse("sc://spark.example"), parse("sc://spark.example/")
    assert (first.host, first.port, first.use_tls, first.user_id) == ("spark.example", 15002, False, "ada")
    assert first.session_id != second.session_id


def test_every_parameter_is_taken():
    session = "11111111-2222-4333-8444-555555555555"
    endpoint = parse(f"sc://h:1/;use_ssl=true;token=t%3D1;user_id=eve;session_id={session};user_agent=app;X-Team=data")
    assert (endpoint.port, endpoint.use_tls, endpoint.token, endpoint.user_id) == (1, True, "t=1", "eve")
    assert endpoint.session_id == session
    assert endpoint.user_agent.startswith("app ")
    assert endpoint.headers == (("x-team", "data"),)


def test_without_a_url_the_environment_names_the_server():
    assert parse_endpoint(None, environ={"SPARK_REMOTE": "sc://there:7", "USER": "ada"}).address == "there:7"


def test_without_any_url_the_error_says_how_to_give_one():
    with pytest.raises(ConfigError, match="SPARK_REMOTE"):
        parse(None)


@pytest.mark.parametrize(
    "url", ["http://host", "sc://", "sc://host/path", "sc://host:99999", "host:15002", "sc://host/;token"]
)
def test_what_is_not_a_server_url_is_refused(url):
    with pytest.raises(ConfigError):
        parse(url)


def test_a_misspelled_parameter_is_refused_with_the_right_name():
    with pytest.raises(UnknownOptionError, match="use_ssl"):
        parse("sc://host/;use_sll=true")


def test_a_session_id_must_be_a_uuid():
    with pytest.raises(ConfigError, match="UUID"):
        parse("sc://host/;session_id=mine")


def test_a_token_for_a_remote_host_turns_tls_on():
    assert parse("sc://spark.example/;token=t").use_tls


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.1.2.3", "[::1]"])
def test_a_token_for_a_local_host_may_stay_in_plaintext(host):
    assert not parse(f"sc://{host}/;token=t").use_tls


def test_a_token_in_plaintext_to_a_remote_host_is_refused_unless_allowed():
    url = "sc://spark.example/;token=secret-t;use_ssl=false"
    with pytest.raises(ConfigError, match="allow_plaintext_token=True") as refusal:
        parse(url)
    assert "secret-t" not in str(refusal.value)
    allowed = parse(url, allow_plaintext_token=True)
    assert (allowed.use_tls, allowed.token) == (False, "secret-t")


def test_a_token_from_the_environment_follows_the_same_rule():
    environ = {"SPARK_CONNECT_AUTHENTICATE_TOKEN": "secret-t", "USER": "ada"}
    assert parse_endpoint("sc://spark.example", environ=environ).use_tls
    with pytest.raises(ConfigError, match="unencrypted"):
        parse_endpoint("sc://spark.example/;use_ssl=false", environ=environ)


def test_neither_token_nor_headers_are_in_the_repr():
    shown = repr(parse("sc://localhost/;token=secret-t;x-key=secret-h"))
    assert "localhost" in shown
    assert "secret" not in shown


def test_an_ipv6_address_is_put_in_brackets_again():
    assert parse("sc://[::1]:15003").address == "[::1]:15003"


def test_a_user_without_a_name_is_called_by_number(monkeypatch):
    def no_entry():
        raise KeyError("getpwuid(): uid not found: 12345")

    monkeypatch.setattr("getpass.getuser", no_entry)
    assert parse_endpoint("sc://host", environ={}).user_id == str(os.getuid())


@pytest.mark.parametrize(
    ("parameter", "option"),
    [("token=secr%C3%A9t", "token"), ("token=secr%0Aet", "token"), ("x-key=secret%0D%0Aa: b", "x-key")],
)
def test_what_no_header_can_carry_is_refused_by_name_and_not_shown(parameter, option):
    with pytest.raises(ConfigError, match=option) as refusal:
        parse(f"sc://localhost/;{parameter}".replace(" ", "%20"))
    assert refusal.value.option == option
    assert "secr" not in str(refusal.value)


def test_a_header_name_that_cannot_be_sent_is_refused():
    with pytest.raises(ConfigError, match="name that no header can have"):
        parse("sc://localhost/;x-%C5%82=1")


def test_message_size_and_keepalive_are_taken():
    keepalive = "grpc_keepalive_time_ms=5;grpc_keepalive_timeout_ms=6;grpc_keepalive_without_calls=false"
    endpoint = parse(f"sc://h/;grpc_max_message_size=1000;{keepalive}")
    options = dict(channel_options(endpoint))
    assert options["grpc.max_receive_message_length"] == options["grpc.max_send_message_length"] == 1000
    assert options["grpc.keepalive_time_ms"] == 5
    assert options["grpc.keepalive_timeout_ms"] == 6
    assert options["grpc.keepalive_permit_without_calls"] == 0
    assert not any("keepalive" in name for name, _ in channel_options(parse("sc://h/;grpc_keepalive_enabled=false")))


def test_every_parameter_of_the_official_client_is_known_with_its_default():
    from pyspark.sql.connect.client import ChannelBuilder

    official = {value for name, value in vars(ChannelBuilder).items() if name.startswith("PARAM_")}
    known = {option.name: option.default for option in _url.OPTIONS.options}
    assert official <= set(known)
    for name in ("ENABLED", "TIME_MS", "TIMEOUT_MS", "WITHOUT_CALLS"):
        default = getattr(ChannelBuilder, f"GRPC_DEFAULT_KEEPALIVE_{name}")
        assert known[f"grpc_keepalive_{name.lower()}"] == default
    assert known["grpc_max_message_size"] == ChannelBuilder.GRPC_MAX_MESSAGE_LENGTH_DEFAULT


def test_a_token_and_headers_of_the_call_win_over_those_of_the_url():
    endpoint = parse("sc://spark.example/;token=url;x-team=url", token="mine", headers={"X-Team": "mine", "other": "1"})
    assert endpoint.token == "mine"
    assert endpoint.headers == (("x-team", "mine"), ("other", "1"))
    assert endpoint.use_tls
    assert "mine" not in repr(endpoint)


def test_a_token_function_turns_tls_on_too():
    assert parse("sc://spark.example", token=lambda: "t").use_tls
    with pytest.raises(ConfigError, match="unencrypted"):
        parse("sc://spark.example/;use_ssl=false", token=lambda: "t")


def test_a_url_that_is_no_text_is_refused():
    with pytest.raises(ConfigError, match="text, not 5"):
        parse_endpoint(5)
