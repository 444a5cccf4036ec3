"""How a table is partitioned when it is written; of use only there."""

from solstice.connect._column import Column, ColumnOrName
from solstice.connect.functions._maker import call, column, value

__all__ = ["bucket", "days", "hours", "months", "years"]


def years(col: ColumnOrName) -> Column:
    """By year."""
    return call("years", column(col))


def months(col: ColumnOrName) -> Column:
    """By month."""
    return call("months", column(col))


def days(col: ColumnOrName) -> Column:
    """By day."""
    return call("days", column(col))


def hours(col: ColumnOrName) -> Column:
    """By hour."""
    return call("hours", column(col))


def bucket(numBuckets: Column | int, col: ColumnOrName) -> Column:
    """By a hash, in so many buckets."""
    return call("bucket", value(numBuckets), column(col))
