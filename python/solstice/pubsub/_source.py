"""What Spark finds under ``format("pubsub")``."""

from collections.abc import Mapping
from typing import Any

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from solstice.errors import ConfigError
from solstice.pubsub._options import SINK_OPTIONS, check_for_peek, check_for_stream, parse_source
from solstice.pubsub._peek import PeekReader
from solstice.pubsub._reader import PubSubStreamReader
from solstice.pubsub._shape import Shape
from solstice.pubsub._sink import PubSubStreamWriter, PubSubWriter, Sink


class PubSubDataSource(DataSource):  # type: ignore[misc]
    """Pub/Sub as a Spark data source; constructed by Spark, in several processes."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        names = {name.lower() for name in options}
        if "subscriptionid" in names:
            # With .schema(...) Spark asks nothing more at load(), and wrong options shall fail there.
            parse_source(self.options)
        elif "topicid" not in names:
            raise ConfigError(
                'format("pubsub") does not know what to read or where to write.',
                option="subscriptionId",
                remedy="Set the option subscriptionId to read, topicId to write.",
            )

    @classmethod
    def name(cls) -> str:
        """The name users write."""
        return "pubsub"

    def schema(self) -> StructType:
        """The columns of the rows. Called by ``load()``, where the user gives no schema."""
        return Shape.of(parse_source(self.options), None).schema

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
        return Sink(schema, overwrite, SINK_OPTIONS.parse(dict(self.options)))
