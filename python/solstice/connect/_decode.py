"""Turns what the server sent into rows, natively, or into Arrow data, for which pyarrow is imported."""

from collections.abc import Iterator
from typing import Any

from solstice import _native
from solstice._core.extras import require
from solstice.connect import _times
from solstice.connect._collector import collector_paused
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


def rows_of(batch: Batch) -> list[Row]:
    """The rows in one message of the server, with the values that PySpark would give; pyarrow is not needed.

    An instant (``timestamp``) becomes a naive datetime in this process's own time zone, as in PySpark.
    """
    rows: list[Row] = []
    with collector_paused():
        for names, columns, count in _native.decode_columns(batch.data, row_class, _times.day_offset_s, _times.local):
            cls = row_class(names)
            rows += map(cls, zip(*columns, strict=True)) if columns else [cls(())] * count
    return rows


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
