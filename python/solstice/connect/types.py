"""Spark's data types, as a DataFrame's schema has them. Values: immutable, equal when they say the same."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, overload

__all__ = [
    "ArrayType",
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
    "IntegerType",
    "LongType",
    "MapType",
    "NullType",
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


@dataclass(frozen=True)
class DataType:
    """The base of all types."""

    _name: ClassVar[str] = ""

    def simple_string(self) -> str:
        """The type as SQL spells it, for example ``array<int>``."""
        return self._name


@dataclass(frozen=True)
class NullType(DataType):
    """The type of NULL."""

    _name: ClassVar[str] = "void"


@dataclass(frozen=True)
class BooleanType(DataType):
    """True and false."""

    _name: ClassVar[str] = "boolean"


@dataclass(frozen=True)
class ByteType(DataType):
    """Whole numbers of 8 bits."""

    _name: ClassVar[str] = "tinyint"


@dataclass(frozen=True)
class ShortType(DataType):
    """Whole numbers of 16 bits."""

    _name: ClassVar[str] = "smallint"


@dataclass(frozen=True)
class IntegerType(DataType):
    """Whole numbers of 32 bits."""

    _name: ClassVar[str] = "int"


@dataclass(frozen=True)
class LongType(DataType):
    """Whole numbers of 64 bits."""

    _name: ClassVar[str] = "bigint"


@dataclass(frozen=True)
class FloatType(DataType):
    """Floating point numbers of 32 bits."""

    _name: ClassVar[str] = "float"


@dataclass(frozen=True)
class DoubleType(DataType):
    """Floating point numbers of 64 bits."""

    _name: ClassVar[str] = "double"


@dataclass(frozen=True)
class DecimalType(DataType):
    """Exact decimal numbers: ``precision`` digits, ``scale`` of them after the point."""

    precision: int = 10
    scale: int = 0

    def simple_string(self) -> str:
        """The type as SQL spells it."""
        return f"decimal({self.precision},{self.scale})"


@dataclass(frozen=True)
class StringType(DataType):
    """Text, compared by its collation."""

    collation: str = DEFAULT_COLLATION

    def simple_string(self) -> str:
        """The type as SQL spells it."""
        return "string" if self.collation == DEFAULT_COLLATION else f"string collate {self.collation}"


@dataclass(frozen=True)
class CharType(DataType):
    """Text of a fixed length."""

    length: int

    def simple_string(self) -> str:
        """The type as SQL spells it."""
        return f"char({self.length})"


@dataclass(frozen=True)
class VarcharType(DataType):
    """Text of a limited length."""

    length: int

    def simple_string(self) -> str:
        """The type as SQL spells it."""
        return f"varchar({self.length})"


@dataclass(frozen=True)
class BinaryType(DataType):
    """Bytes."""

    _name: ClassVar[str] = "binary"


@dataclass(frozen=True)
class DateType(DataType):
    """Days of the calendar."""

    _name: ClassVar[str] = "date"


@dataclass(frozen=True)
class TimeType(DataType):
    """Times of the day, with ``precision`` digits of a second."""

    precision: int = 6

    def simple_string(self) -> str:
        """The type as SQL spells it."""
        return f"time({self.precision})"


@dataclass(frozen=True)
class TimestampType(DataType):
    """Instants, in microseconds."""

    _name: ClassVar[str] = "timestamp"


@dataclass(frozen=True)
class TimestampNTZType(DataType):
    """Date and time without a zone, in microseconds."""

    _name: ClassVar[str] = "timestamp_ntz"


@dataclass(frozen=True)
class CalendarIntervalType(DataType):
    """Months, days and microseconds."""

    _name: ClassVar[str] = "interval"


@dataclass(frozen=True)
class _FieldIntervalType(DataType):
    start_field: int
    end_field: int

    _fields: ClassVar[tuple[str, ...]] = ()

    def simple_string(self) -> str:
        """The type as SQL spells it."""
        start, end = self._fields[self.start_field], self._fields[self.end_field]
        return f"interval {start}" if start == end else f"interval {start} to {end}"


@dataclass(frozen=True)
class YearMonthIntervalType(_FieldIntervalType):
    """Intervals of years and months."""

    start_field: int = 0
    end_field: int = 1

    _fields: ClassVar[tuple[str, ...]] = ("year", "month")


@dataclass(frozen=True)
class DayTimeIntervalType(_FieldIntervalType):
    """Intervals of days to microseconds."""

    start_field: int = 0
    end_field: int = 3

    _fields: ClassVar[tuple[str, ...]] = ("day", "hour", "minute", "second")


@dataclass(frozen=True)
class VariantType(DataType):
    """Semi-structured values."""

    _name: ClassVar[str] = "variant"


@dataclass(frozen=True)
class UnknownType(DataType):
    """A type that this client has no class for; ``name`` is the protocol's."""

    name: str

    def simple_string(self) -> str:
        """The type's name."""
        return self.name


@dataclass(frozen=True)
class ArrayType(DataType):
    """Arrays."""

    element_type: DataType
    contains_null: bool = True

    def simple_string(self) -> str:
        """The type as SQL spells it."""
        return f"array<{self.element_type.simple_string()}>"


@dataclass(frozen=True)
class MapType(DataType):
    """Maps."""

    key_type: DataType
    value_type: DataType
    value_contains_null: bool = True

    def simple_string(self) -> str:
        """The type as SQL spells it."""
        return f"map<{self.key_type.simple_string()},{self.value_type.simple_string()}>"


@dataclass(frozen=True)
class StructField:
    """A named part of a struct, or a column."""

    name: str
    data_type: DataType
    nullable: bool = True
    metadata: dict[str, Any] = field(default_factory=dict, hash=False)

    def simple_string(self) -> str:
        """Name and type."""
        return f"{self.name}:{self.data_type.simple_string()}"


@dataclass(frozen=True)
class StructType(DataType):
    """Structs; also the schema of a DataFrame. Fields are found by position and by name."""

    fields: tuple[StructField, ...] = ()

    @property
    def names(self) -> list[str]:
        """The fields' names."""
        return [field.name for field in self.fields]

    def simple_string(self) -> str:
        """The type as SQL spells it."""
        return f"struct<{','.join(field.simple_string() for field in self.fields)}>"

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
