"""What Spark finds under ``format("pubsub")``."""

from typing import Any

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from solstice.errors import ConfigError
from solstice.pubsub._options import SOURCE_OPTIONS
from solstice.pubsub._reader import PubSubStreamReader
from solstice.pubsub._shape import RAW_SCHEMA, Shape


class PubSubDataSource(DataSource):  # type: ignore[misc]
    """Pub/Sub as a Spark data source; constructed by Spark, in several processes."""

    @classmethod
    def name(cls) -> str:
        """The name users write."""
        return "pubsub"

    def schema(self) -> StructType:
        """What a Pub/Sub message is. Called by ``load()``, so that wrong options fail there and not in the query."""
        self._reader()
        return RAW_SCHEMA

    def streamReader(self, schema: StructType) -> Any:
        """A reader of the subscription; nothing starts here."""
        if schema != RAW_SCHEMA:
            raise ConfigError(
                f'format("pubsub") gives {RAW_SCHEMA.simpleString()}, not {schema.simpleString()}.',
                option="schema",
                value=schema.simpleString(),
                remedy="Leave .schema(...) out and parse the column data, for example with from_json.",
            )
        return self._reader()

    def _reader(self) -> PubSubStreamReader:
        return PubSubStreamReader(SOURCE_OPTIONS.parse(dict(self.options)), Shape())
