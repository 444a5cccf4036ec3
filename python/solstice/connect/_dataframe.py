"""The DataFrame: a plan and a session; nothing runs until rows, Arrow data or a count are asked for."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, overload

from solstice._core.extras import require
from solstice.connect import _decode
from solstice.connect import _plan as plan
from solstice.connect._bounds import Bounds
from solstice.connect._camel import camel_cased
from solstice.connect._execution import Batch
from solstice.connect._expressions import Function
from solstice.connect._group import GROUP_BY
from solstice.connect._keep import Kept
from solstice.connect._literals import literal
from solstice.connect._row import Row
from solstice.connect._select import row_count
from solstice.errors import ConnectError

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

_MAX_POLARS_ROWS = 10_000
_MAX_POLARS_BYTES = 64 * 1024 * 1024
_SHOWN_WIDTH = 20


@camel_cased(to_df="toDF", to_json="toJSON", join_as_of="_joinAsOf")  # the last is private in PySpark
class DataFrame(Kept):
    """A lazy table on the server. Sessions make DataFrames; each method that transforms one returns a new one.

    ``df.name`` and ``df["name"]`` are its columns; of a name that is also a method, only the latter.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        """The columns and their types. Asks the server once for them, with one try; runs nothing, raises nothing."""
        try:
            schema = self._analyzed_schema(one_try=True)
        except ConnectError as error:
            return f"DataFrame[schema not available: {type(error).__name__}]"
        return f"DataFrame[{', '.join(f'{field.name}: {field.data_type.simple_string()}' for field in schema)}]"

    def count(self) -> int:
        """The number of rows, counted by the server."""
        number: int = self._cell(
            plan.Aggregate(self._relation, GROUP_BY, aggregate_expressions=(Function("count", (literal(1),)),))
        )
        return number

    def is_empty(self) -> bool:
        """Whether there is no row."""
        return not self.select().take(1)

    def collect(self, *, max_rows: int | None = None, max_bytes: int | None = None) -> list[Row]:
        """All rows, as a list. A bound that is set and exceeded raises ResultTooLargeError.

        A ``variant`` arrives as Spark encodes it, a Row of two binary values; ``to_json(v)`` in the query reads it.
        """
        bounds = Bounds("collect", max_rows, max_bytes)
        rows: list[Row] = []
        batches: list[Batch] = []
        for batch in self._batches():
            bounds.add(batch)
            if rows or batches:
                batches.append(batch)
            else:
                rows = _decode.rows_of(batch)  # so that a type that has no rows shows before all the data has come
        batches.reverse()
        # Over all batches at once: the collector, switched on in between, would walk all rows so far each time.
        with _decode.collector_paused():
            while batches:
                rows += _decode.rows_of(batches.pop())  # so that a batch's memory is free once its rows exist
        return rows

    def take(self, num: int) -> list[Row]:
        """At most the first ``num`` rows."""
        return self.limit(num).collect()

    @overload
    def head(self, n: None = None) -> Row | None: ...

    @overload
    def head(self, n: int) -> list[Row]: ...

    def head(self, n: int | None = None) -> Row | list[Row] | None:
        """The first row, or None if there is none; with a number, at most so many rows as a list."""
        return self.first() if n is None else self.take(n)

    def first(self) -> Row | None:
        """The first row, or None if there is none."""
        rows = self.take(1)
        return rows[0] if rows else None

    def tail(self, num: int) -> list[Row]:
        """At most the last ``num`` rows."""
        return self._derive(plan.Tail(self._relation, row_count("tail", num))).collect()

    def to_local_iterator(self, prefetch_partitions: bool = False) -> Iterator[Row]:
        """The rows one by one, as they arrive, in constant memory. The server decides what it computes ahead."""
        for batch in self._batches():
            yield from _decode.rows_of(batch)

    def show(self, n: int = 20, truncate: bool | int = True, vertical: bool = False) -> None:
        """Print the first rows as a table, long values cut to 20 characters or to so many."""
        width = _SHOWN_WIDTH if truncate is True else int(truncate)
        table: str = self._cell(plan.ShowString(self._relation, row_count("show", n), width, vertical))
        sys.stdout.write(table + "\n")

    def to_arrow(self, *, max_rows: int | None = None, max_bytes: int | None = None) -> "pa.Table":
        """The result as an Arrow table. A bound that is set and exceeded raises ResultTooLargeError."""
        return self._table(Bounds("to_arrow", max_rows, max_bytes))

    def to_pandas(self, *, max_rows: int | None = None, max_bytes: int | None = None) -> "pd.DataFrame":
        """The result as a pandas DataFrame. A bound that is set and exceeded raises ResultTooLargeError."""
        require("pandas", "pandas")
        return self._table(Bounds("to_pandas", max_rows, max_bytes)).to_pandas()

    def to_polars(
        self, *, max_rows: int | None = _MAX_POLARS_ROWS, max_bytes: int | None = _MAX_POLARS_BYTES
    ) -> "pl.DataFrame":
        """The result as a Polars DataFrame, bounded: more raises ResultTooLargeError. None lifts a bound."""
        polars = require("polars", "polars")
        return polars.from_arrow(self._table(Bounds("to_polars", max_rows, max_bytes), check=_decode.check_polars))

    def iter_batches(self) -> "Iterator[pa.RecordBatch]":
        """Arrow record batches as they arrive, in constant memory. Closing the iterator early ends the query."""
        for batch in self._batches():
            yield from _decode.read_batches(batch)[1]

    def _batches(self) -> Iterator[Batch]:
        """The messages with rows, as they arrive."""
        with contextlib.closing(self._session._query(self._relation, self._observations)) as items:
            for item in items:
                if isinstance(item, Batch):
                    yield item

    def _table(self, bounds: Bounds, check: Callable[[Any], None] | None = None) -> Any:
        schema, batches = self._fetch(bounds, check)
        return require("pyarrow", "spark").Table.from_batches(batches, schema)

    def _fetch(self, bounds: Bounds, check: Callable[[Any], None] | None = None) -> tuple[Any, list[Any]]:
        """The Arrow schema, which ``check`` may refuse before more than one batch has come, and all record batches."""
        schema: Any = None
        batches: list[Any] = []
        for batch in self._batches():
            bounds.add(batch)
            first = schema is None
            schema, read = _decode.read_batches(batch)
            if first and check is not None:
                check(schema)
            batches += read
        return schema, batches
