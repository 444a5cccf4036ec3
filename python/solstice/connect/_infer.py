"""The schema of Python's own rows: tuples, dicts, Rows, objects, or single values."""

import array
import datetime
import decimal
from collections.abc import Iterable, Sequence
from typing import Any

from solstice.connect import types
from solstice.errors import ArgumentTypeError, InvalidPlanError

# Decimals of one column may have any precision; this is the widest, with as many digits before the point as after.
_DECIMAL = types.DecimalType(38, 18)
_TYPES: dict[type, types.DataType] = {
    type(None): types.NullType(),
    bool: types.BooleanType(),
    int: types.LongType(),
    float: types.DoubleType(),
    str: types.StringType(),
    bytes: types.BinaryType(),
    bytearray: types.BinaryType(),
    decimal.Decimal: _DECIMAL,
    datetime.datetime: types.TimestampType(),  # before dates: a datetime is one
    datetime.date: types.DateType(),
    datetime.time: types.TimeType(),
    datetime.timedelta: types.DayTimeIntervalType(),
}
_ARRAY_TYPES: dict[str, types.DataType] = {
    "f": types.FloatType(),
    "d": types.DoubleType(),
    "b": types.ByteType(),
    "h": types.ShortType(),
    "i": types.IntegerType(),
    "l": types.LongType(),
    "q": types.LongType(),
    "B": types.ShortType(),
    "H": types.IntegerType(),
    "I": types.LongType(),
}


def infer_schema(rows: Iterable[Any], names: Sequence[str] | None) -> types.StructType:
    """The schema that all rows fit; ``names`` are those of columns that have none of their own."""
    schemas = (infer_row(row, names) for row in rows)
    schema = next(schemas)
    for other in schemas:
        schema = schema if schema == other else _merged_structs(schema, other)
    for field in schema:
        if _has_null_type(field.data_type):
            raise InvalidPlanError(
                f"the type of column {field.name!r} cannot be told: it has no value in any row.",
                remedy="Pass a schema, for example 'a INT, b STRING'.",
            )
    return schema


def infer_row(row: Any, names: Sequence[str] | None = None) -> types.StructType:
    """The schema of one row."""
    if isinstance(row, dict):
        pairs = sorted(row.items())
    elif isinstance(row, tuple | list):
        own = getattr(row, "__fields__", None) or getattr(row, "_fields", None) or list(names or ())
        pairs = list(zip([*own, *(f"_{i}" for i in range(len(own) + 1, len(row) + 1))], row, strict=False))
    elif hasattr(row, "__dict__"):
        pairs = sorted(vars(row).items())
    else:
        raise _unsupported(row)
    return types.StructType(types.StructField(name, _inferred(value)) for name, value in pairs)


def _inferred(value: Any) -> types.DataType:
    known = _TYPES.get(type(value))
    if known is not None:
        return known
    if isinstance(value, dict):
        return types.MapType(_common_type(value.keys()), _common_type(value.values()))
    if isinstance(value, list):
        return types.ArrayType(_common_type(value))
    if isinstance(value, array.array):
        if value.typecode not in _ARRAY_TYPES:
            raise _unsupported(value)
        return types.ArrayType(_ARRAY_TYPES[value.typecode], False)
    for base, data_type in _TYPES.items():
        if isinstance(value, base) and base is not type(None):  # an IntEnum, a str of a library, and the like
            return data_type
    return infer_row(value)


def _common_type(values: Iterable[Any]) -> types.DataType:
    common: types.DataType = types.NullType()
    for value in values:
        common = _merged(common, _inferred(value))
    return common


def _merged(one: types.DataType, other: types.DataType) -> types.DataType:
    """The type that values of both types fit."""
    if one == other or isinstance(other, types.NullType):
        return one
    if isinstance(one, types.NullType):
        return other
    match one, other:
        case types.StructType(), types.StructType():
            return _merged_structs(one, other)
        case types.ArrayType(), types.ArrayType():
            return types.ArrayType(_merged(one.element_type, other.element_type))
        case types.MapType(), types.MapType():
            return types.MapType(_merged(one.key_type, other.key_type), _merged(one.value_type, other.value_type))
        case (types.AtomicType(), types.StringType()) | (types.StringType(), types.AtomicType()):
            return types.StringType()
    raise ArgumentTypeError(
        f"a column has both {one.simple_string()} and {other.simple_string()}.",
        remedy="Make the values one type, or pass a schema.",
    )


def _merged_structs(one: types.StructType, other: types.StructType) -> types.StructType:
    others = {field.name: field.data_type for field in other}
    own = set(one.names)
    return types.StructType(
        [
            *(types.StructField(f.name, _merged(f.data_type, others.get(f.name, types.NullType()))) for f in one),
            *(types.StructField(name, data_type) for name, data_type in others.items() if name not in own),
        ]
    )


def _has_null_type(data_type: types.DataType) -> bool:
    match data_type:
        case types.NullType():
            return True
        case types.ArrayType():
            return _has_null_type(data_type.element_type)
        case types.MapType():
            return _has_null_type(data_type.key_type) or _has_null_type(data_type.value_type)
        case types.StructType():
            return any(_has_null_type(field.data_type) for field in data_type)
    return False


def _unsupported(value: Any) -> ArgumentTypeError:
    return ArgumentTypeError(
        f"Spark has no type for {value!r}.",
        remedy="Rows are tuples, lists, dicts, Rows or objects with attributes, of Python's own values.",
    )
