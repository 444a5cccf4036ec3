"""Random Spark schemas for the tests of the type mapping, and a way to compare Arrow schemas to the last detail."""

import json

import pyarrow as pa
from hypothesis import strategies as st
from pyspark.sql import types as t


class PointUDT(t.UserDefinedType):
    """A user-defined type, stored as an array of doubles."""

    @classmethod
    def sqlType(cls):
        return t.ArrayType(t.DoubleType(), False)

    @classmethod
    def module(cls):
        return "arrow_schemas"

    def serialize(self, obj):
        return list(obj)

    def deserialize(self, datum):
        return tuple(datum)


# Types that come back from Arrow as they went in.
KEPT = [
    t.NullType(),
    t.BooleanType(),
    t.ByteType(),
    t.ShortType(),
    t.IntegerType(),
    t.LongType(),
    t.FloatType(),
    t.DoubleType(),
    t.StringType(),
    t.BinaryType(),
    t.DateType(),
    t.TimestampType(),
    t.TimestampNTZType(),
    t.DayTimeIntervalType(),
    t.VariantType(),
    t.GeometryType(4326),
    t.GeometryType("ANY"),
    t.GeographyType(4326),
    t.GeographyType("ANY"),
]
# Types that come back as another one, with that one: Arrow does not hold what tells them apart.
CHANGED = [
    (t.StringType("UNICODE_CI"), t.StringType()),
    (t.CharType(3), t.StringType()),
    (t.VarcharType(7), t.StringType()),
    (t.DayTimeIntervalType(t.DayTimeIntervalType.HOUR, t.DayTimeIntervalType.MINUTE), t.DayTimeIntervalType()),
    (PointUDT(), t.ArrayType(t.DoubleType(), False)),
]
ORDERED = [t.StringType(), t.LongType(), t.DateType(), t.BinaryType(), t.ByteType(), t.TimestampType()]

decimals = st.integers(1, 38).flatmap(lambda p: st.integers(0, p).map(lambda s: t.DecimalType(p, s)))
times = st.integers(0, 9).map(t.TimeType)
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=8)
metadata_values = st.one_of(
    st.booleans(), st.integers(-(2**63), 2**63 - 1), texts, st.lists(st.integers(0, 9), min_size=1, max_size=3)
)
metadata = st.dictionaries(texts, metadata_values | st.dictionaries(texts, texts, max_size=2), max_size=2)


def is_null(spark_type):
    """What has this type is always made nullable: the exception has a test of its own."""
    return isinstance(spark_type, t.NullType)


def leaves(*extra):
    return st.one_of(st.sampled_from(KEPT), decimals, times, *(st.just(one) for one in extra))


def types(leaf):
    """Types of any depth over the leaves."""
    keys = st.one_of(st.sampled_from(ORDERED), decimals)
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            st.builds(lambda of, null: t.ArrayType(of, null or is_null(of)), inner, st.booleans()),
            st.builds(lambda key, of, null: t.MapType(key, of, null or is_null(of)), keys, inner, st.booleans()),
            structs(inner, min_size=0),
        ),
        max_leaves=6,
    )


def structs(inner, min_size=1, max_size=4, names=texts):
    """Structs without two names that differ in case only: Spark would not resolve them."""
    fields = st.builds(
        lambda name, of, null, more: t.StructField(name, of, null or is_null(of), more),
        names,
        inner,
        st.booleans(),
        metadata,
    )
    unique = st.lists(fields, min_size=min_size, max_size=max_size, unique_by=lambda field: field.name.casefold())
    return unique.map(t.StructType)


def schemas(*extra_leaves, max_size=5):
    return structs(types(leaves(*extra_leaves)), max_size=max_size)


def describe(schema):
    """Everything about an Arrow schema that can differ, inner names included: Arrow's own equality skips some."""
    return [_describe_field(field) for field in schema]


def _describe_field(field):
    annotations = {key.decode(): value.decode() for key, value in (field.metadata or {}).items()}
    if "SPARK::metadata::json" in annotations:
        annotations["SPARK::metadata::json"] = json.loads(annotations["SPARK::metadata::json"])
    return field.name, field.nullable, annotations, _describe_type(field.type)


def _describe_type(arrow_type):
    if pa.types.is_map(arrow_type):
        return ["map", _describe_field(arrow_type.key_field), _describe_field(arrow_type.item_field)]
    if pa.types.is_list(arrow_type):
        return ["list", _describe_field(arrow_type.value_field)]
    if pa.types.is_struct(arrow_type):
        return ["struct", *(_describe_field(field) for field in arrow_type)]
    return str(arrow_type)


def without_time_precision(described):
    """The description without what pyspark's own mapping leaves out."""
    if isinstance(described, dict):
        return {key: value for key, value in described.items() if key != "SPARK::time::precision"}
    if isinstance(described, list | tuple):
        return type(described)(without_time_precision(part) for part in described)
    return described


def replaced(spark_type, replace):
    """The type with ``replace`` applied to each leaf."""
    match spark_type:
        case t.ArrayType():
            return t.ArrayType(replaced(spark_type.elementType, replace), spark_type.containsNull)
        case t.MapType():
            key, value = replaced(spark_type.keyType, replace), replaced(spark_type.valueType, replace)
            return t.MapType(key, value, spark_type.valueContainsNull)
        case t.StructType():
            return t.StructType(
                [t.StructField(f.name, replaced(f.dataType, replace), f.nullable, f.metadata) for f in spark_type]
            )
    return replace(spark_type)
