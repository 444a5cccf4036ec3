"""Options: what is accepted, what wins, and what a wrong one says."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice._core.options import (
    Option,
    OptionTable,
    boolean,
    duration_s,
    integer,
    names,
    number,
    one_of,
    size_bytes,
    text,
)
from solstice.errors import ConfigError, UnknownOptionError

TABLE = OptionTable(
    "pubsub",
    [
        Option("subscriptionId", text(), "The subscription to read.", required=True, env=("SUBSCRIPTION",)),
        Option("ackDeadline", duration_s(10, 600), "How long.", default="1m", unit="s", env=("FIRST", "SECOND")),
        Option("maxBytes", size_bytes(minimum=1), "How much.", default=1_000, unit="bytes"),
        Option("format", one_of("raw", "JSON"), "How to decode.", default="raw"),
        Option("columns", names(), "Which columns.", default=()),
        Option("token", integer(), "A secret.", secret=True),
    ],
)
REQUIRED = {"subscriptionId": "s"}


@pytest.mark.parametrize(
    ("parser", "raw", "value"),
    [
        (duration_s(), "30s", 30.0),
        (duration_s(), "5m", 300.0),
        (duration_s(), "1h", 3600.0),
        (duration_s(), "1d", 86400.0),
        (duration_s(), "250ms", 0.25),
        (duration_s(), "1.5S", 1.5),
        (duration_s(), " 90 ", 90.0),
        (duration_s(), "0", 0.0),
        (size_bytes(), "64mb", 64_000_000),
        (size_bytes(), "10kb", 10_000),
        (size_bytes(), "1gib", 1 << 30),
        (size_bytes(), "1.5KiB", 1536),
        (size_bytes(), "7", 7),
        (size_bytes(), "7b", 7),
        (boolean(), "TRUE", True),
        (boolean(), "1", True),
        (boolean(), "yes", True),
        (boolean(), "False", False),
        (boolean(), "0", False),
        (boolean(), "no", False),
        (integer(), "-3", -3),
        (number(), "1e3", 1000.0),
        (one_of("raw", "JSON"), "json", "JSON"),
        (names(), "a, b,c", ("a", "b", "c")),
        (text(), " x ", "x"),
    ],
)
def test_a_text_is_read_as_the_value_it_means(parser, raw, value):
    parsed = parser(raw)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("parser", "raw"),
    [
        (duration_s(), "30 parsecs"),
        (duration_s(), "-1s"),
        (duration_s(), "inf"),
        (duration_s(), ""),
        (duration_s(10, 600), "9s"),
        (duration_s(10, 600), "601s"),
        (size_bytes(), "1.5b"),
        (size_bytes(), "64m"),
        (size_bytes(), "-1"),
        (boolean(), "on"),
        (integer(), "1.0"),
        (integer(), "1_000"),
        (integer(), "٣"),
        (integer(0), "-1"),
        (number(), "nan"),
        (number(), "inf"),
        (number(maximum=1), "1.1"),
        (one_of("raw", "json"), "avro"),
        (names(), "a,,b"),
        (names(), "a,b,a"),
        (names(), ""),
        (text(), "  "),
    ],
)
def test_a_text_that_means_nothing_is_refused_with_what_was_expected(parser, raw):
    with pytest.raises(ValueError, match=r".") as caught:
        parser(raw)
    assert str(caught.value) == parser.expects


@given(st.integers(min_value=0, max_value=10**9))
def test_a_duration_in_milliseconds_is_exact(count):
    assert duration_s()(f"{count}ms") == count / 1000


@given(st.integers(min_value=0, max_value=2**62))
def test_a_size_keeps_every_byte_of_a_large_number(count):
    assert size_bytes()(f"{count}kib") == count * 1024


def test_names_are_compared_without_case():
    values = TABLE.parse({"SUBSCRIPTIONID": "s", "ackdeadline": "20"}, {})
    assert values["subscriptionId"] == "s"
    assert values["ACKDEADLINE"] == 20.0


def test_an_option_wins_over_the_environment_and_the_environment_over_the_default():
    environ = {"SECOND": "30s"}
    assert TABLE.parse(REQUIRED, {})["ackDeadline"] == 60.0
    assert TABLE.parse(REQUIRED, environ)["ackDeadline"] == 30.0
    assert TABLE.parse(REQUIRED | {"ackDeadline": "45s"}, environ)["ackDeadline"] == 45.0


def test_the_first_environment_variable_that_is_not_empty_counts():
    assert TABLE.parse(REQUIRED, {"FIRST": "20s", "SECOND": "30s"})["ackDeadline"] == 20.0
    assert TABLE.parse(REQUIRED, {"FIRST": "", "SECOND": "30s"})["ackDeadline"] == 30.0


def test_the_process_environment_is_used_when_none_is_passed(monkeypatch):
    monkeypatch.setenv("SUBSCRIPTION", "from-the-environment")
    assert TABLE.parse({})["subscriptionId"] == "from-the-environment"


def test_given_tells_what_was_set_from_what_was_left_to_its_default():
    values = TABLE.parse(REQUIRED | {"format": "raw"}, {"SECOND": "30s"})
    assert values.given("FORMAT")
    assert values.given("ackDeadline")
    assert not values.given("maxBytes")
    assert values["maxBytes"] == 1_000


def test_an_unknown_option_names_the_nearest_one():
    with pytest.raises(UnknownOptionError, match=r"no option 'subscriptonid'.*Did you mean 'subscriptionId'") as caught:
        TABLE.parse({"subscriptonid": "s"}, {})
    assert caught.value.option == "subscriptonid"


def test_an_unknown_option_that_is_near_to_nothing_lists_the_known_ones():
    with pytest.raises(UnknownOptionError, match="Known options: ackDeadline, columns"):
        TABLE.parse({"zzzzzz": "s"}, {})


def test_a_bad_value_names_the_option_the_value_and_the_fix():
    with pytest.raises(ConfigError) as caught:
        TABLE.parse(REQUIRED | {"ACKdeadline": "5s"}, {})
    assert str(caught.value) == (
        "pubsub: option 'ackDeadline' is '5s'. "
        "It must be a duration such as 250ms, 30s, 5m, 1h or a number of seconds between 10s and 600s."
    )
    assert (caught.value.option, caught.value.value) == ("ackDeadline", "5s")


def test_a_bad_value_from_the_environment_names_the_variable():
    with pytest.raises(ConfigError, match=r"environment variable SECOND \(option 'ackDeadline'\) is 'soon'"):
        TABLE.parse(REQUIRED, {"SECOND": "soon"})


def test_a_missing_option_names_every_way_to_set_it():
    with pytest.raises(ConfigError, match=r"'subscriptionId' is missing.*environment variable SUBSCRIPTION"):
        TABLE.parse({}, {})


def test_two_spellings_with_different_values_are_refused():
    with pytest.raises(ConfigError, match="given twice, as 'subscriptionId' and as 'SUBSCRIPTIONID'"):
        TABLE.parse({"subscriptionId": "a", "SUBSCRIPTIONID": "b"}, {})


def test_two_spellings_with_the_same_value_are_accepted():
    assert TABLE.parse({"subscriptionId": "a", "SUBSCRIPTIONID": "a"}, {})["subscriptionId"] == "a"


def test_a_value_that_is_no_text_is_refused():
    with pytest.raises(ConfigError, match="'maxBytes' must be given as text, not as int"):
        TABLE.parse(REQUIRED | {"maxBytes": 5}, {})


def test_a_secret_shows_neither_in_the_repr_nor_in_an_error():
    values = TABLE.parse(REQUIRED | {"token": "424242"}, {})
    assert values["token"] == 424242
    for shown in (repr(values), str(values), f"{values}"):
        assert "424242" not in shown
        assert "token=***" in shown
    with pytest.raises(ConfigError) as caught:
        TABLE.parse(REQUIRED | {"token": "hunter2"}, {})
    assert "hunter2" not in repr(caught.value)
    assert caught.value.value == "***"
    assert caught.value.__context__ is None  # a chained error would show the value in the traceback


def test_a_secret_under_a_misspelled_name_does_not_show():
    with pytest.raises(UnknownOptionError) as caught:
        TABLE.parse({"tokn": "hunter2"}, {})
    assert "hunter2" not in repr(caught.value.__dict__) + repr(caught.value)


def test_values_can_be_sent_to_another_process():
    values = pickle.loads(pickle.dumps(TABLE.parse(REQUIRED | {"token": "424242"}, {})))
    assert values["TOKEN"] == 424242
    assert values.given("token")
    assert "424242" not in repr(values)


def test_iterating_gives_every_option_by_its_own_spelling():
    values = TABLE.parse({"SUBSCRIPTIONID": "s"}, {})
    assert list(values) == [option.name for option in TABLE.options]
    assert len(values) == len(TABLE.options)


def test_a_default_that_its_own_parser_refuses_fails_when_the_table_is_made():
    with pytest.raises(ValueError, match="duration"):
        OptionTable("x", [Option("a", duration_s(), "doc", default="soon")])


def test_one_name_in_two_cases_fails_when_the_table_is_made():
    with pytest.raises(ValueError, match="two options 'A'"):
        OptionTable("x", [Option("a", text(), ""), Option("A", text(), "")])


def test_the_markdown_has_a_row_for_every_option():
    lines = TABLE.markdown().splitlines()
    assert lines[0] == "| option | type | default | unit | environment | meaning |"
    assert lines[2] == "| `subscriptionId` | text | required |  | `SUBSCRIPTION` | The subscription to read. |"
    assert lines[3] == "| `ackDeadline` | duration | `1m` | s | `FIRST`, `SECOND` | How long. |"
    assert lines[4] == "| `maxBytes` | size | `1000` | bytes |  | How much. |"
    assert lines[5] == r"| `format` | `raw` \| `JSON` | `raw` |  |  | How to decode. |"
    assert len(lines) == 2 + len(TABLE.options)


def test_an_option_of_the_caller_differs_from_one_of_the_environment() -> None:
    table = OptionTable("t", (Option("a", text(), "A.", env=("A",)), Option("b", text(), "B.")))
    values = table.parse({"B": "1"}, environ={"A": "2"})
    assert (values.given("a"), values.written("a")) == (True, False)
    assert (values.given("b"), values.written("b")) == (True, True)
