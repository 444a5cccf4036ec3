"""Spark's data types, as a DataFrame's schema has them; equal when they say the same. PySpark's spellings work too.

All are values that cannot be changed, but for ``StructType.add``, which adds a field in place as PySpark's does:
instead of ``field.nullable = True``, make another field, or another schema with ``to_nullable()``.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, Self, overload

from solstice.connect._camel import camel_cased
from solstice.connect._record import Record
from solstice.connect._row import Row
from solstice.errors import ArgumentTypeError

__all__ = [
    "ArrayType",
    "AtomicType",
    "BinaryType",
    "BooleanType",
    "ByteType",
    "CalendarIntervalType",
    "CharType",
    "DataType",
    "DateType",
    "DayTimeIntervalType",
    "DecimalType",
    "DoubleType",
    "FloatType",
    "FractionalType",
    "IntegerType",
    "IntegralType",
    "LongType",
    "MapType",
    "NullType",
    "NumericType",
    "Row",
    "ShortType",
    "StringType",
    "StructField",
    "StructType",
    "TimeType",
    "TimestampNTZType",
    "TimestampType",
    "UnknownType",
    "VarcharType",
    "VariantType",
    "YearMonthIntervalType",
]

DEFAULT_COLLATION = "UTF8_BINARY"
_COLLATIONS = "__COLLATIONS"


@camel_cased(from_ddl="fromDDL")
class DataType(Record):
    """The base of all types."""

    _sql: ClassVar[str] = ""  # as SQL spells it
    _name: ClassVar[str] = ""  # as the JSON form of a schema spells it, where that differs

    @staticmethod
    def from_ddl(ddl: str) -> "DataType":
        """The type that text like ``a INT, b STRING`` stands for; the active session's server reads it."""
        from solstice.connect._session import Session

        return Session.active()._type_now(ddl)

    def to_nullable(self) -> Self:
        """The type with NULL allowed everywhere in it."""
        nullable: Self = _nullable(self)  # type: ignore[assignment]
        return nullable

    def __repr__(self) -> str:
        """As PySpark shows it, and as code that makes the type."""
        return f"{type(self).__name__}({', '.join(map(repr, self._shown()))})"

    def _shown(self) -> tuple[Any, ...]:
        return self._values()

    def simple_string(self) -> str:
        """The type as SQL spells it, for example ``array<int>``."""
        return self._sql

    @classmethod
    def type_name(cls) -> str:
        """The name of the kind of type, for example ``array``."""
        return cls._name or cls._sql

    def json_value(self) -> Any:
        """The type as a part of the JSON form of a schema."""
        return self._name or self.simple_string()

    def json(self) -> str:
        """The type in the JSON form that Spark reads and writes."""
        return _json(self.json_value())

    def _tree(self, indent: str, depth: int) -> list[str]:
        """The lines of the types within this one."""
        return []

    def _tree_name(self) -> str:
        return self.type_name()


class NullType(DataType):
    """The type of NULL."""

    _sql = "void"


class AtomicType(DataType):
    """The base of types that have no types within."""


class NumericType(AtomicType):
    """The base of numbers."""


class IntegralType(NumericType):
    """The base of whole numbers."""


class FractionalType(NumericType):
    """The base of numbers with a fraction."""


class BooleanType(AtomicType):
    """True and false."""

    _sql = "boolean"


class ByteType(IntegralType):
    """Whole numbers of 8 bits."""

    _sql, _name = "tinyint", "byte"


class ShortType(IntegralType):
    """Whole numbers of 16 bits."""

    _sql, _name = "smallint", "short"


class IntegerType(IntegralType):
    """Whole numbers of 32 bits."""

    _sql, _name = "int", "integer"


class LongType(IntegralType):
    """Whole numbers of 64 bits."""

    _sql, _name = "bigint", "long"


class FloatType(FractionalType):
    """Floating point numbers of 32 bits."""

    _sql = "float"


class DoubleType(FractionalType):
    """Floating point numbers of 64 bits."""

    _sql = "double"


class _ParameterType(AtomicType):
    """The base of types with parameters: nothing is the same for all of a kind but the name."""

    def json_value(self) -> Any:
        return self.simple_string()

    def _tree_name(self) -> str:
        return self.simple_string()


class DecimalType(_ParameterType, FractionalType):
    """Exact decimal numbers: ``precision`` digits, ``scale`` of them after the point."""

    precision: int = 10
    scale: int = 0

    _name = "decimal"

    def simple_string(self) -> str:
        """The type as SQL spells it."""
        return f"decimal({self.precision},{self.scale})"

    def __repr__(self) -> str:
        """As PySpark shows it: without a blank."""
        return f"DecimalType({self.precision},{self.scale})"


class StringType(AtomicType):
    """Text, compared by its collation."""

    collation: str = DEFAULT_COLLATION

    _name = "string"

    def _shown(self) -> tuple[Any, ...]:
        return () if self.collation == DEFAULT_COLLATION else (self.collation,)

    def simple_string(self) -> str:
        """The type as SQL spells it."""
        return "string" if self.collation == DEFAULT_COLLATION else f"string collate {self.collation}"


class CharType(_ParameterType):
    """Text of a fixed length."""

    length: int

    _name = "char"

    def simple_string(self) -> str:
        """The type as SQL spells it."""
        return f"char({self.length})"


class VarcharType(_ParameterType):
    """Text of a limited length."""

    length: int

    _name = "varchar"

    def simple_string(self) -> str:
        """The type as SQL spells it."""
        return f"varchar({self.length})"


class BinaryType(AtomicType):
    """Bytes."""

    _sql = "binary"


class DateType(AtomicType):
    """Days of the calendar."""

    _sql = "date"


class TimeType(_ParameterType):
    """Times of the day, with ``precision`` digits of a second."""

    precision: int = 6

    _name = "time"

    def simple_string(self) -> str:
        """The type as SQL spells it."""
        return f"time({self.precision})"


class TimestampType(AtomicType):
    """Instants, in microseconds."""

    _sql = "timestamp"


class TimestampNTZType(AtomicType):
    """Date and time without a zone, in microseconds."""

    _sql = "timestamp_ntz"


class CalendarIntervalType(DataType):
    """Months, days and microseconds."""

    _sql = "interval"


class _FieldIntervalType(_ParameterType):
    _units: ClassVar[tuple[str, ...]] = ()

    start_field: int
    end_field: int

    def simple_string(self) -> str:
        """The type as SQL spells it."""
        start, end = self._units[self.start_field], self._units[self.end_field]
        return f"interval {start}" if start == end else f"interval {start} to {end}"


@camel_cased()
class YearMonthIntervalType(_FieldIntervalType):
    """Intervals of years and months."""

    _units, _name = ("year", "month"), "yearmonthinterval"

    def __init__(self, start_field: int | None = None, end_field: int | None = None) -> None:
        super().__init__(*_interval_fields(start_field, end_field, last=1))


@camel_cased()
class DayTimeIntervalType(_FieldIntervalType):
    """Intervals of days to microseconds."""

    _units, _name = ("day", "hour", "minute", "second"), "daytimeinterval"

    def __init__(self, start_field: int | None = None, end_field: int | None = None) -> None:
        super().__init__(*_interval_fields(start_field, end_field, last=3))


def _interval_fields(start: int | None, end: int | None, last: int) -> tuple[int, int]:
    """All fields by default; one, if only one is given."""
    return (0, last) if start is None else (start, start if end is None else end)


class VariantType(AtomicType):
    """Semi-structured values."""

    _sql = "variant"


class UnknownType(DataType):
    """A type that this client has no class for; ``name`` is the protocol's."""

    name: str

    def simple_string(self) -> str:
        """The type's name."""
        return self.name


@camel_cased()
class ArrayType(DataType):
    """Arrays."""

    element_type: DataType
    contains_null: bool = True

    _name = "array"

    def simple_string(self) -> str:
        """The type as SQL spells it."""
        return f"array<{self.element_type.simple_string()}>"

    def json_value(self) -> Any:
        """The type as a part of the JSON form of a schema."""
        return {"type": "array", "elementType": self.element_type.json_value(), "containsNull": self.contains_null}

    def _tree(self, indent: str, depth: int) -> list[str]:
        return _branch("element", self.element_type, f"containsNull = {_flag(self.contains_null)}", indent, depth)


@camel_cased()
class MapType(DataType):
    """Maps."""

    key_type: DataType
    value_type: DataType
    value_contains_null: bool = True

    _name = "map"

    def simple_string(self) -> str:
        """The type as SQL spells it."""
        return f"map<{self.key_type.simple_string()},{self.value_type.simple_string()}>"

    def json_value(self) -> Any:
        """The type as a part of the JSON form of a schema."""
        return {
            "type": "map",
            "keyType": self.key_type.json_value(),
            "valueType": self.value_type.json_value(),
            "valueContainsNull": self.value_contains_null,
        }

    def _tree(self, indent: str, depth: int) -> list[str]:
        note = f"valueContainsNull = {_flag(self.value_contains_null)}"
        return _branch("key", self.key_type, "", indent, depth) + _branch("value", self.value_type, note, indent, depth)


@camel_cased()
class StructField(Record):
    """A named part of a struct, or a column."""

    name: str
    data_type: DataType
    nullable: bool
    metadata: dict[str, Any]

    def __init__(
        self, name: str, data_type: DataType, nullable: bool = True, metadata: dict[str, Any] | None = None
    ) -> None:
        if not isinstance(data_type, DataType):
            raise ArgumentTypeError(
                f"the type of field {name!r} is {data_type!r}; pass a type, for example StringType()"
            )
        super().__init__(name, data_type, nullable, metadata or {})

    def __hash__(self) -> int:
        return hash((self.name, self.data_type, self.nullable))

    def __repr__(self) -> str:
        return f"StructField({self.name!r}, {self.data_type!r}, {self.nullable})"

    def simple_string(self) -> str:
        """Name and type."""
        return f"{self.name}:{self.data_type.simple_string()}"

    @staticmethod
    def from_json(json: dict[str, Any]) -> "StructField":
        """The field that ``json_value`` gave, as Python's json reads it."""
        return StructType.from_json({"type": "struct", "fields": [json]})[0]

    def json(self) -> str:
        """The field in the JSON form that Spark reads and writes."""
        return _json(self.json_value())

    def json_value(self) -> dict[str, Any]:
        """The field as a part of the JSON form of a schema, in which collations are metadata."""
        collations = dict(_collations(self.data_type, self.name))
        metadata = {**self.metadata, _COLLATIONS: collations} if collations else self.metadata
        data_type = _plain(self.data_type) if collations else self.data_type
        return {"name": self.name, "type": data_type.json_value(), "nullable": self.nullable, "metadata": metadata}


@camel_cased(to_ddl="toDDL")
class StructType(DataType):
    """Structs; also the schema of a DataFrame. Fields are found by position and by name."""

    fields: list[StructField]

    _name = "struct"

    def __init__(self, fields: Iterable[StructField] | None = None) -> None:
        super().__init__(list(fields or ()))

    def __hash__(self) -> int:
        return hash(tuple(self.fields))

    @property
    def names(self) -> list[str]:
        """The fields' names."""
        return [field.name for field in self.fields]

    def field_names(self) -> list[str]:
        """The fields' names."""
        return self.names

    def add(
        self,
        field: str | StructField,
        data_type: str | DataType | None = None,
        nullable: bool = True,
        metadata: dict[str, Any] | None = None,
    ) -> "StructType":
        """Add a field, in place, and return the struct itself."""
        if isinstance(field, str):
            if data_type is None:
                raise ArgumentTypeError(f"the field {field!r} needs a type")
            if isinstance(data_type, str):
                data_type = _parse(data_type)
            field = StructField(field, data_type, nullable, metadata)
        self.fields.append(field)
        return self

    @staticmethod
    def from_json(json: dict[str, Any]) -> "StructType":
        """The struct that ``json_value`` gave, as Python's json reads it."""
        struct = _parse(json)
        if not isinstance(struct, StructType):
            raise ArgumentTypeError(f"this is the JSON form of {struct.simple_string()}, not of a struct")
        return struct

    def simple_string(self) -> str:
        """The type as SQL spells it."""
        return f"struct<{','.join(field.simple_string() for field in self.fields)}>"

    def json_value(self) -> Any:
        """The type as a part of the JSON form of a schema."""
        return {"type": "struct", "fields": [field.json_value() for field in self.fields]}

    def to_ddl(self) -> str:
        """The fields as SQL declares columns, for example ``a INT NOT NULL``; the active session's server writes it."""
        from solstice.connect._session import Session

        return Session.active()._ddl_now(self)

    def tree_string(self, max_depth: int = 0) -> str:
        """The schema as an indented list, as ``print_schema`` shows it; 0 is no limit of the depth."""
        return "\n".join(["root", *self._tree(" |", max_depth or 1_000_000), ""])

    def _tree(self, indent: str, depth: int) -> list[str]:
        lines: list[str] = []
        for field in self.fields:
            lines += _branch(field.name, field.data_type, f"nullable = {_flag(field.nullable)}", indent, depth)
        return lines

    def __len__(self) -> int:
        return len(self.fields)

    def __iter__(self) -> Iterator[StructField]:
        return iter(self.fields)

    @overload
    def __getitem__(self, key: int | str) -> StructField: ...

    @overload
    def __getitem__(self, key: slice) -> "StructType": ...

    def __getitem__(self, key: int | str | slice) -> "StructField | StructType":
        if isinstance(key, slice):
            return StructType(self.fields[key])
        if isinstance(key, int):
            return self.fields[key]
        for candidate in self.fields:
            if candidate.name == key:
                return candidate
        raise KeyError(f"no field {key!r}; there are: {', '.join(self.names)}")


def _branch(name: str, data_type: DataType, note: str, indent: str, depth: int) -> list[str]:
    if depth <= 0:
        return []
    line = f"{indent}-- {name}: {data_type._tree_name()}"
    return [f"{line} ({note})" if note else line, *data_type._tree(f"{indent}    |", depth - 1)]


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _collations(data_type: DataType, path: str) -> Iterator[tuple[str, str]]:
    """Where in a field there is text with a collation of its own; structs within say so themselves."""
    if isinstance(data_type, StringType) and data_type.collation != DEFAULT_COLLATION:
        provider = "spark" if data_type.collation.startswith("UTF8") else "icu"
        yield path, f"{provider}.{data_type.collation}"
    elif isinstance(data_type, ArrayType):
        yield from _collations(data_type.element_type, f"{path}.element")
    elif isinstance(data_type, MapType):
        yield from _collations(data_type.key_type, f"{path}.key")
        yield from _collations(data_type.value_type, f"{path}.value")


def _nullable(data_type: DataType) -> DataType:
    match data_type:
        case ArrayType():
            return ArrayType(_nullable(data_type.element_type))
        case MapType():
            return MapType(_nullable(data_type.key_type), _nullable(data_type.value_type))
        case StructType():
            return StructType(StructField(f.name, _nullable(f.data_type), True, f.metadata) for f in data_type)
    return data_type


def _plain(data_type: DataType) -> DataType:
    """A type without its collations."""
    match data_type:
        case StringType():
            return StringType()
        case ArrayType():
            return ArrayType(_plain(data_type.element_type), data_type.contains_null)
        case MapType():
            return MapType(_plain(data_type.key_type), _plain(data_type.value_type), data_type.value_contains_null)
    return data_type


def _parse(value: Any) -> DataType:
    from solstice.connect._type_json import parse_type

    return parse_type(value)
