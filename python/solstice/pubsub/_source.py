"""What Spark finds under ``format("pubsub")``."""

from typing import Any

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from solstice._core.portable import Portable
from solstice.pubsub._options import SINK_OPTIONS, check_for_peek, check_for_stream, parse_source
from solstice.pubsub._peek import PeekReader
from solstice.pubsub._reader import PubSubStreamReader
from solstice.pubsub._shape import Shape
from solstice.pubsub._sink import PubSubStreamWriter, PubSubWriter, Sink


class PubSubDataSource(Portable, DataSource):  # type: ignore[misc]
    """Pub/Sub as a Spark data source; constructed by Spark, in several processes."""

    @classmethod
    def name(cls) -> str:
        """The name users write."""
        return "pubsub"

    def schema(self) -> StructType:
        """The columns of the rows.

        Called by ``load()``, so that wrong options fail there. Where the user gives a schema Spark asks nothing before
        the query starts.
        """
        values = parse_source(self.options)
        shape = Shape.of(values, None)
        PubSubStreamReader(values, shape)
        return shape.schema

    def streamReader(self, schema: StructType) -> Any:
        """A reader of the subscription; nothing starts here."""
        values = parse_source(self.options)
        check_for_stream(values)
        return PubSubStreamReader(values, Shape.of(values, schema))

    def reader(self, schema: StructType) -> Any:
        """A reader that peeks: it takes messages, gives them back, and acknowledges none."""
        values = parse_source(self.options)
        check_for_peek(values)
        return PeekReader(values, Shape.of(values, schema))

    def writer(self, schema: StructType, overwrite: bool) -> PubSubWriter:
        """A writer to the topic; nothing starts here."""
        return PubSubWriter(self._sink(schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> PubSubStreamWriter:
        """The same for a streaming query."""
        return PubSubStreamWriter(self._sink(schema, overwrite))

    def _sink(self, schema: StructType, overwrite: bool) -> Sink:
        return Sink(schema, overwrite, SINK_OPTIONS.parse(self.options))
