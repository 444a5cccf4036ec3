"""``format=json`` writes what Spark's ``to_json`` writes, value by value; what differs is listed here."""

import ctypes
import datetime as dt
import decimal
import json
import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from solstice import _native

pytestmark = pytest.mark.spark

SAME = """
cast(1 as byte); cast(-3 as short); 7; 9223372036854775807; true; false
1.0f; cast('1e10' as float); cast('3.4028235e38' as float); cast('0.1' as float); cast('1e-5' as float)
cast('1.4e-45' as float); cast('-Infinity' as float); cast('NaN' as float)
1e7D; 9999999D; 1.5e-3D; 9.999e-4D; 0.001D; 123456.789D; 4.9e-324D; 1.7976931348623157E308D; 0D; -0D
9007199254740993D; cast('NaN' as double); cast('Infinity' as double)
cast('0' as decimal(38,18)); cast('0.0000001' as decimal(10,7)); cast('0.000001' as decimal(10,7)); 123.45; -0.05
cast('0.00' as decimal(5,2)); cast('99999999999999999999999999999999999999' as decimal(38,0)); 1e-9BD
cast('0.1' as decimal(38,38)); 'text'; ''; 'é€😀\u2028\u007f/'; concat('a"b', chr(92), chr(10), chr(9), chr(8), chr(12))
concat(chr(13), chr(1), chr(31)); cast('ab' as char(5)); cast('ab' as varchar(5))
cast(X'61ff62' as string); cast(X'e282' as string); cast(X'c0af' as string); cast(X'f4908080' as string)
X'00ff10'; X''; X'616263'
date'2024-02-29'; date'0001-01-01'; date'0000-01-01'; cast('-0001-01-01' as date); cast('+10000-01-01' as date)
date_from_unix_date(2147483647); date_from_unix_date(-2147483648)
timestamp'2024-02-29 12:34:56.789'; timestamp'2024-02-29 12:34:56'; timestamp'1969-12-31 23:59:59.999'
timestamp_micros(-62135596800001000); timestamp_micros(253402300800000000); timestamp'2024-07-01 00:00:00 Europe/Berlin'
timestamp_ntz'2024-02-29 12:34:56.789'; timestamp_ntz'2024-02-29 12:34:56'; timestamp_ntz'-0001-02-28 12:34:56.5'
time'12:34:56.789012'; time'12:34:56'; time'00:00:00'; time'12:34:56.5'
interval '1 02:03:04.5' day to second; interval '-1 02:03:04.000005' day to second
interval '106751991 04:00:54.775807' day to second; interval '0 00:00:00' day to second
null; cast(null as int); array(1, null, 3); cast(array() as array<int>); array(null)
array(array(1), array(1, 2)); array(cast('NaN' as double))
map('a', 1, 'b', null); cast(map() as map<string,int>); map(1, 2); map(true, cast(1 as byte))
map('k"', map('z', array(named_struct('q', null, 'r', 1))))
named_struct('a', 1, 'b', null, 'c', named_struct('d', null)); named_struct('é"', 1)
array(named_struct('a', cast(null as int)), null)
named_struct('x', timestamp'2024-02-29 12:34:56', 'y', X'00', 'z', date'2024-02-29', 'w', 1.50)
"""
# Expression: what is written here, what Spark writes.
OTHERWISE = {
    # Spark drops what is finer than a millisecond; nothing is dropped here.
    "timestamp'2024-02-29 12:34:56.789012'": ("2024-02-29T12:34:56.789012Z", "2024-02-29T12:34:56.789Z"),
    "timestamp_ntz'2024-02-29 12:34:56.000001'": ("2024-02-29T12:34:56.000001", "2024-02-29T12:34:56.000"),
    # Arrow has one type for all day-time intervals.
    "interval '3' day": ("INTERVAL '3 00:00:00' DAY TO SECOND", "INTERVAL '3' DAY"),
    "interval '90' second": ("INTERVAL '0 00:01:30' DAY TO SECOND", "INTERVAL '90' SECOND"),
    # Half a surrogate pair in UTF-8: one U+FFFD for each byte, or one for all.
    "cast(X'eda080' as string)": ("\ufffd\ufffd\ufffd", "\ufffd"),
}


@pytest.fixture(scope="module")
def utc(spark: Any) -> Iterator[Any]:
    """Times are written in UTC here, and in the session's zone by Spark."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    yield spark
    spark.conf.set("spark.sql.session.timeZone", before)


def written(frame: Any) -> tuple[list[str], list[str]]:
    """What the sink makes of the rows, and what Spark's to_json does."""
    table = frame.selectExpr("*", "to_json(struct(*)) as expected_json").coalesce(1).toArrow()
    rows = table.select(frame.columns)
    composer = _native.Composer(rows.schema, data=None, attributes=None, ordering_key=None, stamp=None)
    payloads = pa.table(composer.compose(rows))["data"].to_pylist()
    return [payload.decode() for payload in payloads], table["expected_json"].to_pylist()


def test_each_value_of_the_matrix_is_written_as_by_spark(utc: Any) -> None:
    expressions = [text.strip() for line in SAME.strip().split("\n") for text in line.split(";")]
    frame = utc.range(1).selectExpr(*(f"{text} as c{index}" for index, text in enumerate(expressions)))
    ours, theirs = written(frame)
    assert ours == theirs
    assert len(json.loads(ours[0])) == len(expressions) - 2, "all but the two nulls"


def test_what_is_written_otherwise_than_by_spark_is_listed(utc: Any) -> None:
    frame = utc.range(1).selectExpr(*(f"{text} as c{index}" for index, text in enumerate(OTHERWISE)))
    ours, theirs = written(frame)
    found = zip(json.loads(ours[0]).values(), json.loads(theirs[0]).values(), strict=True)
    assert list(found) == list(OTHERWISE.values())


def test_times_are_in_utc_whatever_the_zone_of_the_session(utc: Any) -> None:
    utc.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        ours, theirs = written(utc.sql("select timestamp'2024-07-01 08:00:00' as t"))
    finally:
        utc.conf.set("spark.sql.session.timeZone", "UTC")
    assert ours == ['{"t":"2024-07-01T12:00:00.000Z"}']
    assert theirs == ['{"t":"2024-07-01T08:00:00.000-04:00"}']


RANDOM_SCHEMA = (
    "b boolean, y tinyint, i int, l bigint, n decimal(20,9), s string, x binary, d date, t timestamp, u timestamp_ntz, "
    "a array<string>, m map<string,decimal(38,30)>, r struct<p:int,q:array<struct<v:date,w:map<int,boolean>>>>"
)


def random_row(chance: random.Random) -> tuple[Any, ...]:
    def maybe(value: Any) -> Any:
        return None if chance.random() < 0.2 else value

    def text() -> str:
        letters = ['"', "\\", "\n", "\x00", "\x1f", "/", "a", "Z", "é", "€", "😀", "\u2028", "\x7f", " "]
        return "".join(chance.choices(letters, k=chance.randrange(12)))

    def number(digits: int, scale: int) -> decimal.Decimal:
        return decimal.Decimal(chance.randrange(-(10 ** chance.randrange(digits + 1)), 10**digits)).scaleb(-scale)

    def day() -> dt.date:
        return dt.date.fromordinal(chance.randrange(1, dt.date.max.toordinal() + 1))

    def time() -> dt.datetime:
        return dt.datetime.combine(day(), dt.time(chance.randrange(24), 59, 0, chance.randrange(1_000) * 1_000))

    entry = {"v": maybe(day()), "w": maybe({chance.randrange(-5, 5): maybe(True) for _ in range(2)})}
    return (
        maybe(chance.random() < 0.5),
        maybe(chance.randrange(-128, 128)),
        maybe(chance.randrange(-(2**31), 2**31)),
        maybe(chance.randrange(-(2**63), 2**63) >> chance.randrange(64)),
        maybe(number(20, 9)),
        maybe(text()),
        maybe(bytearray(chance.randbytes(chance.randrange(5)))),
        maybe(day()),
        maybe(time().replace(year=chance.randrange(1_900, 2_100), tzinfo=dt.UTC)),
        maybe(time()),
        maybe([maybe(text()) for _ in range(chance.randrange(3))]),
        maybe({text(): maybe(number(38, 30)) for _ in range(chance.randrange(3))}),
        maybe({"p": maybe(7), "q": maybe([maybe(entry)])}),
    )


def test_random_rows_are_written_as_by_spark(utc: Any) -> None:
    decimal.getcontext().prec = 60
    chance = random.Random(4711)
    rows = [random_row(chance) for _ in range(3_000)]
    ours, theirs = written(utc.createDataFrame(rows, RANDOM_SCHEMA))
    assert [pair for pair in zip(ours, theirs, strict=True) if pair[0] != pair[1]] == []


def numbers(text: str) -> dict[str, float]:
    found: dict[str, float] = json.loads(text)
    return found | {"f": ctypes.c_float(found["f"]).value}


def test_random_floating_point_numbers_are_written_as_by_spark(utc: Any) -> None:
    """The numbers are equal, and the texts where Java writes the shortest: before Java 19 it does not always."""
    frame = utc.range(20_000).selectExpr(
        "(rand(1) - 0.5) * pow(10, cast(rand(2) * 80 - 40 as int)) as d",
        "cast((rand(3) - 0.5) * pow(10, cast(rand(4) * 60 - 30 as int)) as float) as f",
        "cast(cast(rand(5) * 1000 as int) as double) / 8 as e",
    )
    ours, theirs = written(frame)
    assert [numbers(text) for text in ours] == [numbers(text) for text in theirs]
    longer = [pair for pair in zip(ours, theirs, strict=True) if pair[0] != pair[1]]
    assert all(len(mine) <= len(spark) for mine, spark in longer)
    assert len(longer) < len(ours) / 4
