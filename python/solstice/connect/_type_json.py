"""Data types out of the JSON form of a schema, which Spark writes into files and tables."""

import re
from typing import Any

from solstice.connect import types
from solstice.errors import ConfigError

_NAMES = {
    cls().json_value(): cls()
    for cls in (
        types.NullType,
        types.BooleanType,
        types.ByteType,
        types.ShortType,
        types.IntegerType,
        types.LongType,
        types.FloatType,
        types.DoubleType,
        types.StringType,
        types.BinaryType,
        types.DateType,
        types.TimestampType,
        types.TimestampNTZType,
        types.CalendarIntervalType,
        types.VariantType,
    )
} | {
    # Also SQL's names, and those without parameters.
    "tinyint": types.ByteType(),
    "smallint": types.ShortType(),
    "int": types.IntegerType(),
    "bigint": types.LongType(),
    "decimal": types.DecimalType(),
    "null": types.NullType(),
}
_PARAMETERS = re.compile(r"(decimal|char|varchar|time)\(\s*(\d+)\s*(?:,\s*(-?\d+)\s*)?\)")
_CLASSES: dict[str, Any] = {
    "decimal": types.DecimalType,
    "char": types.CharType,
    "varchar": types.VarcharType,
    "time": types.TimeType,
}
_INTERVAL = re.compile(r"interval (\w+)(?: to (\w+))?")
_COLLATED = re.compile(r"string collate (\w+)")


def parse_type(value: Any, path: str = "", collations: dict[str, str] | None = None) -> types.DataType:
    """The type of a piece of JSON. ``collations`` are those of the field around it, by their paths."""
    if isinstance(value, str):
        if collations and path in collations:
            return types.StringType(collations[path])
        return _NAMES.get(value) or _parse_text(value)
    match value.get("type"):
        case "struct":
            return types.StructType(_field(field) for field in value["fields"])
        case "array":
            element = parse_type(value["elementType"], f"{path}.element", collations)
            return types.ArrayType(element, value["containsNull"])
        case "map":
            key = parse_type(value["keyType"], f"{path}.key", collations)
            return types.MapType(
                key, parse_type(value["valueType"], f"{path}.value", collations), value["valueContainsNull"]
            )
        case "udt":
            return parse_type(value["sqlType"], path, collations)
    raise _unknown(value)


def _field(value: dict[str, Any]) -> types.StructField:
    metadata = dict(value.get("metadata") or {})
    collations = {path: name.partition(".")[2] for path, name in metadata.pop(types._COLLATIONS, {}).items()}
    data_type = parse_type(value["type"], value["name"], collations)
    return types.StructField(value["name"], data_type, value.get("nullable", True), metadata)


def _parse_text(text: str) -> types.DataType:
    if match := _PARAMETERS.fullmatch(text):
        numbers = [int(number) for number in match.groups()[1:] if number is not None]
        parsed: types.DataType = _CLASSES[match[1]](*numbers)
        return parsed
    if match := _COLLATED.fullmatch(text):
        return types.StringType(match[1])
    if match := _INTERVAL.fullmatch(text):
        for cls in (types.YearMonthIntervalType, types.DayTimeIntervalType):
            if match[1] in cls._units and (match[2] or match[1]) in cls._units:
                return cls(cls._units.index(match[1]), cls._units.index(match[2] or match[1]))
    raise _unknown(text)


def _unknown(value: Any) -> ConfigError:
    return ConfigError(
        f"{value!r} is not a data type.", value=value, remedy="Pass a type, for example StringType(), or 'string'."
    )
