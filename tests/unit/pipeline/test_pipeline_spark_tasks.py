"""A Spark task whose connection ends: a real connection, without Spark."""

import socket

import pyarrow as pa
import pytest

from solstice.errors import PipelineError
from solstice.pipeline._spark_tasks import _require_whole_input

BATCH = pa.record_batch({"id": [1, 2]})


def main(infile) -> int:
    """As Spark's worker has it: reads all batches, then looks whether these were all."""
    rows = sum(batch.num_rows for batch in pa.ipc.open_stream(infile))
    _require_whole_input()
    return rows


@pytest.fixture
def spark():
    """Spark's end of a connection, and the worker's."""
    ours, theirs = socket.socketpair()
    with ours, theirs, ours.makefile("wb") as output, theirs.makefile("rb") as infile:
        writer = pa.ipc.new_stream(output, BATCH.schema)
        writer.write_batch(BATCH)
        output.flush()
        yield ours, writer, output, infile


@pytest.mark.parametrize("after", [b"", b"\xff\xff\xff\xfc"])
def test_rows_that_ended_and_a_connection_that_is_open_are_the_whole_input(spark, after):
    _, writer, output, infile = spark
    writer.close()
    output.write(after)
    output.flush()
    assert main(infile) == 2


@pytest.mark.parametrize(
    "hang_up", [lambda end: end.shutdown(socket.SHUT_WR), lambda end: end.shutdown(socket.SHUT_RDWR)]
)
def test_a_connection_that_ends_in_the_middle_is_no_end_of_the_rows(spark, hang_up):
    end, _, _, infile = spark
    hang_up(end)
    with pytest.raises(PipelineError, match="in the middle of its rows"):
        main(infile)


def test_a_worker_that_hides_its_connection_is_refused():
    with pytest.raises(PipelineError, match="does not show a task its connection"):
        _require_whole_input()
