"""Spark's types as Arrow's, and back, for data that goes to the server."""

import json
from typing import Any

from solstice._core.extras import require
from solstice.connect import types
from solstice.errors import UnsupportedTypeError

_FLAT = {
    types.NullType: "null",
    types.BooleanType: "bool_",
    types.ByteType: "int8",
    types.ShortType: "int16",
    types.IntegerType: "int32",
    types.LongType: "int64",
    types.FloatType: "float32",
    types.DoubleType: "float64",
    types.StringType: "string",
    types.CharType: "string",
    types.VarcharType: "string",
    types.BinaryType: "binary",
    types.DateType: "date32",
}
_METADATA = b"SPARK::metadata::json"


def arrow_schema(struct: types.StructType) -> Any:
    """The Arrow schema of a struct."""
    pa = require("pyarrow", "spark")
    return pa.schema([_field(pa, field.name, field.data_type, field.nullable, field.metadata) for field in struct])


def arrow_type(data_type: types.DataType) -> Any:
    """The Arrow type of a type."""
    pa = require("pyarrow", "spark")
    flat = _FLAT.get(type(data_type))
    if flat is not None:
        return getattr(pa, flat)()
    match data_type:
        case types.DecimalType():
            return pa.decimal128(data_type.precision, data_type.scale)
        case types.TimestampType():
            return pa.timestamp("us", tz="UTC")
        case types.TimestampNTZType():
            return pa.timestamp("us")
        case types.TimeType():
            return pa.time64("ns")
        case types.DayTimeIntervalType():
            return pa.duration("us")
        case types.ArrayType():
            return pa.list_(_field(pa, "element", data_type.element_type, data_type.contains_null))
        case types.MapType():
            key = _field(pa, "key", data_type.key_type, False)
            return pa.map_(key, _field(pa, "value", data_type.value_type, data_type.value_contains_null))
        case types.StructType():
            return pa.struct([_field(pa, f.name, f.data_type, f.nullable, f.metadata) for f in data_type])
    raise UnsupportedTypeError(
        f"values of type {data_type.simple_string()!r} cannot be sent to the server.",
        value=data_type.simple_string(),
        remedy="Send another type, for example a string, and cast it there.",
    )


def _field(
    pa: Any, name: str, data_type: types.DataType, nullable: bool, metadata: dict[str, Any] | None = None
) -> Any:
    encoded = {_METADATA: json.dumps(metadata).encode()} if metadata else None
    return pa.field(name, arrow_type(data_type), nullable=nullable, metadata=encoded)


def struct_of(schema: Any, *, prefer_ntz: bool, within_ntz: bool = False) -> types.StructType:
    """The struct of an Arrow schema. A time without a zone is an instant unless ``prefer_ntz``.

    ``within_ntz``: those inside of lists, structs and maps are none.
    """

    def data_type(kind: Any) -> types.DataType:
        return type_of(kind, prefer_ntz or (within_ntz and kind.num_fields > 0))

    return types.StructType(
        types.StructField(field.name, data_type(field.type), field.nullable, _metadata_of(field)) for field in schema
    )


def type_of(kind: Any, prefer_ntz: bool) -> types.DataType:
    """The type that holds all values of an Arrow type."""
    pa = require("pyarrow", "spark")
    name = str(kind)
    if name in _BY_NAME:
        return _BY_NAME[name]
    is_ = pa.types
    if is_.is_decimal(kind):
        return types.DecimalType(kind.precision, kind.scale)
    if is_.is_fixed_size_binary(kind):
        return types.BinaryType()
    if is_.is_date(kind):
        return types.DateType()
    if is_.is_time(kind):
        return types.TimeType()
    if is_.is_timestamp(kind):
        return types.TimestampNTZType() if kind.tz is None and prefer_ntz else types.TimestampType()
    if is_.is_duration(kind):
        return types.DayTimeIntervalType()
    if is_.is_dictionary(kind):
        return type_of(kind.value_type, prefer_ntz)
    if is_.is_map(kind):
        value = type_of(kind.item_type, prefer_ntz)
        return types.MapType(type_of(kind.key_type, prefer_ntz), value, kind.item_field.nullable)
    if is_.is_struct(kind):
        return struct_of(kind, prefer_ntz=prefer_ntz)
    if hasattr(kind, "value_field"):  # the several kinds of lists
        return types.ArrayType(type_of(kind.value_type, prefer_ntz), kind.value_field.nullable)
    raise UnsupportedTypeError(
        f"Spark has no type for Arrow's {name}.", value=name, remedy="Cast the column before sending it."
    )


_BY_NAME: dict[str, types.DataType] = {
    "null": types.NullType(),
    "bool": types.BooleanType(),
    "int8": types.ByteType(),
    "int16": types.ShortType(),
    "int32": types.IntegerType(),
    "int64": types.LongType(),
    # Spark has no unsigned numbers: the next wider type holds them.
    "uint8": types.ShortType(),
    "uint16": types.IntegerType(),
    "uint32": types.LongType(),
    "uint64": types.DecimalType(20, 0),
    "halffloat": types.FloatType(),
    "float": types.FloatType(),
    "double": types.DoubleType(),
    "string": types.StringType(),
    "large_string": types.StringType(),
    "string_view": types.StringType(),
    "binary": types.BinaryType(),
    "large_binary": types.BinaryType(),
    "binary_view": types.BinaryType(),
}


def _metadata_of(field: Any) -> dict[str, Any]:
    encoded = (field.metadata or {}).get(_METADATA)
    return json.loads(encoded) if encoded else {}
