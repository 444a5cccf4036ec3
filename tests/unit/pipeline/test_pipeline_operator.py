import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from solstice.errors import OperatorError
from solstice.pipeline import Split, SplitPayload
from solstice.pipeline._operator import MapOperator

TABLE = pa.table({"id": [1, 2, 3]})


def process(function) -> SplitPayload | None:
    return MapOperator(function).process_split(Split("s0", "stage"), SplitPayload.from_arrow(TABLE, "s0"))


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
