"""What functions return as Python values arrives as it is, or fails its split: never as something else."""

import datetime as dt
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from solstice.errors import OperatorError
from solstice.pipeline import Split, SplitPayload
from solstice.pipeline._function import FunctionOperator
from solstice.pipeline._rows import holds, to_column
from solstice.pipeline._schema_guard import SchemaGuard

SPLIT = Split("s0", "stage")
UTC = dt.UTC
NOON = dt.datetime(2026, 1, 2, 12, 0, 0, 7)


def process(function, table: pa.Table, **options) -> pa.Table:
    (payload,) = FunctionOperator("map", function, **options).process_split(SPLIT, SplitPayload(table, "s0"))
    return payload.to_arrow()


CHANGED = [
    (0.5, pa.int64()),
    (Decimal("1.5"), pa.int32()),
    (np.float32(0.5), pa.int8()),
    (NOON, pa.date32()),
    (NOON, pa.date64()),
    (1.5, pa.date32()),
    (NOON, pa.timestamp("us", "Europe/Berlin")),
    (NOON.replace(tzinfo=UTC), pa.timestamp("us")),
    (NOON, pa.timestamp("ms")),
    (NOON.time(), pa.time32("s")),
    (dt.timedelta(microseconds=1), pa.duration("ms")),
    (1.5, pa.timestamp("us")),
    ([1, 0.5], pa.list_(pa.int64())),
    ([[0.5]], pa.large_list(pa.list_(pa.int8()))),
    ({"x": 0.5}, pa.struct([("x", pa.int64())])),
    ({"x": 1, "z": 2}, pa.struct([("x", pa.int64())])),
    ([("k", 0.5)], pa.map_(pa.string(), pa.int64())),
    ({0.5: "v"}, pa.map_(pa.int64(), pa.string())),
]


@pytest.mark.parametrize(("value", "kind"), CHANGED)
def test_a_value_that_a_type_would_change_does_not_get_it(value, kind):
    assert not holds(kind, [None, value])
    with pytest.raises(OperatorError, match=r"column 'a' does not fit the type .* change schema="):
        to_column("a", [value], kind, exact=True)


KEPT = [
    (7, pa.int8()),
    (np.int64(7), pa.int16()),
    (7, pa.float64()),
    (7, pa.decimal128(10, 2)),
    (NOON.date(), pa.date32()),
    (NOON, pa.timestamp("us")),
    (NOON.replace(tzinfo=UTC), pa.timestamp("us", "Europe/Berlin")),
    (NOON.replace(microsecond=0), pa.timestamp("s")),
    (NOON.time(), pa.time64("us")),
    (dt.timedelta(seconds=3), pa.duration("s")),
    ("a", pa.dictionary(pa.int32(), pa.string())),
    ([1, None], pa.list_(pa.int8())),
    ({"x": 1, "y": None}, pa.struct([("x", pa.int8()), ("y", pa.string())])),
    ([("k", 1)], pa.map_(pa.string(), pa.int64())),
]


@pytest.mark.parametrize(("value", "kind"), KEPT)
def test_a_value_that_fits_its_type_keeps_it(value, kind):
    column = to_column("a", [value, None], kind)
    assert column.type == kind
    assert column.to_pylist() == [value, None]


def test_a_row_whose_integer_becomes_a_fraction_has_the_fraction():
    def half(row: dict) -> dict:
        return {"n": row["n"] / 2, "day": NOON}

    table = pa.table({"n": [1, 2], "day": [NOON.date()] * 2})
    assert process(half, table).to_pylist() == [{"n": 0.5, "day": NOON}, {"n": 1.0, "day": NOON}]
    schema = pa.schema([("n", pa.int64())])
    with pytest.raises(OperatorError, match="column 'n' does not fit the type int64"):
        process(half, table, schema=schema)


def test_values_of_several_types_are_told_with_their_column():
    def mixed(row: dict) -> dict:
        return {"n": 1 if row["n"] == 1 else "two"}

    with pytest.raises(OperatorError, match=r"column 'n' cannot be made .*'two'.*schema="):
        process(mixed, pa.table({"n": [1, 2]}))


def test_a_pandas_frame_keeps_the_types_that_its_objects_do_not_show():
    def same(frame: pd.DataFrame) -> pd.DataFrame:
        return frame

    columns = {
        "price": pa.array([Decimal("1.20"), None], pa.decimal128(10, 2)),
        "map": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
        "id": pa.array([1, 2], pa.int16()),
        "list": pa.array([[], None], pa.list_(pa.string())),
    }
    table = pa.table(columns)
    assert process(same, table).equals(table)
    only = table.select(["price"])
    assert process(same, only).equals(only)


class Facts:
    """What a guard needs of a queue."""

    def __init__(self) -> None:
        self.known: dict[str, str] = {}

    def remember(self, name: str, value: str) -> str:
        return self.known.setdefault(name, value)


INTEGERS, FLOATS = pa.table({"a": [1, 2]}), pa.table({"a": [1.0, None]})
FRACTIONS, LARGE = pa.table({"a": [0.5]}), pa.table({"a": [2**60 + 1]})
WORDS, NO_WORDS = pa.table({"a": [[{"w": "x"}]]}), pa.table({"a": [[{"w": None}], []]})


@pytest.mark.parametrize(
    ("first", "second", "fits"),
    [
        (INTEGERS, FLOATS, True),  # integers with nulls, as pandas has them
        (FLOATS, INTEGERS, True),
        (INTEGERS, FRACTIONS, False),
        (FLOATS, LARGE, False),
        (WORDS, NO_WORDS, True),
        (WORDS, INTEGERS, False),
        (pa.table({"a": pa.array([1.5], pa.float32())}), FRACTIONS, False),
    ],
)
def test_another_type_fits_when_every_value_is_the_same_in_it(first, second, fits):
    guard = SchemaGuard(Facts(), "stage")
    assert guard.check(first, SPLIT) is first
    if fits:
        result = guard.check(second, SPLIT)
        assert result.schema.equals(first.schema)
        assert result.to_pylist() == second.to_pylist()
    else:
        with pytest.raises(OperatorError, match="column 'a' was"):
            guard.check(second, SPLIT)
