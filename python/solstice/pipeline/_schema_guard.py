"""Keeps the output of a stage to one schema: the one that comes first."""

import base64
import contextlib
from typing import TYPE_CHECKING

from solstice.errors import OperatorError
from solstice.pipeline._queue import Queue
from solstice.pipeline._split import Split

if TYPE_CHECKING:
    import pyarrow as pa


class SchemaGuard:
    """One worker's view. The schema is recorded in the queue, so that all workers and all runs agree on it."""

    def __init__(self, queue: Queue, stage: str) -> None:
        self._queue = queue
        self._stage = stage
        self._schema: pa.Schema | None = None

    def check(self, table: "pa.Table", split: Split) -> "pa.Table":
        """The table, if it fits. So does another order of columns, and what has the same values."""
        import pyarrow as pa

        if self._schema is None:
            own = base64.b64encode(table.schema.remove_metadata().serialize().to_pybytes()).decode()
            known = self._queue.remember(f"schema of {self._stage}", own)
            self._schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(known)))
        schema = self._schema
        if table.schema.equals(schema):
            return table
        if sorted(table.schema.names) == sorted(schema.names):
            table = table.select(schema.names)
            if all(_may_fit(ours.type, known.type) for ours, known in zip(table.schema, schema, strict=True)):
                with contextlib.suppress(pa.ArrowInvalid):  # a number that would become another one
                    return table.cast(schema)
        raise OperatorError(
            f"stage {self._stage!r} produces another schema for split {split.split_id!r} than before:"
            f" {_difference(schema, table.schema)}.",
            remedy="Let the function return the same columns for every split, or give the stage schema=.",
        )


def _may_fit(ours: "pa.DataType", known: "pa.DataType") -> bool:
    """Whether a type is the known one, but for what depends on the rows: integers with nulls are floats to pandas, an
    empty list has no type, and so on. What then cannot be cast without loss does not fit after all."""
    import pyarrow.types as t

    if ours == known or t.is_null(ours):
        return True
    if t.is_integer(ours):
        return bool(t.is_integer(known) or t.is_floating(known))
    if t.is_float64(ours):
        return bool(t.is_integer(known))
    if t.is_list(ours) and t.is_list(known):
        return _may_fit(ours.value_type, known.value_type)
    if t.is_struct(ours) and t.is_struct(known):
        return [field.name for field in ours] == [field.name for field in known] and all(
            _may_fit(one.type, other.type) for one, other in zip(ours, known, strict=True)
        )
    return False


def _difference(known: "pa.Schema", ours: "pa.Schema") -> str:
    before, now = {field.name: field.type for field in known}, {field.name: field.type for field in ours}
    told = [f"column {name!r} is missing" for name in before if name not in now]
    told += [f"column {name!r} ({now[name]}) is new" for name in now if name not in before]
    told += [
        f"column {name!r} was {before[name]} and is {now[name]}"
        for name in before
        if name in now and before[name] != now[name]
    ]
    return ", ".join(told) or "columns of the same name"
