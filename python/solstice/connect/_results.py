"""The results of a DataFrame: rows, Arrow, Polars, pandas, and what is printed."""

import contextlib
import sys
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from solstice._core.extras import require
from solstice.connect import _decode
from solstice.connect import _plan as plan
from solstice.connect._actions import action, stream
from solstice.connect._bounds import SESSION, Bound, Bounds
from solstice.connect._expressions import Function
from solstice.connect._group import GROUP_BY
from solstice.connect._keep import Kept
from solstice.connect._literals import literal
from solstice.connect._row import Row
from solstice.connect._select import row_count

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

_MAX_POLARS_ROWS = 10_000
_MAX_POLARS_BYTES = 64 * 1024 * 1024
_SHOWN_WIDTH = 20


class Results(Kept):
    """Methods that run the query. ``max_rows`` and ``max_bytes`` bound what they fetch: a number, or None for no bound.

    A result that is larger raises ResultTooLargeError and ends the query. The default is what the session was told.
    """

    __slots__ = ()

    @action
    async def count(self) -> int:
        """The number of rows, counted by the server."""
        number: int = await self._cell(
            plan.Aggregate(self._relation, GROUP_BY, aggregate_expressions=(Function("count", (literal(1),)),))
        )
        return number

    @action
    async def is_empty(self) -> bool:
        """Whether there is no row."""
        return not await self.select()._first_rows(1)

    @action
    async def collect(self, *, max_rows: Bound = SESSION, max_bytes: Bound = SESSION) -> list[Row]:
        """All rows, as a list.

        A ``variant`` arrives as Spark encodes it, a Row of two binary values; ``to_json(v)`` in the query reads it.
        """
        return await self._rows(self._bounds("collect", max_rows, max_bytes))

    @action
    async def take(self, num: int) -> list[Row]:
        """At most the first ``num`` rows."""
        return await self._first_rows(num)

    @action
    async def first(self) -> Row | None:
        """The first row, or None if there is none."""
        return await self._first_row()

    @action
    async def tail(self, num: int) -> list[Row]:
        """At most the last ``num`` rows."""
        last = self._derive(plan.Tail(self._relation, row_count("tail", num)))
        return await last._rows()

    @stream
    async def iter_batches(self) -> "AsyncGenerator[list[pa.RecordBatch], None]":
        """Arrow record batches as they arrive, in constant memory. Closing the iterator early ends the query."""
        async with contextlib.aclosing(self._messages()) as messages:
            async for _, batches in messages:
                yield batches

    @stream
    def iter_rows(self) -> AsyncGenerator[list[Row], None]:
        """The rows one by one as they arrive, in constant memory. Closing the iterator early ends the query."""
        return self._row_lists()

    @stream
    def to_local_iterator(self, prefetch_partitions: bool = False) -> AsyncGenerator[list[Row], None]:
        """``iter_rows`` by PySpark's name. The server decides what it computes ahead."""
        return self._row_lists()

    @action
    async def show(self, n: int = 20, truncate: bool | int = True, vertical: bool = False) -> None:
        """Print the first rows as a table, long values cut to 20 characters or to so many."""
        width = _SHOWN_WIDTH if truncate is True else int(truncate)
        table: str = await self._cell(
            plan.ShowString(self._relation, row_count("show", n, least=-(2**31)), width, vertical)
        )
        sys.stdout.write(table + "\n")

    @action
    async def to_arrow(self, *, max_rows: Bound = SESSION, max_bytes: Bound = SESSION) -> "pa.Table":
        """The result as an Arrow table. Instants (``timestamp``) have the zone UTC, as in PySpark."""
        from solstice.connect._arrow_utc import with_utc

        return with_utc(await self._table(self._bounds("to_arrow", max_rows, max_bytes)))

    @action
    async def to_pandas(self, *, max_rows: Bound = SESSION, max_bytes: Bound = SESSION) -> "pd.DataFrame":
        """The result as a pandas DataFrame, with the values that PySpark gives.

        Times are naive, an instant (``timestamp``) in the session's time zone; maps and structs are dicts.
        """
        from solstice.connect._pandas import pandas_frame

        require("pandas", "pandas")
        return pandas_frame(await self._table(self._bounds("to_pandas", max_rows, max_bytes)))

    @action
    async def to_polars(self, *, max_rows: Bound = SESSION, max_bytes: Bound = SESSION) -> "pl.DataFrame":
        """The result as a Polars DataFrame; at most 10,000 rows and 64 MiB unless the session or the call says else."""
        polars = require("polars", "polars")
        bounds = self._bounds("to_polars", max_rows, max_bytes, (_MAX_POLARS_ROWS, _MAX_POLARS_BYTES))
        return polars.from_arrow(await self._table(bounds, check=_decode.check_polars))

    async def _first_rows(self, num: int) -> list[Row]:
        return await self.limit(num)._rows()

    async def _first_row(self) -> Row | None:
        rows = await self._first_rows(1)
        return rows[0] if rows else None

    async def _row_lists(self) -> AsyncGenerator[list[Row], None]:
        async with contextlib.aclosing(self._batches()) as arriving:
            async for batch, classes in arriving:
                yield _decode.rows_of(batch, classes)

    def _bounds(
        self,
        method: str,
        max_rows: Bound,
        max_bytes: Bound,
        defaults: tuple[int | None, int | None] = (None, None),
    ) -> Bounds:
        limits = self._link.limits
        return Bounds(
            method,
            max_rows if max_rows != SESSION else defaults[0] if limits.max_rows is None else limits.max_rows,
            max_bytes if max_bytes != SESSION else defaults[1] if limits.max_bytes is None else limits.max_bytes,
        )
