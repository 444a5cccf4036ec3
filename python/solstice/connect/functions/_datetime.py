"""Dates, times, instants, intervals, windows of time."""

from solstice.connect._column import Column, ColumnOrName
from solstice.connect._expressions import Expression
from solstice.connect.functions._maker import call, column, value
from solstice.errors import ArgumentTypeError, InvalidPlanError

TABLE = {
    "add_months(start, months: ColumnOrName | int)": "So many months later.",
    "curdate()": "Today, when the query starts.",
    "current_date()": "Today, when the query starts.",
    "current_time(precision: int = None)": "The time of the day, when the query starts.",
    "current_timestamp()": "Now, when the query starts.",
    "current_timezone()": "The session's time zone.",
    "date_add(start, days: ColumnOrName | int)": "So many days later.",
    "date_diff(end, start)": "The number of days between.",
    "date_format(date, format: str)": "A date or an instant as text, in a format.",
    "date_from_unix_date(days)": "The date so many days after 1970-01-01.",
    "date_part(field: Column, source)": "A part of a date, an instant or an interval, by its name.",
    "date_sub(start, days: ColumnOrName | int)": "So many days earlier.",
    "date_trunc(format: str, timestamp)": "The start of the unit (year, month, hour and so on) that an instant is in.",
    "dateadd(start, days: ColumnOrName | int)": "So many days later.",
    "datediff(end, start)": "The number of days between.",
    "datepart(field: Column, source)": "A part of a date, an instant or an interval, by its name.",
    "day(col)": "The day of the month.",
    "dayname(col)": "The weekday's short name.",
    "dayofmonth(col)": "The day of the month.",
    "dayofweek(col)": "The day of the week, from Sunday, 1.",
    "dayofyear(col)": "The day of the year.",
    "extract(field: Column, source)": "A part of a date, an instant or an interval, by its name.",
    "from_unixtime(timestamp, format: str = 'yyyy-MM-dd HH:mm:ss')": "Seconds since 1970 as text, in a format.",
    "from_utc_timestamp(timestamp, tz: Column | str)": "A time in UTC as that of a time zone.",
    "hour(col)": "The hour.",
    "last_day(date)": "The last day of the month.",
    "localtimestamp()": "Now, without a time zone, when the query starts.",
    "make_date(year, month, day)": "A date out of its parts.",
    "make_dt_interval(days=lit(0), hours=lit(0), mins=lit(0), secs=lit(Decimal(0)))": (
        "An interval of days, hours, minutes and seconds."
    ),
    "make_interval(years=lit(0), months=lit(0), weeks=lit(0), days=lit(0), hours=lit(0), mins=lit(0),"
    " secs=lit(Decimal(0)))": "An interval out of its parts.",
    "make_time(hour, minute, second)": "A time of the day out of its parts.",
    "make_timestamp_ltz(years, months, days, hours, mins, secs, timezone=None)": "An instant out of its parts.",
    "make_ym_interval(years=lit(0), months=lit(0))": "An interval of years and months.",
    "minute(col)": "The minute.",
    "month(col)": "The month.",
    "monthname(col)": "The month's short name.",
    "months_between(date1, date2, roundOff: bool = True)": "The number of months between, with a fraction.",
    "next_day(date, dayOfWeek: str)": "The first such weekday after a date.",
    "now()": "Now, when the query starts.",
    "quarter(col)": "The quarter of the year.",
    "second(col)": "The second.",
    "time_bucket(bucket_size: Column, ts, origin: Column = None)": "The start of the bucket of time it falls into.",
    "time_diff(unit, start, end)": "The number of units between two times of the day.",
    "time_from_micros(col)": "The time of the day so many microseconds after midnight.",
    "time_from_millis(col)": "The time of the day so many milliseconds after midnight.",
    "time_from_seconds(col)": "The time of the day so many seconds after midnight.",
    "time_to_micros(col)": "The microseconds since midnight.",
    "time_to_millis(col)": "The milliseconds since midnight.",
    "time_to_seconds(col)": "The seconds since midnight.",
    "time_trunc(unit, time)": "A time of the day cut to a unit.",
    "timestamp_add(unit: str, quantity, ts) -> timestampadd": "An instant so many units later.",
    "timestamp_diff(unit: str, start, end) -> timestampdiff": "The number of units between two instants.",
    "timestamp_micros(col)": "The instant so many microseconds after 1970.",
    "timestamp_millis(col)": "The instant so many milliseconds after 1970.",
    "timestamp_nanos(col)": "The instant so many nanoseconds after 1970.",
    "timestamp_seconds(col)": "The instant so many seconds after 1970.",
    "to_date(col, format: str = None)": "The date that text stands for, or that an instant is on.",
    "to_time(str, format=None)": "The time of the day that text stands for.",
    "to_timestamp(col, format: str = None)": "The instant that text stands for.",
    "to_timestamp_ltz(timestamp, format=None)": "The instant that text stands for, in the session's time zone.",
    "to_timestamp_ntz(timestamp, format=None)": "The date and time that text stands for, without a time zone.",
    "to_unix_timestamp(timestamp, format=None)": "Text or an instant as seconds since 1970.",
    "to_utc_timestamp(timestamp, tz: Column | str)": "A time of a time zone as that in UTC.",
    "trunc(date, format: str)": "The first day of the unit (year, month and so on) that a date is in.",
    "try_make_interval(years=lit(0), months=lit(0), weeks=lit(0), days=lit(0), hours=lit(0), mins=lit(0),"
    " secs=lit(Decimal(0)))": "Like ``make_interval``, with NULL where it does not work.",
    "try_make_timestamp_ltz(years, months, days, hours, mins, secs, timezone=None)": (
        "Like ``make_timestamp_ltz``, with NULL where it does not work."
    ),
    "try_to_date(col, format: str = None)": "Like ``to_date``, with NULL where it does not work.",
    "try_to_time(str, format=None)": "Like ``to_time``, with NULL where it does not work.",
    "try_to_timestamp(col, format=None)": "Like ``to_timestamp``, with NULL where it does not work.",
    "unix_date(col)": "The days since 1970-01-01.",
    "unix_micros(col)": "The microseconds since 1970.",
    "unix_millis(col)": "The milliseconds since 1970.",
    "unix_nanos(col)": "The nanoseconds since 1970.",
    "unix_seconds(col)": "The seconds since 1970.",
    "weekday(col)": "The day of the week, from Monday, 0.",
    "weekofyear(col)": "The week of the year, by ISO 8601.",
    "window_time(windowColumn)": "The last instant of a window of time.",
    "year(col)": "The year.",
}

_Parts = tuple[ColumnOrName | None, ...]


def convert_timezone(sourceTz: Column | None, targetTz: Column, sourceTs: ColumnOrName) -> Column:
    """A time of one time zone, by default the session's, as that of another."""
    source = None if sourceTz is None else column(sourceTz)
    return call("convert_timezone", source, column(targetTz), column(sourceTs))


def make_timestamp(
    years: ColumnOrName | None = None,
    months: ColumnOrName | None = None,
    days: ColumnOrName | None = None,
    hours: ColumnOrName | None = None,
    mins: ColumnOrName | None = None,
    secs: ColumnOrName | None = None,
    timezone: ColumnOrName | None = None,
    date: ColumnOrName | None = None,
    time: ColumnOrName | None = None,
) -> Column:
    """An instant out of its parts, or out of a date and a time."""
    return _timestamp("make_timestamp", (years, months, days, hours, mins, secs), (date, time), timezone)


def try_make_timestamp(
    years: ColumnOrName | None = None,
    months: ColumnOrName | None = None,
    days: ColumnOrName | None = None,
    hours: ColumnOrName | None = None,
    mins: ColumnOrName | None = None,
    secs: ColumnOrName | None = None,
    timezone: ColumnOrName | None = None,
    date: ColumnOrName | None = None,
    time: ColumnOrName | None = None,
) -> Column:
    """Like ``make_timestamp``, with NULL where it does not work."""
    return _timestamp("try_make_timestamp", (years, months, days, hours, mins, secs), (date, time), timezone)


def make_timestamp_ntz(
    years: ColumnOrName | None = None,
    months: ColumnOrName | None = None,
    days: ColumnOrName | None = None,
    hours: ColumnOrName | None = None,
    mins: ColumnOrName | None = None,
    secs: ColumnOrName | None = None,
    date: ColumnOrName | None = None,
    time: ColumnOrName | None = None,
) -> Column:
    """A date and time without a zone, out of its parts, or out of a date and a time."""
    return _timestamp("make_timestamp_ntz", (years, months, days, hours, mins, secs), (date, time))


def try_make_timestamp_ntz(
    years: ColumnOrName | None = None,
    months: ColumnOrName | None = None,
    days: ColumnOrName | None = None,
    hours: ColumnOrName | None = None,
    mins: ColumnOrName | None = None,
    secs: ColumnOrName | None = None,
    date: ColumnOrName | None = None,
    time: ColumnOrName | None = None,
) -> Column:
    """Like ``make_timestamp_ntz``, with NULL where it does not work."""
    return _timestamp("try_make_timestamp_ntz", (years, months, days, hours, mins, secs), (date, time))


def _timestamp(name: str, parts: _Parts, date_and_time: _Parts, timezone: ColumnOrName | None = None) -> Column:
    given = [group for group in (parts, date_and_time) if any(part is not None for part in group)]
    if len(given) != 1 or any(part is None for part in given[0]):
        raise InvalidPlanError(
            f"{name}() takes either years to secs, all six, or date and time.", remedy="Pass one of the two groups."
        )
    arguments: list[Expression] = [column(part) for part in given[0] if part is not None]
    return call(name, *arguments, None if timezone is None else column(timezone))


def unix_timestamp(timestamp: ColumnOrName | None = None, format: str = "yyyy-MM-dd HH:mm:ss") -> Column:
    """Text in a format, or an instant, as seconds since 1970; without an argument, now."""
    if timestamp is None:
        return call("unix_timestamp")
    return call("unix_timestamp", column(timestamp), value(format))


def window(
    timeColumn: ColumnOrName, windowDuration: str, slideDuration: str | None = None, startTime: str | None = None
) -> Column:
    """Windows of time to group by: ``window("time", "10 minutes")``, also sliding or with another start."""
    if slideDuration is None and startTime is not None:
        slideDuration = windowDuration
    for duration in (windowDuration, slideDuration, startTime):
        if duration is not None and not isinstance(duration, str):
            raise ArgumentTypeError(f"window() takes durations as text, for example '10 minutes', not {duration!r}")
    rest = [value(duration) for duration in (slideDuration, startTime) if duration is not None]
    return call("window", column(timeColumn), value(windowDuration), *rest)


def session_window(timeColumn: ColumnOrName, gapDuration: Column | str) -> Column:
    """Windows of time to group by that end when nothing comes for a while."""
    if not isinstance(gapDuration, Column | str):
        raise ArgumentTypeError(f"session_window() takes the gap as text, for example '5 minutes', not {gapDuration!r}")
    return call("session_window", column(timeColumn), value(gapDuration))
