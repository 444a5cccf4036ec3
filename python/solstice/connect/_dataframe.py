"""The DataFrame: a plan and a session; nothing runs until rows, Arrow data or a count are asked for."""

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from solstice._core.extras import require
from solstice.connect import _decode, types
from solstice.connect._bounds import Bounds, is_whole
from solstice.connect._execution import Batch
from solstice.connect._plan import Aggregate, Function, Limit, Literal, Relation
from solstice.connect._row import Row
from solstice.errors import ConnectError, InvalidPlanError

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

    from solstice.connect._session import Session

_MAX_POLARS_ROWS = 10_000
_MAX_POLARS_BYTES = 64 * 1024 * 1024
_MAX_LIMIT = 2**31 - 1


class DataFrame:
    """A lazy table on the server. Sessions make DataFrames; each method that transforms one returns a new one."""

    __slots__ = ("_relation", "_schema", "_session")

    def __init__(self, session: "Session", relation: Relation) -> None:
        self._session = session
        self._relation = relation
        self._schema: types.StructType | None = None

    def __repr__(self) -> str:
        """The columns and their types. Asks the server once for them, with one try; runs nothing, raises nothing."""
        try:
            schema = self._analyzed_schema(one_try=True)
        except ConnectError as error:
            return f"DataFrame[schema not available: {type(error).__name__}]"
        return f"DataFrame[{', '.join(f'{field.name}: {field.data_type.simple_string()}' for field in schema)}]"

    @property
    def schema(self) -> types.StructType:
        """Names and types of the columns. The server analyzes the plan, once, and does not run it."""
        return self._analyzed_schema()

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return self.schema.names

    def limit(self, n: int) -> "DataFrame":
        """At most the first ``n`` rows."""
        if not (is_whole(n) and 0 <= n <= _MAX_LIMIT):
            raise InvalidPlanError(f"limit({n!r}) is not possible.", remedy=f"Pass a number from 0 to {_MAX_LIMIT}.")
        return DataFrame(self._session, Limit(self._relation, n))

    def count(self) -> int:
        """The number of rows, counted by the server."""
        counted = Aggregate(self._relation, grouping=(), aggregates=(Function("count", (Literal(1),)),))
        [row] = DataFrame(self._session, counted).collect()
        number: int = row[0]
        return number

    def collect(self, *, max_rows: int | None = None, max_bytes: int | None = None) -> list[Row]:
        """All rows, as a list. A bound that is set and exceeded raises ResultTooLargeError.

        A ``variant`` arrives as Spark encodes it, a Row of two binary values; ``to_json(v)`` in the query reads it.
        """
        _, batches = self._fetch(Bounds("collect", max_rows, max_bytes), check=_decode.check_rows)
        rows: list[Row] = []
        batches.reverse()
        # Over all batches at once: the collector, switched on in between, would walk all rows so far each time.
        with _decode.collector_paused():
            while batches:
                rows += _decode.rows_of(batches.pop())  # so that a batch's memory is free once its rows exist
        return rows

    def to_arrow(self, *, max_rows: int | None = None, max_bytes: int | None = None) -> "pa.Table":
        """The result as an Arrow table. A bound that is set and exceeded raises ResultTooLargeError."""
        return self._table(Bounds("to_arrow", max_rows, max_bytes))

    def to_polars(
        self, *, max_rows: int | None = _MAX_POLARS_ROWS, max_bytes: int | None = _MAX_POLARS_BYTES
    ) -> "pl.DataFrame":
        """The result as a Polars DataFrame, bounded: more raises ResultTooLargeError. None lifts a bound."""
        polars = require("polars", "polars")
        return polars.from_arrow(self._table(Bounds("to_polars", max_rows, max_bytes), check=_decode.check_polars))

    def iter_batches(self) -> "Iterator[pa.RecordBatch]":
        """Arrow record batches as they arrive, in constant memory. Closing the iterator early ends the query."""
        with contextlib.closing(self._session._query(self._relation)) as items:
            for item in items:
                if isinstance(item, Batch):
                    yield from _decode.read_batches(item)[1]

    def _table(self, bounds: Bounds, check: Callable[[Any], None] | None = None) -> Any:
        schema, batches = self._fetch(bounds, check)
        return require("pyarrow", "spark").Table.from_batches(batches, schema)

    def _fetch(self, bounds: Bounds, check: Callable[[Any], None] | None = None) -> tuple[Any, list[Any]]:
        """The Arrow schema, which ``check`` may refuse before more than one batch has come, and all record batches."""
        schema: Any = None
        batches: list[Any] = []
        with contextlib.closing(self._session._query(self._relation)) as items:
            for item in items:
                if isinstance(item, Batch):
                    bounds.add(item)
                    first = schema is None
                    schema, read = _decode.read_batches(item)
                    if first and check is not None:
                        check(schema)
                    batches += read
        return schema, batches

    def _analyzed_schema(self, *, one_try: bool = False) -> types.StructType:
        if self._schema is None:
            self._schema = self._session._schema_of(self._relation, one_try=one_try)
        return self._schema
