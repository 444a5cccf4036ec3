"""The shape of a query's rows: which columns Spark sees, and how a worker makes them of a raw batch."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

if TYPE_CHECKING:
    import pyarrow as pa

RAW_SCHEMA = StructType(
    [
        StructField("message_id", StringType()),
        StructField("publish_time", TimestampType()),
        StructField("data", BinaryType()),
        StructField("attributes", MapType(StringType(), StringType())),
        StructField("ordering_key", StringType()),
        StructField("delivery_attempt", IntegerType()),
    ]
)


class Shape:
    """What the rows of one query look like. Spark pickles it with the reader, into planner and workers."""

    @property
    def schema(self) -> StructType:
        """The columns Spark sees."""
        return RAW_SCHEMA

    def rows(self, raw: "Iterable[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        """The rows of one part as Spark shall see them."""
        yield from raw
