"""Python values as Arrow columns, without changing one.

Given a type, Arrow makes values fit it: 0.5 becomes the integer 0, a time of a day becomes the day, a key that a struct
does not have is left out. So each column is looked through before it gets the type that it had, or that was asked for.
"""

import numbers
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

from solstice.errors import OperatorError

if TYPE_CHECKING:
    import pyarrow as pa

_COARSE = {"s": 1_000_000, "ms": 1_000}  # microseconds in a unit in which some of them would be lost


def rows_to_arrow(rows: Sequence[Mapping[str, Any]], known: "pa.Schema", *, exact: bool) -> "pa.Table":
    """A table of dicts. A column that ``known`` names keeps its type if the values allow; ``exact``: or it is an error.

    ``exact`` is for a schema that was asked for: its columns it is, and no others.
    """
    import pyarrow as pa

    names = known.names if exact else list(dict.fromkeys(name for row in rows for name in row))
    columns = []
    for name in names:
        kind = known.field(name).type if name in known.names else None
        columns.append(to_column(name, [row.get(name) for row in rows], kind, exact=exact))
    return pa.table(dict(zip(names, columns, strict=True)))


def to_column(name: str, values: Sequence[Any], kind: "pa.DataType | None", *, exact: bool = False) -> "pa.Array":
    """The values as an array of a type, if they fit it as they are; else of the type that they have themselves."""
    import pyarrow as pa

    try:
        if kind is not None and holds(kind, values):
            return pa.array(values, kind)
        problem = "a value of it would be changed"
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        problem = str(error)
    try:
        if not exact:
            return pa.array(values)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise OperatorError(
            f"column {name!r} cannot be made of the values of these rows: {error}.",
            remedy="Give a column values of one type; schema= of a stage says which.",
        ) from error
    raise OperatorError(
        f"column {name!r} does not fit the type {kind} of the stage's schema: {problem}.",
        remedy="Return values of that type, or change schema=.",
    )


def holds(kind: "pa.DataType", values: Sequence[Any]) -> bool:
    """Whether Arrow makes an array of this type of the values, if it does at all, without changing one of them."""
    import pyarrow.types as t

    if t.is_dictionary(kind):
        return holds(kind.value_type, values)
    if not (t.is_integer(kind) or t.is_temporal(kind) or t.is_nested(kind)):
        return True
    present = [value for value in values if value is not None]
    types = set(map(type, present))
    if t.is_integer(kind):
        return all(issubclass(one, numbers.Integral) for one in types)
    if t.is_date(kind):
        return all(issubclass(one, date) and not issubclass(one, datetime) for one in types)
    if t.is_temporal(kind):
        return _holds_times(kind, present, types)
    return _holds_nested(kind, present)


def _holds_times(kind: "pa.DataType", values: Iterable[Any], types: set[type]) -> bool:
    import pyarrow.types as t

    if any(issubclass(one, numbers.Number) and one.__module__ != "numpy" for one in types):
        return False
    if t.is_timestamp(kind) and any((getattr(value, "tzinfo", None) is None) != (kind.tz is None) for value in values):
        return False
    unit = _COARSE.get(getattr(kind, "unit", "us"))
    return unit is None or not any(
        getattr(value, "microsecond", getattr(value, "microseconds", 0)) % unit for value in values
    )


def _holds_nested(kind: "pa.DataType", values: Iterable[Any]) -> bool:
    import pyarrow.types as t

    if t.is_struct(kind):
        names = {field.name for field in kind}
        rows = [value for value in values if isinstance(value, Mapping)]  # of anything else Arrow says what is wrong
        return all(row.keys() <= names for row in rows) and all(
            holds(field.type, [row.get(field.name) for row in rows]) for field in kind
        )
    if t.is_map(kind):
        pairs = [pair for value in values for pair in (value.items() if isinstance(value, Mapping) else value)]
        return holds(kind.key_type, [key for key, _ in pairs]) and holds(kind.item_type, [item for _, item in pairs])
    if t.is_union(kind) or not hasattr(kind, "value_type"):
        return True
    return holds(kind.value_type, [item for value in values for item in value])
