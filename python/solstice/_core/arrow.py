"""Spark types as Arrow types and back, as Spark itself writes and reads them.

The types, nullability, names of inner fields and field metadata are the ones that Spark's JVM puts on the wire:
``to_arrow_schema(df.schema)`` is what ``mapInArrow`` sees and what Spark reads without a conversion. One label may
differ: ``mapInArrow`` names the session's time zone in a timestamp, here it is UTC; the instants are the same.

What Arrow cannot tell apart is lost on the way back: the collation of a string, the length of ``char`` and
``varchar``, the fields of a day-time interval and a user-defined type (its storage type comes back). What has the
null type is nullable, whatever Spark says.

Year-month intervals cannot leave Spark as Arrow: Spark writes them, but pyarrow has no array for them. Calendar
intervals can, as ``month_day_nano_interval``, in ``mapInArrow`` and IPC data though not with ``DataFrame.toArrow``.
"""

import functools
import json
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from solstice._core.extras import require
from solstice.errors import UnsupportedTypeError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import types as st

# Keys that Spark's JVM uses in the metadata of Arrow fields.
_METADATA = b"SPARK::metadata::json"
_TIME_PRECISION = b"SPARK::time::precision"

# pyarrow has neither a factory nor a test for this type, so it is known by Arrow's type number alone.
_MONTH_INTERVAL_ID = 21

_MAX_DECIMAL_PRECISION = 38


def to_arrow_type(spark_type: "st.DataType") -> "pa.DataType":
    """The Arrow type of a Spark type. The precision of a ``time`` needs a field: see ``to_arrow_schema``."""
    return _arrow_type(spark_type, "")


def to_arrow_schema(struct: "st.StructType") -> "pa.Schema":
    """The Arrow schema of a DataFrame's schema, with nullability and metadata."""
    pa = _pyarrow()
    return pa.schema([_arrow_field(f.name, f.dataType, f.nullable, f.metadata, f.name) for f in struct.fields])


def to_spark_type(arrow_type: "pa.DataType") -> "st.DataType":
    """The Spark type of an Arrow type.

    Several Arrow types stand for one Spark type (large and view variants, dictionaries, other units of time): cast
    the data to ``to_arrow_type`` of the answer before Spark reads it.
    """
    return _spark_type(arrow_type, "", None)


def to_spark_schema(schema: "pa.Schema") -> "st.StructType":
    """The Spark schema of an Arrow schema, with nullability and Spark's own metadata; other metadata is left out."""
    types = _spark_types()
    return types.StructType([_spark_field(field, field.name) for field in schema])


def _arrow_field(
    name: str, spark_type: "st.DataType", nullable: bool, metadata: Mapping[str, Any] | None, path: str
) -> "pa.Field":
    arrow_metadata = {}
    if metadata:
        arrow_metadata[_METADATA] = json.dumps(metadata, separators=(",", ":"), ensure_ascii=False).encode()
    if isinstance(spark_type, _spark_types().TimeType):
        arrow_metadata[_TIME_PRECISION] = str(spark_type.precision).encode()
    arrow_type = _arrow_type(spark_type, path)
    # Spark's empty array, array(), holds no null and has elements of the null type; pyarrow has no such field.
    nullable = nullable or _pyarrow().types.is_null(arrow_type)
    return _pyarrow().field(name, arrow_type, nullable, arrow_metadata or None)


def _arrow_type(spark_type: "st.DataType", path: str) -> "pa.DataType":
    pa, types = _pyarrow(), _spark_types()
    flat = _flat_types().get(type(spark_type))
    if flat is not None:
        return flat
    match spark_type:
        case types.DecimalType():
            return pa.decimal128(spark_type.precision, spark_type.scale)
        case types.ArrayType():
            element, inner = spark_type.elementType, _join(path, "element")
            return pa.list_(_arrow_field("element", element, spark_type.containsNull, None, inner))
        case types.MapType():
            return pa.map_(
                _arrow_field("key", spark_type.keyType, False, None, _join(path, "key")),
                _arrow_field("value", spark_type.valueType, spark_type.valueContainsNull, None, _join(path, "value")),
            )
        case types.StructType():
            _check_names(spark_type, path)
            fields = spark_type.fields
            return pa.struct(
                [_arrow_field(f.name, f.dataType, f.nullable, f.metadata, _join(path, f.name)) for f in fields]
            )
        case types.UserDefinedType():
            return _arrow_type(spark_type.sqlType(), path)
        case types.GeometryType():
            return _spatial(b"geometry", spark_type.srid)
        case types.GeographyType():
            return _spatial(b"geography", spark_type.srid)
        case types.YearMonthIntervalType():
            remedy = "Cast it in Spark, for example CAST(c AS INTERVAL MONTH) and then AS INT, or AS STRING."
        case _:
            remedy = "Cast it in Spark to a type that Arrow has, for example to STRING."
    raise UnsupportedTypeError(
        f"{_place(path)}the Spark type {spark_type.simpleString()!r} cannot be used with pyarrow.",
        column=path or None,
        value=spark_type.simpleString(),
        remedy=remedy,
    )


def _spark_field(field: "pa.Field", path: str) -> "st.StructField":
    metadata = (field.metadata or {}).get(_METADATA)
    spark_type = _spark_type(field.type, path, field.metadata)
    return _spark_types().StructField(
        field.name, spark_type, field.nullable, json.loads(metadata) if metadata else None
    )


def _spark_type(arrow_type: "pa.DataType", path: str, metadata: Mapping[bytes, bytes] | None) -> "st.DataType":
    """``metadata`` is that of the field that has the type, if there is one."""
    pa, types = _pyarrow(), _spark_types()
    is_type = pa.types
    if isinstance(arrow_type, pa.BaseExtensionType):
        return _spark_type(arrow_type.storage_type, path, metadata)
    if is_type.is_dictionary(arrow_type):
        return _spark_type(arrow_type.value_type, path, metadata)
    if is_type.is_timestamp(arrow_type):
        return types.TimestampNTZType() if arrow_type.tz is None else types.TimestampType()
    if is_type.is_time64(arrow_type):
        precision = (metadata or {}).get(_TIME_PRECISION)
        return types.TimeType(int(precision)) if precision else types.TimeType()
    if is_type.is_decimal(arrow_type):
        if 0 <= arrow_type.scale <= arrow_type.precision <= _MAX_DECIMAL_PRECISION:
            return types.DecimalType(arrow_type.precision, arrow_type.scale)
        raise _not_in_spark(arrow_type, path, "Cast it to a decimal128 with at most 38 digits and no negative scale.")
    if is_type.is_map(arrow_type):
        key, value = arrow_type.key_field, arrow_type.item_field
        return types.MapType(
            _spark_type(key.type, _join(path, "key"), key.metadata),
            _spark_type(value.type, _join(path, "value"), value.metadata),
            value.nullable,
        )
    if is_type.is_struct(arrow_type):
        return _spark_struct(arrow_type, path)
    if _is_any_list(arrow_type):
        element = arrow_type.value_field
        return types.ArrayType(_spark_type(element.type, _join(path, "element"), element.metadata), element.nullable)
    if arrow_type.id == _MONTH_INTERVAL_ID:
        return types.YearMonthIntervalType()
    for is_this, spark_class in _flat_tests():
        if is_this(arrow_type):
            return spark_class()
    raise _not_in_spark(arrow_type, path, _cast_remedy(arrow_type))


def _spark_struct(arrow_type: "pa.StructType", path: str) -> "st.DataType":
    """A struct, or one of the types that Spark writes as a struct with a mark on one of its fields."""
    types = _spark_types()
    fields = list(arrow_type)
    marks = {field.name: field.metadata or {} for field in fields}
    if marks.keys() == {"value", "metadata"} and marks["metadata"].get(b"variant") == b"true":
        return types.VariantType()
    if marks.keys() == {"srid", "wkb"}:
        for mark, spark_class in ((b"geometry", types.GeometryType), (b"geography", types.GeographyType)):
            if marks["wkb"].get(mark) == b"true":
                srid = int(marks["wkb"][b"srid"])
                return spark_class("ANY" if srid == spark_class.MIXED_SRID else srid)
    return types.StructType([_spark_field(field, _join(path, field.name)) for field in fields])


@functools.cache
def _flat_types() -> dict[type, "pa.DataType"]:
    """Spark class -> Arrow type, for the types without parameters that matter to Arrow."""
    pa, types = _pyarrow(), _spark_types()
    variant_metadata = pa.field("metadata", pa.binary(), nullable=False, metadata={b"variant": b"true"})
    return {
        types.NullType: pa.null(),
        types.BooleanType: pa.bool_(),
        types.ByteType: pa.int8(),
        types.ShortType: pa.int16(),
        types.IntegerType: pa.int32(),
        types.LongType: pa.int64(),
        types.FloatType: pa.float32(),
        types.DoubleType: pa.float64(),
        types.StringType: pa.string(),
        types.CharType: pa.string(),
        types.VarcharType: pa.string(),
        types.BinaryType: pa.binary(),
        types.DateType: pa.date32(),
        types.TimeType: pa.time64("ns"),
        types.TimestampType: pa.timestamp("us", tz="UTC"),
        types.TimestampNTZType: pa.timestamp("us"),
        types.DayTimeIntervalType: pa.duration("us"),
        types.CalendarIntervalType: pa.month_day_nano_interval(),
        types.VariantType: pa.struct([pa.field("value", pa.binary(), nullable=False), variant_metadata]),
    }


@functools.cache
def _flat_tests() -> tuple[tuple[Any, type], ...]:
    """Arrow's tests and the Spark class they stand for, for the types without parameters that matter to Spark."""
    is_type, types = _pyarrow().types, _spark_types()
    return (
        (is_type.is_null, types.NullType),
        (is_type.is_boolean, types.BooleanType),
        (is_type.is_int8, types.ByteType),
        (is_type.is_int16, types.ShortType),
        (is_type.is_int32, types.IntegerType),
        (is_type.is_int64, types.LongType),
        (is_type.is_float32, types.FloatType),
        (is_type.is_float64, types.DoubleType),
        (is_type.is_string, types.StringType),
        (is_type.is_large_string, types.StringType),
        (is_type.is_string_view, types.StringType),
        (is_type.is_binary, types.BinaryType),
        (is_type.is_large_binary, types.BinaryType),
        (is_type.is_binary_view, types.BinaryType),
        (is_type.is_fixed_size_binary, types.BinaryType),
        (is_type.is_date32, types.DateType),
        (is_type.is_duration, types.DayTimeIntervalType),
        (is_type.is_interval, types.CalendarIntervalType),
    )


def _spatial(mark: bytes, srid: int) -> "pa.DataType":
    pa = _pyarrow()
    metadata = {mark: b"true", b"srid": str(srid).encode()}
    return pa.struct(
        [pa.field("srid", pa.int32(), nullable=False), pa.field("wkb", pa.binary(), nullable=False, metadata=metadata)]
    )


def _is_any_list(arrow_type: "pa.DataType") -> bool:
    is_type = _pyarrow().types
    return bool(
        is_type.is_list(arrow_type)
        or is_type.is_large_list(arrow_type)
        or is_type.is_fixed_size_list(arrow_type)
        or is_type.is_list_view(arrow_type)
        or is_type.is_large_list_view(arrow_type)
    )


def _check_names(struct: "st.StructType", path: str) -> None:
    """Spark refuses to write a struct whose fields share a name as Arrow; say so before a job does."""
    twice = [name for name, count in Counter(struct.names).items() if count > 1]
    if twice:
        raise UnsupportedTypeError(
            f"{_place(path)}the struct has more than one field named {twice[0]!r}.",
            column=path or None,
            value=struct.simpleString(),
            remedy="Rename the fields: Arrow data is addressed by name.",
        )


def _cast_remedy(arrow_type: "pa.DataType") -> str:
    pa = _pyarrow()
    wider = {
        pa.uint8(): "int16",
        pa.uint16(): "int32",
        pa.uint32(): "int64",
        pa.uint64(): "decimal128(20, 0)",
        pa.float16(): "float32",
        pa.date64(): "date32",
        pa.time32("s"): "time64('ns')",
        pa.time32("ms"): "time64('ns')",
    }.get(arrow_type)
    return f"Cast it to {wider}." if wider else "Cast it to a type that Spark has, for example to string."


def _not_in_spark(arrow_type: "pa.DataType", path: str, remedy: str) -> UnsupportedTypeError:
    return UnsupportedTypeError(
        f"{_place(path)}Spark has no type for the Arrow type {str(arrow_type)!r}.",
        column=path or None,
        value=str(arrow_type),
        remedy=remedy,
    )


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _place(path: str) -> str:
    return f"column {path!r}: " if path else ""


@functools.cache
def _pyarrow() -> Any:
    return require("pyarrow", "spark")


@functools.cache
def _spark_types() -> Any:
    return require("pyspark.sql.types", "spark")
