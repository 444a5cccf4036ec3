"""Data types out of the protocol's messages, and into them."""

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
_FLAT_NAMES = {data_type: name for name, data_type in _FLAT.items()}


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
        types.StructField(
            field.name,
            decode_type(field.data_type),
            field.nullable,
            json.loads(field.metadata) if field.metadata else {},
        )
        for field in message.struct.fields
    )


def encode_type(data_type: types.DataType, message: Any) -> None:
    """Fill a DataType message, in its place, with a type."""
    flat = _FLAT_NAMES.get(data_type)
    if flat is not None:
        getattr(message, flat).SetInParent()
        return
    match data_type:
        case types.DecimalType():
            message.decimal.precision, message.decimal.scale = data_type.precision, data_type.scale
        case types.StringType():
            message.string.collation = data_type.collation
        case types.CharType():
            message.char.length = data_type.length
        case types.VarcharType():
            message.var_char.length = data_type.length
        case types.TimeType():
            message.time.precision = data_type.precision
        case types.YearMonthIntervalType():
            interval = message.year_month_interval
            interval.start_field, interval.end_field = data_type.start_field, data_type.end_field
        case types.DayTimeIntervalType():
            interval = message.day_time_interval
            interval.start_field, interval.end_field = data_type.start_field, data_type.end_field
        case types.ArrayType():
            encode_type(data_type.element_type, message.array.element_type)
            message.array.contains_null = data_type.contains_null
        case types.MapType():
            encode_type(data_type.key_type, message.map.key_type)
            encode_type(data_type.value_type, message.map.value_type)
            message.map.value_contains_null = data_type.value_contains_null
        case types.StructType():
            message.struct.SetInParent()
            for field in data_type.fields:
                place = message.struct.fields.add(name=field.name, nullable=field.nullable)
                encode_type(field.data_type, place.data_type)
                if field.metadata:
                    place.metadata = json.dumps(field.metadata)
        case _:
            message.unparsed.data_type_string = data_type.simple_string()
