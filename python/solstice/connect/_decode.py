"""Turns what the server sent into Arrow data and rows; pyarrow is imported here, when the first result is decoded.

Rows are made column by column, each column in as few steps as its type allows: dates and times go through numpy, where
making one object at a time would take thirty to fifty times as long.
"""

import contextlib
import gc
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

from solstice._core.extras import require
from solstice.connect import _times
from solstice.connect._execution import Batch
from solstice.connect._row import Row, row_class
from solstice.errors import InvalidPlanError, UnsupportedTypeError


def read_batches(batch: Batch) -> tuple[Any, list[Any]]:
    """The Arrow schema and the record batches in one message of the server."""
    pa = require("pyarrow", "spark")
    try:
        with pa.ipc.open_stream(pa.py_buffer(batch.data)) as reader:
            return reader.schema, list(reader)
    except pa.ArrowNotImplementedError as error:
        raise UnsupportedTypeError(
            f"the result has a column of a type that pyarrow cannot hold: {error}.",
            remedy="Cast the column in the query, for example to a string.",
        ) from None


def check_rows(schema: Any) -> None:
    """Raise UnsupportedTypeError for a column whose values Python's types cannot hold."""
    kind = require("pyarrow.types", "spark")

    def has_mutable_part(type_: Any) -> bool:
        if kind.is_struct(type_):
            return any(has_mutable_part(part.type) for part in type_)
        return bool(kind.is_list(type_) or kind.is_map(type_))

    for path, type_ in _types_in(schema):
        if _is_months(type_):
            raise _months_error(path)
        if kind.is_map(type_) and has_mutable_part(type_.key_type):
            raise UnsupportedTypeError(
                f"the column {path!r} is a map whose keys have arrays in them, which no key of a dict can have.",
                column=path,
                value=str(type_),
                remedy=f"Use to_arrow(), or map_entries({path}) in the query.",
            )


def check_polars(schema: Any) -> None:
    """Raise for columns that no Polars DataFrame can have."""
    twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if twice:
        raise InvalidPlanError(
            f"a Polars DataFrame cannot have two columns of one name: {', '.join(map(repr, twice))}.",
            remedy="Give the columns aliases in the query (select a.id as a_id, ...), or use to_arrow().",
        )
    for path, type_ in _types_in(schema):
        if _is_months(type_):
            raise _months_error(path)


def rows_of(batch: Any) -> list[Row]:
    """The rows of a record batch, with the values that PySpark would give.

    An instant (``timestamp``) becomes a naive datetime in this process's own time zone, as in PySpark.
    """
    cls = row_class(tuple(batch.schema.names))
    if batch.num_columns == 0:
        return [cls(())] * batch.num_rows
    with collector_paused():
        return list(map(cls, zip(*map(_values, batch.columns), strict=True)))


class _CollectorPause:
    """Counts who wants the garbage collector off: it walks all new rows again and again, twice the time of making them.

    Nothing here makes cycles, and the reference counts go on working.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders = 0
        self._was_enabled = False

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            if self._holders == 0:
                self._was_enabled = gc.isenabled()
                gc.disable()
            self._holders += 1
        try:
            yield
        finally:
            with self._lock:
                self._holders -= 1
                if self._holders == 0 and self._was_enabled:
                    gc.enable()


collector_paused = _CollectorPause()


def _types_in(fields: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """All types, also those inside of others, each with the path to it."""
    kind = require("pyarrow.types", "spark")
    for field in fields:
        path, type_ = prefix + field.name, field.type
        yield path, type_
        if kind.is_struct(type_):
            yield from _types_in(type_, f"{path}.")
        elif kind.is_map(type_):
            yield from _types_in((type_.key_field, type_.item_field), f"{path}.")
        elif kind.is_list(type_):
            yield from _types_in((type_.value_field,), f"{path}.")


def _is_months(type_: Any) -> bool:
    return bool(type_.id == require("pyarrow", "spark").lib.Type_INTERVAL_MONTHS)


def _months_error(path: str) -> UnsupportedTypeError:
    return UnsupportedTypeError(
        f"the column {path!r} is an interval of years and months, for which neither Python nor Polars has a type.",
        column=path,
        value="interval year to month",
        remedy=f"Cast it in the query, for example: cast({path} as string).",
    )


def _values(array: Any) -> list[Any]:
    """The Python values of an Arrow array."""
    kind = require("pyarrow.types", "spark")
    type_ = array.type
    if kind.is_timestamp(type_):
        return _times.timestamps(array)
    if kind.is_date32(type_):
        return _times.dates(array)
    if kind.is_duration(type_):
        return _times.durations(array)
    if kind.is_time64(type_):
        return _times.times(array)
    if kind.is_struct(type_):
        return _structs(array)
    if kind.is_map(type_):
        return _slices(array, list(zip(_values(array.keys), _values(array.items), strict=True)), dict)
    if kind.is_list(type_):
        return _slices(array, _values(array.values), list)
    values: list[Any] = array.to_pylist()
    return values


def _structs(array: Any) -> list[Any]:
    cls = row_class(tuple(field.name for field in array.type))
    children = [_values(child) for child in array.flatten()]
    rows = map(cls, zip(*children, strict=True)) if children else itertools.repeat(cls(()), len(array))
    return _masked(array, list(rows))


def _slices(array: Any, items: list[Any], make: Callable[[list[Any]], Any]) -> list[Any]:
    ends = array.offsets.to_pylist()
    return _masked(array, [make(items[start:end]) for start, end in itertools.pairwise(ends)])


def _masked(array: Any, values: list[Any]) -> list[Any]:
    if not array.null_count:
        return values
    return [value if valid else None for value, valid in zip(values, array.is_valid().to_pylist(), strict=True)]
