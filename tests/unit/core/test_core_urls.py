"""URLs: their parts, and what a wrong one says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice._core.urls import Url, parse_url
from solstice.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("sc://localhost", Url("sc", "localhost", None, "")),
        ("SC://localhost:15002", Url("sc", "localhost", 15002, "")),
        ("sc://h:1/;token=abc;user_id=me", Url("sc", "h", 1, "/", {"token": "abc", "user_id": "me"})),
        ("sc://h/;", Url("sc", "h", None, "/")),
        ("kafka://h:9092/topic?acks=all&x=%26", Url("kafka", "h", 9092, "/topic", {"acks": "all", "x": "&"})),
        ("sc://[::1]:15002/", Url("sc", "::1", 15002, "/")),
        ("sc://[::1]", Url("sc", "::1", None, "")),
        ("file:///var/a%20b", Url("file", "", None, "/var/a b")),
        ("sqlite:///q.db?timeout=5s", Url("sqlite", "", None, "/q.db", {"timeout": "5s"})),
        ("kafka://a:1,b,[::1]:2/job", Url("kafka", "a", 1, "/job", {}, (("b", None), ("::1", 2)))),
        ("s3://bucket/p/q", Url("s3", "bucket", None, "/p/q")),
        ("sc://h/;token=a=b==", Url("sc", "h", None, "/", {"token": "a=b=="})),
        ("sc://h/;a=", Url("sc", "h", None, "/", {"a": ""})),
    ],
)
def test_a_url_is_split_into_its_parts(text, url):
    assert parse_url(text) == url


def test_the_addresses_of_a_cluster_are_kept_together():
    url = parse_url("kafka://a:1,b,[::1]:2/job")
    assert url.addresses == "a:1,b,[::1]:2"
    assert str(url) == "kafka://a:1,b,[::1]:2/job"
    with pytest.raises(ConfigError, match="empty address"):
        parse_url("kafka://a:1,,b:2")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("localhost:15002", "has no scheme"),
        ("", "has no scheme"),
        ("1x://h", "has no scheme"),
        ("sc://h:port", "has the port 'port'"),
        ("sc://h:0", "has the port '0'"),
        ("sc://h:65536", "has the port '65536'"),
        ("sc://h:", "has the port ''"),
        ("sc://:15002", "has the port '15002'"),
        ("sc://h:²", "has the port '²'"),
        ("sc://::1:15002", "more than one colon"),
        ("sc://[::1", "wrong IPv6 address"),
        ("sc://[::1]x", "wrong IPv6 address"),
        ("sc://h/#f", "fragment"),
        ("sc://h/;a", "not name=value"),
        ("sc://h/;=a", "not name=value"),
        ("sc://h/;a=1;a=2", "the parameter 'a' twice"),
        ("sc://a b", "a space or a control character"),
        ("sc://h\n", "a space or a control character"),
        ("sc://user:pass@h", "a user name or password"),
    ],
)
def test_a_wrong_url_says_what_is_wrong_and_how_to_write_it(text, problem):
    with pytest.raises(ConfigError) as caught:
        parse_url(text)
    assert problem in str(caught.value)
    assert caught.value.remedy


@pytest.mark.parametrize(
    "text",
    [
        "sc://me:hunter2@host/",
        "sc://me:hunter2@host:bad/",
        "me:hunter2@host",
        "sc://h:bad/;token=hunter2",
        "sc://h/;token=x;token=hunter2",
        "sc://h/;hunter2",
        "sc://h/?hunter2",
        "sc://h/;token=hunter2 ",
    ],
)
def test_the_error_of_a_wrong_url_shows_no_secret(text):
    with pytest.raises(ConfigError) as caught:
        parse_url(text)
    assert "hunter2" not in repr(caught.value) + repr(caught.value.__dict__)


@pytest.mark.parametrize(
    "name", ["token", "Password", "client_secret", "apiKey", "api_key", "api-key", "x-team", "Auth", "credentials"]
)
def test_a_url_masks_its_secrets(name):
    url = parse_url(f"sc://[::1]:1/;{name}=hunter2;user_id=me")
    assert url.params[name] == "hunter2"
    assert str(url) == f"sc://[::1]:1/;{name}=***;user_id=me"
    assert repr(url) == f"Url({str(url)!r})"


def test_a_url_can_be_a_key():
    assert len({parse_url("sc://h/;a=1"), parse_url("sc://h/;a=1"), parse_url("sc://h/;a=2")}) == 2


@given(st.text())
def test_any_text_is_a_url_or_a_config_error(text):
    try:
        url = parse_url(text)
    except ConfigError:
        return
    assert text.lower().startswith(f"{url.scheme}://")
