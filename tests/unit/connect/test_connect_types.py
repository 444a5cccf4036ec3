"""Data types: PySpark's spellings, JSON and trees, compared with the installed PySpark's."""

import json

import pyspark
import pyspark.sql.types as official
import pytest

from solstice.connect import StorageLevel
from solstice.connect import types as T
from solstice.connect._protocol import load_protocol
from solstice.connect._types import decode_type, encode_type
from solstice.errors import ConfigError

FLAT = (
    "Null Boolean Byte Short Integer Long Float Double String Binary Date Timestamp TimestampNTZ CalendarInterval "
    "Variant Time DayTimeInterval YearMonthInterval Decimal"
)


def both(make):
    """The same type in both worlds."""
    return make(T), make(official)


SCHEMAS = [
    *[lambda m, name=name: m.StructType().add("a", getattr(m, f"{name}Type")()) for name in FLAT.split()],
    lambda m: m.StructType().add("a", m.DecimalType(20, 4)).add("b", m.CharType(3)).add("c", m.VarcharType(5)),
    lambda m: m.StructType().add("a", m.DayTimeIntervalType(1, 2)).add("b", m.YearMonthIntervalType(1)),
    lambda m: m.StructType().add("a", m.TimeType(3), False, {"k": [1]}),
    lambda m: m.StructType().add("a", m.StringType("UNICODE")).add("b", m.StringType("UTF8_LCASE")),
    lambda m: m.StructType().add("a", m.ArrayType(m.MapType(m.StringType("UNICODE"), m.LongType(), False), False)),
    lambda m: m.StructType([m.StructField("s", m.StructType([m.StructField("x", m.StringType("UNICODE"))]), False)]),
    lambda m: m.StructType().add("a", "integer").add("b", "decimal(5,2)").add("c", "string"),
]


@pytest.mark.parametrize("make", SCHEMAS)
def test_a_schema_is_spelled_as_pyspark_spells_it(make):
    ours, theirs = both(make)
    assert ours.json() == theirs.json()
    assert ours.simpleString() == theirs.simpleString()
    assert ours.treeString() == theirs.treeString()
    assert ours.fieldNames() == theirs.fieldNames()


@pytest.mark.parametrize("make", SCHEMAS)
def test_a_schema_survives_json_and_the_protocol(make):
    schema = make(T)
    assert T.StructType.fromJson(json.loads(schema.json())) == schema
    message = load_protocol().DataType()
    encode_type(schema, message)
    assert decode_type(message) == schema


def test_a_tree_ends_at_its_depth():
    ours, theirs = both(lambda m: m.StructType().add("a", m.ArrayType(m.ArrayType(m.LongType()))))
    assert ours.tree_string(2) == theirs.treeString(2)


def test_attributes_and_keywords_have_both_spellings():
    field = T.StructField("a", dataType=T.ArrayType(elementType=T.LongType(), containsNull=False))
    assert field.dataType.elementType == field.data_type.element_type == T.LongType()
    assert T.MapType(keyType=T.StringType(), valueType=T.LongType()).valueContainsNull
    assert T.DayTimeIntervalType(startField=1).endField == 1


def test_a_field_is_added_in_place_as_in_pyspark():
    schema = T.StructType()
    for name in ("a", "b"):
        schema.add(name, T.LongType())
    assert schema.names == ["a", "b"]
    assert schema == T.StructType([T.StructField("a", T.LongType()), T.StructField("b", T.LongType())])


def test_kinds_of_types_can_be_asked_for():
    assert isinstance(T.DecimalType(), T.NumericType)
    assert isinstance(T.LongType(), T.IntegralType)
    assert not isinstance(T.StringType(), T.NumericType)


@pytest.mark.parametrize("text", ["text", "decimal(a)", "interval week", {"type": "tuple"}])
def test_what_is_not_a_type_is_refused(text):
    with pytest.raises(ConfigError):
        T.StructType.fromJson({"type": "struct", "fields": [{"name": "a", "type": text}]})


@pytest.mark.parametrize(
    "made",
    [
        *(f"T.{name}Type()" for name in ("Null", "Boolean", "Byte", "Short", "Integer", "Long", "Float", "Double")),
        *(f"T.{name}Type()" for name in ("Binary", "Date", "Timestamp", "TimestampNTZ", "Time", "CalendarInterval")),
        *("T.VariantType()", "T.DecimalType()", "T.DecimalType(10, 2)", "T.StringType()", "T.CharType(3)"),
        *("T.DayTimeIntervalType()", "T.DayTimeIntervalType(1, 2)", "T.YearMonthIntervalType(0)", "T.TimeType(3)"),
        "T.ArrayType(T.DecimalType(5, 1), False)",
        "T.MapType(T.StringType(), T.ArrayType(T.LongType()))",
        "T.StructType([T.StructField('a', T.DecimalType(), False, {'k': 1})]).add('b', T.StringType())",
    ],
)
def test_a_type_is_told_as_pyspark_tells_it(made):
    theirs, ours = eval(made, {"T": official}), eval(made, {"T": T})
    for tell in (repr, str, lambda t: t.simpleString(), lambda t: t.json(), lambda t: t.typeName()):
        assert tell(ours) == tell(theirs)


def test_all_types_of_pyspark_are_here():
    later = {"Geography", "GeographyType", "Geometry", "GeometryType", "VariantVal"}
    assert set(official.__all__) - later <= set(T.__all__)
    assert not later & set(T.__all__)


@pytest.mark.parametrize("make", SCHEMAS)
def test_a_schema_made_nullable_is_pysparks(make):
    ours, theirs = both(make)
    assert json.loads(ours.toNullable().json()) == json.loads(theirs.toNullable().json())
    within = T.StructType([T.StructField("a", T.ArrayType(ours, False), False)])
    assert within.toNullable() == T.StructType().add("a", T.ArrayType(ours.toNullable()))


def test_a_field_goes_through_json():
    ours, theirs = both(lambda m: m.StructField("a", m.ArrayType(m.StringType("UTF8_LCASE"), False), False, {"x": 1}))
    assert json.loads(ours.json()) == json.loads(theirs.json())
    assert T.StructField.fromJson(json.loads(ours.json())) == ours


def test_wrong_uses_are_type_errors():
    for use in (
        lambda: T.StructField("a", T.LongType),
        lambda: T.StructType().add("a"),
        lambda: T.StructType.fromJson("long"),
    ):
        with pytest.raises(TypeError):
            use()


@pytest.mark.parametrize("make", SCHEMAS)
def test_a_schema_is_shown_as_pyspark_shows_it(make):
    ours, theirs = both(make)
    assert repr(ours).replace(", ", ",") == repr(theirs).replace(", ", ",")  # PySpark has no space in a decimal


@pytest.mark.parametrize("name", ["NONE", "DISK_ONLY", "MEMORY_ONLY_2", "MEMORY_AND_DISK_DESER", "OFF_HEAP"])
def test_a_storage_level_is_shown_as_pyspark_shows_it(name):
    ours, theirs = getattr(StorageLevel, name), getattr(pyspark.StorageLevel, name)
    assert (repr(ours), str(ours)) == (repr(theirs), str(theirs))
