"""Data types out of the protocol's messages."""

import json
from typing import Any

from solstice.connect import types

_FLAT: dict[str, types.DataType] = {
    "null": types.NullType(),
    "binary": types.BinaryType(),
    "boolean": types.BooleanType(),
    "byte": types.ByteType(),
    "short": types.ShortType(),
    "integer": types.IntegerType(),
    "long": types.LongType(),
    "float": types.FloatType(),
    "double": types.DoubleType(),
    "date": types.DateType(),
    "timestamp": types.TimestampType(),
    "timestamp_ntz": types.TimestampNTZType(),
    "calendar_interval": types.CalendarIntervalType(),
    "variant": types.VariantType(),
}


def decode_type(message: Any) -> types.DataType:
    """The type that a DataType message stands for."""
    kind = message.WhichOneof("kind")
    if kind is None:  # a newer server's type: the installed protocol has no field for it
        return types.UnknownType("unknown")
    if kind in _FLAT:
        return _FLAT[kind]
    body = getattr(message, kind)
    match kind:
        case "decimal":
            return types.DecimalType(body.precision, body.scale)
        case "string":
            return types.StringType(body.collation or types.DEFAULT_COLLATION)
        case "char":
            return types.CharType(body.length)
        case "var_char":
            return types.VarcharType(body.length)
        case "time":
            return types.TimeType(body.precision)
        case "year_month_interval":
            return types.YearMonthIntervalType(body.start_field, body.end_field)
        case "day_time_interval":
            return types.DayTimeIntervalType(body.start_field, body.end_field)
        case "array":
            return types.ArrayType(decode_type(body.element_type), body.contains_null)
        case "map":
            return types.MapType(decode_type(body.key_type), decode_type(body.value_type), body.value_contains_null)
        case "struct":
            return decode_struct(message)
        case "unparsed":
            return types.UnknownType(body.data_type_string)
    return types.UnknownType(kind)


def decode_struct(message: Any) -> types.StructType:
    """The struct that a DataType message stands for."""
    return types.StructType(
        tuple(
            types.StructField(
                field.name,
                decode_type(field.data_type),
                field.nullable,
                json.loads(field.metadata) if field.metadata else {},
            )
            for field in message.struct.fields
        )
    )
