"""Results on their way from the server: Arrow data, rows, single values."""

import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Any

from solstice._core.extras import require
from solstice.connect import _decode
from solstice.connect._bounds import Bounds
from solstice.connect._collector import collector_paused
from solstice.connect._execution import Batch, Schema
from solstice.connect._frame import Frame
from solstice.connect._plan import Relation
from solstice.connect._row import Row, row_class
from solstice.connect._types import decode_struct
from solstice.errors import TransportError


class Fetching(Frame):
    """What the methods that give results are made of."""

    __slots__ = ()

    async def _rows(self, bounds: Bounds | None = None) -> list[Row]:
        rows: list[Row] = []
        batches: list[Batch] = []
        classes: _decode.RowClasses = row_class
        async with contextlib.aclosing(self._batches(bounds)) as arriving:
            async for batch, classes in arriving:
                if rows or batches:
                    batches.append(batch)
                else:
                    rows = _decode.rows_of(batch, classes)  # what no row can hold shows before all the data has come
        batches.reverse()
        # Over all batches at once: the collector, switched on in between, would walk all rows so far each time.
        with collector_paused():
            while batches:
                rows += _decode.rows_of(batches.pop(), classes)  # so that a batch's memory is free once its rows exist
        return rows

    async def _cell(self, relation: Relation) -> Any:
        """The one value that a relation has."""
        rows = await self._derive(relation)._rows()
        if not rows:
            raise _no_result()
        return rows[0][0]

    async def _table(self, bounds: Bounds, check: Callable[[Any], None] | None = None) -> Any:
        schema, batches = await self._fetched(bounds, check)
        return require("pyarrow", "spark").Table.from_batches(batches, schema)

    async def _fetched(
        self, bounds: Bounds | None, check: Callable[[Any], None] | None = None
    ) -> tuple[Any, list[Any]]:
        """The Arrow schema, which ``check`` may refuse before more than one batch has come, and all record batches."""
        schema: Any = None
        batches: list[Any] = []
        async with contextlib.aclosing(self._messages(bounds)) as messages:
            async for read_schema, read in messages:
                if schema is None and check is not None:
                    check(read_schema)
                schema = read_schema
                batches += read
        return schema, batches

    async def _messages(self, bounds: Bounds | None = None) -> AsyncGenerator[tuple[Any, list[Any]], None]:
        """The server's messages as they arrive, of each the Arrow schema and the record batches; at least one."""
        schema: Schema | None = None
        any_data = False
        async with contextlib.aclosing(self._items(bounds)) as arriving:
            async for item in arriving:
                if isinstance(item, Schema):
                    schema = item
                else:
                    any_data = True
                    yield _decode.read_batches(item)
        if not any_data:
            if schema is None:
                raise _no_result()
            from solstice.connect._arrow_types import arrow_schema  # rarely needed

            yield arrow_schema(decode_struct(schema.message)), []

    async def _batches(self, bounds: Bounds | None = None) -> "AsyncGenerator[tuple[Batch, _decode.RowClasses], None]":
        """The server's messages as they arrive, and the classes of the structs in them."""
        classes: _decode.RowClasses = row_class
        async with contextlib.aclosing(self._items(bounds)) as arriving:
            async for item in arriving:
                if isinstance(item, Schema):
                    classes = _decode.struct_classes(item.message)
                else:
                    yield item, classes

    async def _items(self, bounds: Bounds | None) -> AsyncGenerator[Batch | Schema, None]:
        async with contextlib.aclosing(self._link.query(self._relation, self._observations)) as items:
            async for item in items:
                if isinstance(item, Batch) and bounds is not None:
                    bounds.add(item)
                if isinstance(item, Batch | Schema):
                    yield item


def _no_result() -> TransportError:
    return TransportError("the server ended the query without a result, and without an error.", code="DATA_LOSS")
