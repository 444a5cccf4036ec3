"""Python's rows as an Arrow table."""

import datetime
import decimal
from collections.abc import Callable, Mapping
from typing import Any

from solstice._core.extras import require
from solstice.connect import types
from solstice.connect._arrow_types import arrow_schema
from solstice.errors import ArgumentTypeError, InvalidPlanError

_Converter = Callable[[Any], Any]


def python_table(rows: list[Any], struct: types.StructType) -> Any:
    """An Arrow table of rows: tuples by position, dicts and objects by name."""
    pa = require("pyarrow", "spark")
    names = struct.names
    if len(set(names)) != len(names):
        positions = types.StructType(
            types.StructField(f"{field.name}_{i}", field.data_type, field.nullable) for i, field in enumerate(struct)
        )
    else:
        positions = struct
    columns: list[list[Any]] = [[] for _ in struct]
    for row in rows:
        for column, value in zip(columns, _parts(row, names), strict=True):
            column.append(value)
    schema = arrow_schema(positions)
    arrays = []
    for field, target, values in zip(struct, schema, columns, strict=True):
        if not field.nullable and any(value is None for value in values):
            raise InvalidPlanError(f"the column {field.name!r} has None and must not.", remedy="Make it nullable.")
        convert = _converter(field.data_type)
        try:
            arrays.append(pa.array([_converted(value, convert) for value in values], type=target.type))
        except (pa.ArrowInvalid, TypeError, ArithmeticError) as error:  # also OverflowError and decimal's own
            raise ArgumentTypeError(
                f"the column {field.name!r} has a value that is not {field.data_type.simple_string()}: {error}.",
                remedy="Pass another schema, or convert the values.",
            ) from None
    if not arrays:
        return pa.table({"_": [None] * len(rows)}).select([])
    return pa.Table.from_arrays(arrays, schema=schema)


def _parts(row: Any, names: list[str]) -> list[Any] | tuple[Any, ...]:
    """A row's values, one for each column."""
    if isinstance(row, tuple | list):
        if len(row) != len(names):
            raise InvalidPlanError(
                f"a row has {len(row)} values, the schema {len(names)} columns: {row!r}.", remedy="Make them the same."
            )
        return row
    if row is None:
        return [None] * len(names)
    mapping: Mapping[str, Any] = row if isinstance(row, dict) else vars(row)
    return [mapping.get(name) for name in names]


def _converter(data_type: types.DataType) -> _Converter | None:
    """Turns a value into one that pyarrow takes for a type, or None where all are as they should be."""
    match data_type:
        case types.StructType():
            names = data_type.names
            converters = [_converter(field.data_type) for field in data_type]

            def struct(value: Any) -> dict[str, Any]:
                parts = zip(names, _parts(value, names), converters, strict=True)
                return {name: _converted(part, convert) for name, part, convert in parts}

            return struct
        case types.ArrayType():
            element = _converter(data_type.element_type)
            return list if element is None else lambda value: [_converted(part, element) for part in value]
        case types.MapType():
            key, item = _converter(data_type.key_type), _converter(data_type.value_type)
            return lambda value: [(_converted(k, key), _converted(v, item)) for k, v in value.items()]
        case types.StringType() | types.CharType() | types.VarcharType():
            return _text
        case types.BinaryType():
            return lambda value: bytes(_of(bytes | bytearray | memoryview, value))
        case types.TimestampType():
            return lambda value: _of(datetime.datetime, value).astimezone(datetime.UTC)
        case types.DecimalType():
            step = decimal.Decimal(1).scaleb(-data_type.scale)
            context = decimal.Context(prec=data_type.precision)

            def number(value: Any) -> decimal.Decimal | None:
                exact: decimal.Decimal = _of(decimal.Decimal, value)
                return None if exact.is_nan() else exact.quantize(step, context=context)

            return number
    return None


def _of(kind: Any, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r} is {type(value).__name__}")
    return value


def _converted(value: Any, convert: _Converter | None) -> Any:
    return value if value is None or convert is None else convert(value)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
