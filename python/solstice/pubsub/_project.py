"""Payloads into typed columns: JSON with the values of Spark's ``from_json``, Avro by the schema of its writer."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from solstice._core.arrow import to_arrow_schema
from solstice._core.extras import require

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import types as st


class Projected(NamedTuple):
    """A projected batch: its rows, and which rows of the raw batch were corrupt, ascending.

    ``reasons`` says why each of these was, if the projection was asked to. In mode DROPMALFORMED the rows are those of
    the raw batch without the corrupt ones, in order; in mode PERMISSIVE they are all of them.
    """

    batch: "pa.RecordBatch"
    corrupt: list[int]
    reasons: list[str]


class Projection:
    """Reads the column ``data`` of raw batches into the columns of a schema.

    ``schema`` is a Spark struct, or a pyarrow schema of the types that ``solstice._core.arrow`` gives for one. A
    projected batch has the columns named ``metadata`` of the raw batch, in that order, and then those of the schema.
    Threads that share a projection wait for each other.
    """

    def __init__(
        self,
        format: str,
        schema: "st.StructType | pa.Schema",
        *,
        mode: str = "PERMISSIVE",
        avro_schema: str | None = None,
        metadata: Sequence[str] = (),
        reasons: bool = False,
    ) -> None:
        from solstice import _native

        pa = require("pyarrow", "pubsub")
        arrow_schema = schema if isinstance(schema, pa.Schema) else to_arrow_schema(schema)
        self._native = _native.Projection(
            format.lower(),
            arrow_schema,
            mode.upper(),
            metadata=list(metadata),
            avro_schema=avro_schema,
            reasons=reasons,
        )

    @property
    def payload_schema(self) -> "pa.Schema":
        """The schema as it comes out: nullable at every level, because a payload may lack any field."""
        pa = require("pyarrow", "pubsub")
        return pa.RecordBatchReader.from_stream(self._native.payload_columns()).schema

    def project(self, raw: "pa.RecordBatch") -> Projected:
        """Project one raw batch; nothing is copied on the way in or out."""
        pa = require("pyarrow", "pubsub")
        stream, corrupt, reasons = self._native.project(raw)
        return Projected(pa.RecordBatchReader.from_stream(stream).read_next_batch(), corrupt, reasons)
