"""Reading: files, tables and other sources, as lazy DataFrames."""

from collections.abc import Mapping, Sequence
from typing import Any, Generic

from solstice.connect import _plan as plan
from solstice.connect import types
from solstice.connect._camel import camel_cased
from solstice.connect._frame import Frame
from solstice.connect._session_methods import FrameT, SessionMethods
from solstice.errors import ArgumentTypeError, InvalidPlanError

_Schema = types.StructType | str | None
_Paths = str | Sequence[str]
_OF_FILES = "pathGlobFilter recursiveFileLookup modifiedBefore modifiedAfter"
# What PySpark's methods take by position, after what is written out below.
_POSITIONS = {
    "orc": f"mergeSchema {_OF_FILES}",
    "text": _OF_FILES,
    "csv": "sep encoding quote escape comment header inferSchema ignoreLeadingWhiteSpace ignoreTrailingWhiteSpace "
    "nullValue nanValue positiveInf negativeInf dateFormat timestampFormat maxColumns maxCharsPerColumn "
    "maxMalformedLogPerPartition mode columnNameOfCorruptRecord multiLine charToEscapeQuoteEscaping samplingRatio "
    f"enforceSchema emptyValue locale lineSep {_OF_FILES} unescapedQuoteHandling",
    "json": "primitivesAsString prefersDecimal allowComments allowUnquotedFieldNames allowSingleQuotes "
    "allowNumericLeadingZero allowBackslashEscapingAnyCharacter mode columnNameOfCorruptRecord dateFormat "
    "timestampFormat multiLine allowUnquotedControlChars lineSep samplingRatio dropFieldIfAllNull encoding locale "
    f"{_OF_FILES} allowNonNumericNumbers useUnsafeRow",
    "xml": "excludeAttribute attributePrefix valueTag ignoreSurroundingSpaces rowValidationXSDPath ignoreNamespace "
    "wildcardColName encoding inferSchema nullValue dateFormat timestampFormat mode columnNameOfCorruptRecord "
    "multiLine samplingRatio locale",
}


@camel_cased()
class DataFrameReader(Generic[FrameT]):
    """``spark.read``: a format, a schema and options, then ``load`` or a format's own method.

    Options have Spark's own names: ``header``, ``inferSchema``, ``mergeSchema``. One that is None is left out.
    """

    def __init__(self, session: SessionMethods[FrameT]) -> None:
        self._session = session
        self._format: str | None = None
        self._schema = ""
        self._options: dict[str, str] = {}

    def format(self, source: str) -> "DataFrameReader[FrameT]":
        """The source's format or class."""
        self._format = source
        return self

    def schema(self, schema: types.StructType | str) -> "DataFrameReader[FrameT]":
        """The schema, so that Spark need not find it out: a struct, or text like ``a INT, b STRING``."""
        if not isinstance(schema, types.StructType | str):
            raise ArgumentTypeError(f"{schema!r} is not a schema; pass a StructType or text like 'a INT, b STRING'")
        self._schema = schema if isinstance(schema, str) else schema.json()
        return self

    def option(self, key: str, value: Any) -> "DataFrameReader[FrameT]":
        """An option of the source."""
        return self.options(**{key: value})

    def options(self, **options: Any) -> "DataFrameReader[FrameT]":
        """Options of the source."""
        self._options |= {key: _text(value) for key, value in options.items() if value is not None}
        return self

    def load(
        self, path: _Paths | None = None, format: str | None = None, schema: _Schema = None, **options: Any
    ) -> FrameT:
        """What is at a path, or at several, or what the options say."""
        if format is not None:
            self.format(format)
        if schema is not None:
            self.schema(schema)
        self.options(**options)
        paths = () if path is None else (path,) if isinstance(path, str) else tuple(path)
        return self._source(paths=paths)

    def table(self, table_name: str) -> FrameT:
        """A table or view."""
        return self._frame(plan.Read(named_table=plan.NamedTable(table_name, dict(self._options))))

    def changes(self, table_name: str) -> FrameT:
        """The changes of a table, where its source keeps them; the options say from when to when."""
        if self._schema:
            raise InvalidPlanError("the changes of a table have its schema.", remedy="Do not set one.")
        return self._frame(plan.RelationChanges(table_name, dict(self._options)))

    def parquet(self, *paths: str, **options: Any) -> FrameT:
        """Parquet files."""
        return self.load(paths, "parquet", **options)

    def orc(self, path: _Paths, *values: Any, **options: Any) -> FrameT:
        """ORC files. Options have names; those that PySpark's method takes by position may come so, also below."""
        return self._load_or_parse("orc", path, None, *values, **options)

    def text(
        self, paths: _Paths, wholetext: bool = False, line_sep: str | None = None, *values: Any, **options: Any
    ) -> FrameT:
        """Text files: a column ``value``, with a row for each line or, with ``wholetext``, for each file."""
        return self._load_or_parse("text", paths, None, *values, wholetext=wholetext, lineSep=line_sep, **options)

    def csv(self, path: _Paths | Frame, schema: _Schema = None, *values: Any, **options: Any) -> FrameT:
        """CSV files, or the lines in a DataFrame's one column."""
        return self._load_or_parse("csv", path, schema, *values, **options)

    def json(self, path: _Paths | Frame, schema: _Schema = None, *values: Any, **options: Any) -> FrameT:
        """JSON files with an object on each line, or the lines in a DataFrame's one column."""
        return self._load_or_parse("json", path, schema, *values, **options)

    def xml(
        self, path: _Paths | Frame, row_tag: str | None = None, schema: _Schema = None, *values: Any, **options: Any
    ) -> FrameT:
        """XML files, a row for each element of a name, or the texts in a DataFrame's one column."""
        return self._load_or_parse("xml", path, schema, *values, rowTag=row_tag, **options)

    def jdbc(
        self,
        url: str,
        table: str,
        column: str | None = None,
        lower_bound: int | str | None = None,
        upper_bound: int | str | None = None,
        num_partitions: int | None = None,
        predicates: Sequence[str] | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> FrameT:
        """A table of a database: at once, in equal parts of a column's range, or in the parts that predicates make."""
        parts = {"lowerBound": lower_bound, "upperBound": upper_bound, "numPartitions": num_partitions}
        self.format("jdbc")
        if column is not None:
            missing = [name for name, value in parts.items() if value is None]
            if missing:
                raise InvalidPlanError(
                    f"jdbc() with a column needs {', '.join(missing)}.",
                    remedy="Pass the range and the number of parts.",
                )
            self.options(partitionColumn=column, **parts)
        self.options(**(properties or {}))
        self.options(url=url, dbtable=table)
        return self._source(predicates=tuple(predicates or ()) if column is None else ())

    def _load_or_parse(self, format: str, path: Any, schema: _Schema, *values: Any, **options: Any) -> FrameT:
        names = _POSITIONS[format].split()
        if len(values) > len(names):
            raise ArgumentTypeError(
                f"{format}() takes {len(names)} options by position, from {names[0]} on: not {len(values)}"
            )
        self.options(**dict(zip(names, values, strict=False)), **options)
        if not isinstance(path, Frame):
            return self.load(path, format, schema)
        if schema is not None:
            self.schema(schema)
        parsed = self._session._type_now(self._schema) if self._schema else None
        return self._frame(plan.Parse(path._relation, f"PARSE_FORMAT_{format.upper()}", parsed, dict(self._options)))

    def _source(self, **parts: Any) -> FrameT:
        source = plan.DataSource(self._format, self._schema, dict(self._options), **parts)
        return self._frame(plan.Read(data_source=source))

    def _frame(self, relation: plan.Relation) -> FrameT:
        return self._session._frame(relation)


def _text(value: Any) -> str:
    """An option's value as Spark spells it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
