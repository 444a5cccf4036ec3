"""Constants: Python's values as literals of Spark's types."""

import calendar
import datetime
import decimal
import enum
import time
from typing import Any

from solstice.connect import types
from solstice.connect._expressions import Literal
from solstice.connect._row import row_class
from solstice.errors import InvalidPlanError

_INT32 = range(-(2**31), 2**31)
_INT64 = range(-(2**63), 2**63)
_EPOCH = datetime.date(1970, 1, 1).toordinal()
_MICROS = 1_000_000

# The types of the elements of arrays, by the names that literals have in the protocol.
_ELEMENT_TYPES: dict[str, types.DataType] = {
    "binary": types.BinaryType(),
    "boolean": types.BooleanType(),
    "byte": types.ByteType(),
    "short": types.ShortType(),
    "integer": types.IntegerType(),
    "long": types.LongType(),
    "float": types.FloatType(),
    "double": types.DoubleType(),
    "decimal": types.DecimalType(),
    "string": types.StringType(),
    "date": types.DateType(),
    "time": types.TimeType(),
    "timestamp": types.TimestampType(),
    "day_time_interval": types.DayTimeIntervalType(),
}
_NUMPY = {
    "bool": ("boolean", bool),
    "int8": ("byte", int),
    "int16": ("short", int),
    "int32": ("integer", int),
    "int64": ("long", int),
    "float32": ("float", float),
    "float64": ("double", float),
}


def literal(value: Any) -> Literal:
    """The literal of a value: whole numbers have 32 bits if they fit, a datetime is an instant, in local time if naive.

    A list is an array of its first element's type.
    """
    if isinstance(value, enum.Enum):
        value = value.value
    match value:
        case None:
            return Literal("null", None)
        case bool():
            return Literal("boolean", value)
        case str():
            return Literal("string", str(value))
        case int():
            if value in _INT32:
                return Literal("integer", int(value))
            if value in _INT64:
                return Literal("long", int(value))
            raise InvalidPlanError(f"the whole number {value} does not fit into 64 bits.", remedy="Use a Decimal.")
        case float() if type(value).__module__ != "numpy":
            return Literal("double", float(value))
        case bytes() | bytearray():
            return Literal("binary", bytes(value))
        case decimal.Decimal():
            default = types.DecimalType()
            return Literal("decimal", (str(value), default.precision, default.scale))
        case datetime.datetime():
            return Literal("timestamp", _instant(value))
        case datetime.date():
            return Literal("date", value.toordinal() - _EPOCH)
        case datetime.time():
            seconds = (value.hour * 60 + value.minute) * 60 + value.second
            return Literal("time", ((seconds * _MICROS + value.microsecond) * 1000, types.TimeType().precision))
        case datetime.timedelta():
            return Literal("day_time_interval", value // datetime.timedelta(microseconds=1))
        case list():
            return _array(value)
    if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0:
        kind, python = _NUMPY.get(value.dtype.name, ("", None))
        if python is not None:
            return Literal(kind, python(value))
    raise InvalidPlanError(
        f"a value of type {type(value).__name__} cannot be a literal: {value!r}.",
        remedy="Pass None, a bool, number, text, bytes, date, time or a list of these, or a Column.",
    )


def long_literal(value: int) -> Literal:
    """A whole number of 64 bits, whether or not it would fit into fewer."""
    return Literal("long", value)


def _array(values: list[Any]) -> Literal:
    if not values or values[0] is None:
        raise InvalidPlanError(
            "the type of an array's elements is that of the first, and there is none.",
            remedy="Use functions.array() with a cast.",
        )
    first = literal(values[0])
    element_type = types.ArrayType(first.data_type) if first.data_type else _ELEMENT_TYPES[first.type]
    elements = tuple(Literal("null", None, element_type) if value is None else literal(value) for value in values)
    if any(element.type not in (first.type, "null") for element in elements):
        raise InvalidPlanError(f"the elements of {values!r} have different types.", remedy="Make them the same type.")
    return Literal("array", elements, element_type)


def _instant(value: datetime.datetime) -> int:
    seconds = calendar.timegm(value.utctimetuple()) if value.tzinfo else time.mktime(value.timetuple())
    return int(seconds) * _MICROS + value.microsecond


def value_of(message: Any) -> Any:
    """The value of a Literal message, as rows would have it; what has no plain value comes as text."""
    kind = message.WhichOneof("literal_type")
    if kind in (None, "null"):
        return None
    body = getattr(message, kind)
    match kind:
        case "decimal":
            return decimal.Decimal(body.value)
        case "date" | "timestamp" | "timestamp_ntz" | "day_time_interval":
            return plain_value(kind, body)
        case "array":
            return [value_of(element) for element in body.elements]
        case "map":
            return dict(zip(map(value_of, body.keys), map(value_of, body.values), strict=True))
        case "struct":
            fields = (message.data_type if message.HasField("data_type") else body.struct_type).struct.fields
            return row_class(tuple(field.name for field in fields))(map(value_of, body.elements))
    return body if isinstance(body, bool | int | float | str | bytes) else str(body)


def plain_value(kind: str, number: int) -> Any:
    """The day, moment or length of time that a number stands for in a literal of this kind."""
    match kind:
        case "date":
            return datetime.date.fromordinal(_EPOCH + number)
        case "timestamp":
            return datetime.datetime.fromtimestamp(number // _MICROS).replace(microsecond=number % _MICROS)
        case "timestamp_ntz":
            return datetime.datetime(1970, 1, 1) + datetime.timedelta(microseconds=number)
    return datetime.timedelta(microseconds=number)
