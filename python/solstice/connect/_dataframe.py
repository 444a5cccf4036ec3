"""The DataFrame: a plan and a session; nothing runs until rows, Arrow data or a count are asked for."""

import contextlib
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any, overload

from solstice._core.extras import require
from solstice.connect import types
from solstice.connect._actions import Blocking, iterate, run
from solstice.connect._camel import camel_cased
from solstice.connect._results import Results
from solstice.connect._row import Row
from solstice.connect._statistics import StatFunctions
from solstice.errors import ConnectError

if TYPE_CHECKING:
    from solstice.connect._session import Session


@camel_cased(to_df="toDF", to_json="toJSON", join_as_of="_joinAsOf")  # the last is private in PySpark
class DataFrame(Results, Blocking):
    """A lazy table on the server. Sessions make DataFrames; each method that transforms one returns a new one.

    ``df.name`` and ``df["name"]`` are its columns; of a name that is also a method, only the latter.
    """

    __slots__ = ()

    _session: "Session"

    def __repr__(self) -> str:
        """The columns and their types. Asks the server once for them, with one try; runs nothing, raises nothing."""
        try:
            schema = run(self._analyzed_schema(one_try=True))
        except ConnectError as error:
            return f"DataFrame[schema not available: {type(error).__name__}]"
        return f"DataFrame[{', '.join(f'{field.name}: {field.data_type.simple_string()}' for field in schema)}]"

    @property
    def spark_session(self) -> "Session":
        """The session."""
        return self._session

    @property
    def stat(self) -> "DataFrameStatFunctions":
        """Statistics, as PySpark groups these methods."""
        return DataFrameStatFunctions(self)

    @overload
    def head(self, n: None = None) -> Row | None: ...

    @overload
    def head(self, n: int) -> list[Row]: ...

    def head(self, n: int | None = None) -> Row | list[Row] | None:
        """The first row, or None if there is none; with a number, at most so many rows as a list."""
        return self.first() if n is None else self.take(n)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """The result as an Arrow stream, in constant memory: for Polars, DuckDB, pandas and all that read Arrow."""
        parts = iterate(self._arrow_parts())
        schema = next(parts)
        reader = require("pyarrow", "spark").RecordBatchReader.from_batches(schema, parts)
        stream: object = reader.__arrow_c_stream__(requested_schema)
        return stream

    async def _arrow_parts(self) -> AsyncGenerator[list[Any], None]:
        """The Arrow schema, then the record batches."""
        has_schema = False
        async with contextlib.aclosing(self._messages()) as messages:
            async for schema, batches in messages:
                yield batches if has_schema else [schema, *batches]
                has_schema = True

    def _schema_now(self) -> types.StructType:
        return run(self._analyzed_schema())


@camel_cased()
class DataFrameStatFunctions(StatFunctions[DataFrame], Blocking):
    """``DataFrame.stat``."""

    __slots__ = ()
