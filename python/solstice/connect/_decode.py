"""Turns what the server sent into rows, natively, or into Arrow data, for which pyarrow is imported."""

from collections.abc import Callable, Iterator
from typing import Any

from solstice import _native
from solstice._core.extras import require
from solstice.connect import _times
from solstice.connect._collector import collector_paused
from solstice.connect._execution import Batch
from solstice.connect._row import Row, row_class
from solstice.errors import InvalidPlanError, UnsupportedTypeError

RowClasses = Callable[[tuple[str, ...]], Any]


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


def struct_classes(schema: Any) -> RowClasses:
    """The classes of structs within rows, by the names that come with the data; the schema is a DataType message.

    The server numbers the fields of a struct that have one name, ``x_0`` and ``x_1``: Arrow's structs need it.
    """
    renamed: dict[tuple[str, ...], tuple[str, ...]] = {}
    todo = [field.data_type for field in schema.struct.fields]
    while todo:
        message = todo.pop()
        kind = message.WhichOneof("kind")
        if kind == "array":
            todo.append(message.array.element_type)
        elif kind == "map":
            todo += [message.map.key_type, message.map.value_type]
        elif kind == "struct":
            todo += [field.data_type for field in message.struct.fields]
            names = tuple(field.name for field in message.struct.fields)
            if len(set(names)) < len(names):
                renamed[_numbered(names)] = names
    return (lambda names: row_class(renamed.get(names, names))) if renamed else row_class


def _numbered(names: tuple[str, ...]) -> tuple[str, ...]:
    counts = dict.fromkeys((name for name in names if names.count(name) > 1), -1)
    sent = []
    for name in names:
        if name in counts:
            counts[name] += 1
        sent.append(f"{name}_{counts[name]}" if name in counts else name)
    return tuple(sent)


def rows_of(batch: Batch, classes: RowClasses = row_class) -> list[Row]:
    """The rows in one message of the server, with the values that PySpark would give; pyarrow is not needed.

    An instant (``timestamp``) becomes a naive datetime in this process's own time zone, as in PySpark.
    """
    rows: list[Row] = []
    with collector_paused():
        for names, columns, count in _native.decode_columns(batch.data, classes, _times.day_offset_s, _times.local):
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
