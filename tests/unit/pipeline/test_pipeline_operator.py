import asyncio

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from solstice.errors import ConfigError, OperatorError
from solstice.pipeline import Split, SplitPayload
from solstice.pipeline._function import FunctionOperator

TABLE = pa.table({"id": [1, 2, 3]})


def process(function, kind="map", table=TABLE, **options) -> SplitPayload | None:
    """The one split that the function makes of the table, or None."""
    splits = process_all(function, kind, table, **options)
    assert len(splits) <= 1
    return splits[0] if splits else None


def process_all(function, kind="map", table=TABLE, **options) -> list[SplitPayload]:
    operator = FunctionOperator(kind, function, **options)
    operator.setup()
    try:
        return list(operator.process_split(Split("s0", "stage", 2), SplitPayload.from_arrow(table, "s0")))
    finally:
        operator.teardown()


def test_a_function_gets_and_returns_arrow_tables():
    result = process(lambda table: table.filter(pc.greater(table["id"], 1)))
    assert result.to_arrow()["id"].to_pylist() == [2, 3]
    assert result.split_id == "s0"


def twice(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(pl.col("id") * 2)


def twice_quoted(frame: "pl.DataFrame"):
    return frame.lazy().with_columns(pl.col("id") * 2)


@pytest.mark.parametrize("function", [twice, twice_quoted])
def test_a_polars_annotation_gets_a_polars_frame(function):
    assert process(function).to_arrow()["id"].to_pylist() == [2, 4, 6]


def test_a_record_batch_is_accepted():
    assert process(lambda table: table.to_batches()[0]).to_arrow().equals(TABLE)


def test_none_drops_the_split():
    assert process(lambda table: None) is None


def test_another_type_is_refused_by_name():
    def wrong(table):
        return [1, 2]

    with pytest.raises(OperatorError, match=r"wrong returned a list for split 's0'. Return a pyarrow.Table"):
        process(wrong)


def doubled_pandas(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(id=frame["id"] * 2)


def test_a_pandas_annotation_gets_a_pandas_frame():
    result = process(doubled_pandas).to_arrow()
    assert result.equals(pa.table({"id": [2, 4, 6]}))
    assert result.schema.metadata is None


def test_a_dict_annotation_gets_rows_one_by_one():
    def label(row: dict) -> dict | None:
        return None if row["id"] == 2 else {**row, "name": f"n{row['id']}"}

    assert process(label).to_arrow().to_pylist() == [{"id": 1, "name": "n1"}, {"id": 3, "name": "n3"}]


def test_columns_that_rows_keep_keep_their_types():
    table = pa.table({"id": pa.array([1, None], pa.int16()), "empty": pa.array([None, None], pa.date32())})

    def add(row: "dict[str, object]"):
        return row | {"new": 1}

    assert (
        process(add, table=table)
        .to_arrow()
        .schema.equals(pa.schema([("id", pa.int16()), ("empty", pa.date32()), ("new", pa.int64())]))
    )


def test_a_row_that_lacks_a_column_has_a_null_there():
    def ragged(row: dict) -> dict:
        return {"id": row["id"]} if row["id"] == 1 else {"id": row["id"], "x": "a"}

    assert process(ragged).to_arrow()["x"].to_pylist() == [None, "a", "a"]


def test_flat_map_makes_a_split_of_every_table():
    parts = process_all(lambda table: (table.slice(n, 1) for n in range(3)), "flat_map")
    assert [part.to_arrow()["id"].to_pylist() for part in parts] == [[1], [2], [3]]


def test_flat_map_of_rows_makes_one_split_of_all_rows():
    def repeat(row: dict):
        for n in range(row["id"]):
            yield {"id": row["id"], "n": n}

    assert process(repeat, "flat_map").to_arrow()["n"].to_pylist() == [0, 0, 1, 0, 1, 2]


def polars_mask(frame: pl.DataFrame) -> pl.Series:
    return frame["id"] > 1


def pandas_mask(frame: pd.DataFrame) -> pd.Series:
    return frame["id"] > 1


def row_mask(row: dict) -> bool:
    return row["id"] > 1


@pytest.mark.parametrize(
    "function",
    [lambda t: pc.greater(t["id"], 1), lambda t: pc.field("id") > 1, polars_mask, pandas_mask, row_mask],
)
def test_filter_keeps_the_rows_for_which_the_function_is_true(function):
    assert process(function, "filter").to_arrow().equals(pa.table({"id": [2, 3]}))


async def fetch(row: dict, ctx) -> dict:
    await asyncio.sleep(0)
    return {"id": row["id"], "key": f"{ctx.split_id}-{ctx.row}-{ctx.attempt}"}


def test_an_asynchronous_function_of_rows_knows_split_row_and_attempt():
    assert process(fetch).to_arrow()["key"].to_pylist() == ["s0-0-2", "s0-1-2", "s0-2-2"]


def test_calls_of_an_asynchronous_function_overlap_but_no_more_than_allowed():
    running, most = 0, 0

    async def call(row: dict) -> dict:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return row

    table = pa.table({"id": range(20)})
    assert process(call, table=table, concurrency=4).to_arrow().equals(table)
    assert most == 4


def test_the_first_error_of_asynchronous_calls_cancels_the_others():
    cancelled = []

    async def call(row: dict) -> dict:
        if row["id"] == 1:
            raise ValueError("one")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(row["id"])
            raise

    with pytest.raises(ValueError, match="one"):
        process(call)
    assert sorted(cancelled) == [2, 3]


def test_asynchronous_generators_and_functions_of_tables_are_awaited():
    async def parts(table):
        for n in range(2):
            yield table.slice(n, 1)

    async def whole(table, ctx):
        await asyncio.sleep(0)
        return table

    assert len(process_all(parts, "flat_map")) == 2
    assert process(whole).to_arrow().equals(TABLE)


def test_a_second_parameter_that_is_annotated_split_gets_it():
    def tag(table, which: Split):
        return table.append_column("s", [[which.split_id] * len(table)])

    assert process(tag).to_arrow()["s"].to_pylist() == ["s0"] * 3


def test_a_second_parameter_with_another_name_is_left_alone():
    def scaled(table, factor=3):
        return pa.table({"id": pc.multiply(table["id"], factor)})

    assert process(scaled).to_arrow()["id"].to_pylist() == [3, 6, 9]


def test_a_schema_casts_and_refuses_what_does_not_fit():
    schema = pa.schema([("id", pa.int8())])
    assert process(lambda table: table, schema=schema).to_arrow().schema.equals(schema)
    with pytest.raises(OperatorError, match=r"does not fit the stage's schema"):
        process(lambda table: pa.table({"id": [1000]}), schema=schema)
    with pytest.raises(OperatorError, match=r"does not fit the stage's schema"):
        process(lambda table: pa.table({"other": [1]}), schema=schema)


def row_of_text(row: dict):
    return "text"


@pytest.mark.parametrize(
    ("kind", "function", "message"),
    [
        ("map", row_of_text, "returned a str"),
        ("flat_map", lambda table: table, "returned a Table"),
        ("flat_map", lambda table: 1, "returned a int"),
        ("flat_map", row_of_text, "returned a str"),
        ("filter", lambda table: True, "returned a bool"),
        ("filter", lambda table: table["id"], "3 values of type int64"),
        ("filter", lambda table: pa.array([True]), "returned 1 values of type bool for the 3 rows"),
        ("filter", row_of_text, "returned a str"),
    ],
)
def test_a_wrong_result_is_refused_with_the_fix(kind, function, message):
    with pytest.raises(OperatorError, match=rf"{message}.* Return "):
        process_all(function, kind)


@pytest.mark.parametrize(
    ("make", "message"),
    [(lambda: FunctionOperator("map", 3), "map got 3"), (lambda: FunctionOperator("map", len, concurrency=0), "0")],
)
def test_what_is_no_function_is_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
