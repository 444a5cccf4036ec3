"""The sink: ``df.write`` and ``df.writeStream`` with ``format("pubsub")``.

A task publishes its partition and ends when every row has a server id; when a row has none, the task fails. There is
nothing to commit: what was published cannot be taken back. A task that runs again publishes its rows again.
"""

import logging
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, CharType, DataType, MapType, StringType, StructField, StructType, VarcharType

from solstice._core.arrow import to_arrow_schema
from solstice._core.options import OptionValues
from solstice._core.portable import Portable
from solstice.errors import ConfigError, PublishError, RowFailure
from solstice.pubsub._connection import connection, connection_keywords
from solstice.pubsub._options import resource_name
from solstice.pubsub._publish import Publisher

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger(__name__)

_MAX_ATTRIBUTE_NAME_BYTES = 256
# Failures that the text of an error spells out: all that is left of it in Spark's own error.
_SHOWN_FAILURES = 10


@dataclass(frozen=True)
class Published(WriterCommitMessage):  # type: ignore[misc]
    """What a task has done."""

    partition: int
    messages: int


class Sink:
    """What the tasks of a write do. Made on the driver, where wrong options and columns fail; pickled to the tasks."""

    def __init__(self, schema: StructType, overwrite: bool, values: OptionValues) -> None:
        from solstice import _native

        if overwrite:
            raise ConfigError(
                "what is in a topic cannot be overwritten.",
                option="mode",
                remedy='Use .mode("append"), and .outputMode("append") for a stream.',
            )
        self.topic = resource_name("topics", values["topicId"], values)
        connection(values)  # so that a wrong address is said here
        self._options: dict[str, Any] = connection_keywords(values) | {
            "batch_size": values["batchSize"],
            "max_batch_bytes": values["maxBatchBytes"],
            "linger_ms": values["lingerMs"],
            "publish_timeout_s": values["publishTimeout"],
            "compression": values["compression"],
        }
        self._attribute = values["dedupAttribute"]
        _check_attribute(self._attribute)
        self._parts = _parts(schema, values)
        self._schema = to_arrow_schema(schema)
        _native.Composer(self._schema, **self._parts, stamp=None)  # so that a type without a place in JSON is said here

    def publish(self, batches: "Iterable[pa.RecordBatch]", run: str, partition: int) -> Published:
        """Publish a partition. ``run`` is the same for every attempt at it."""
        from solstice import _native

        stamp = (self._attribute, f"{run}/{partition}") if self._attribute else None
        composer = _native.Composer(self._schema, **self._parts, stamp=stamp)
        publisher = Publisher(self.topic, **self._options)
        try:
            with publisher:
                for batch in batches:
                    if batch.num_rows:
                        publisher.publish(composer.compose(batch))
        except PublishError as error:
            raise _in_partition(error, partition, self.topic) from None
        return Published(partition, publisher.published())

    def committed(self, messages: Sequence[Published | None]) -> None:
        """All tasks ended well."""
        count = sum(message.messages for message in messages if message)
        _log.info("published %d messages to %s in %d tasks", count, self.topic, len(messages))

    def aborted(self, messages: Sequence[Published | None]) -> None:
        """Some task failed."""
        count = sum(message.messages for message in messages if message)
        _log.warning(
            "a write to %s failed: its finished tasks have published %d messages, the others maybe some of theirs",
            self.topic,
            count,
        )


class PubSubWriter(Portable, DataSourceArrowWriter):  # type: ignore[misc]
    """Publishes a DataFrame once."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        # Not that of a streaming query, also inside its foreachBatch: there may be several writes in one.
        self._run = f"{uuid.uuid4()}/0"

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> WriterCommitMessage:
        """Runs in the tasks."""
        return self._sink.publish(iterator, self._run, TaskContext.get().partitionId())

    def commit(self, messages: list[Any]) -> None:
        """Runs on the driver."""
        self._sink.committed(messages)

    def abort(self, messages: list[Any]) -> None:
        """Runs on the driver."""
        self._sink.aborted(messages)


class PubSubStreamWriter(Portable, DataSourceStreamArrowWriter):  # type: ignore[misc]
    """Publishes the batches of a streaming query."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> WriterCommitMessage:
        """Runs in the tasks."""
        task = TaskContext.get()
        query, batch = task.getLocalProperty("sql.streaming.queryId"), task.getLocalProperty("streaming.sql.batchId")
        return self._sink.publish(iterator, f"{query}/{batch}", task.partitionId())

    def commit(self, messages: list[Any], batchId: int) -> None:
        """Runs on the driver."""
        self._sink.committed(messages)

    def abort(self, messages: list[Any], batchId: int) -> None:
        """Runs on the driver."""
        self._sink.aborted(messages)


def _parts(schema: StructType, values: OptionValues) -> dict[str, str | None]:
    """Which column is which part of a message; names are compared without case, as Spark does."""
    is_json = values["format"] == "json"
    found: dict[str, str | None] = {"data": None, "attributes": None, "ordering_key": None}
    others = []
    for field in schema.fields:
        part = field.name.lower()
        if part not in found or (part == "data" and is_json):
            others.append(field.name)
            continue
        if found[part] is not None:
            raise ConfigError(f"there are two columns {part!r}.", remedy="Drop one of them.")
        _check_type(part, field, is_json)
        found[part] = field.name
    if is_json:
        _check_payload(others)
    else:
        _check_message(found, others)
    if found["ordering_key"] is not None and not values["enableMessageOrdering"]:
        raise ConfigError(
            "there is a column 'ordering_key', and message ordering is not enabled.",
            option="enableMessageOrdering",
            value=False,
            remedy="Set the option enableMessageOrdering to true, or drop the column.",
        )
    return found


def _check_payload(columns: list[str]) -> None:
    if not columns:
        raise ConfigError(
            "no column is left for the payload.", option="format", value="json", remedy="Select more columns."
        )
    twice = {name for name in columns if columns.count(name) > 1}
    if twice:
        raise ConfigError(f"there are two columns {min(twice)!r}.", remedy="Drop or rename one of them.")


def _check_message(found: dict[str, str | None], others: list[str]) -> None:
    remedy = "To publish columns as one JSON object, set the option format to json."
    if others:
        raise ConfigError(
            f"column {others[0]!r} is no part of a message, which has data, attributes and ordering_key.",
            remedy=f"Drop it. {remedy}",
        )
    if found["data"] is None:
        raise ConfigError(
            "there is no column 'data' to publish.", remedy=f"Name a column of type binary or string 'data'. {remedy}"
        )


def _check_type(part: str, field: StructField, is_json: bool) -> None:
    def is_text(kind: DataType) -> bool:
        return isinstance(kind, StringType | CharType | VarcharType)

    kind = field.dataType
    match part:
        case "data":
            fits, wanted = is_text(kind) or isinstance(kind, BinaryType), "binary or string"
        case "attributes":
            fits = isinstance(kind, MapType) and is_text(kind.keyType) and is_text(kind.valueType)
            wanted = "map<string,string>"
        case _:
            fits, wanted = is_text(kind), "string"
    if not fits:
        rename = " or rename it" if is_json else ""
        raise ConfigError(
            f"column {field.name!r} is {kind.simpleString()}; it must be {wanted}.",
            value=kind.simpleString(),
            remedy=f"Cast the column{rename}.",
        )


def _check_attribute(name: str | None) -> None:
    if name is not None and (not name or name.startswith("goog") or len(name.encode()) > _MAX_ATTRIBUTE_NAME_BYTES):
        raise ConfigError(
            f"dedupAttribute is {name!r}, which Pub/Sub takes for no name of an attribute.",
            option="dedupAttribute",
            value=name,
            remedy=f"Give 1 to {_MAX_ATTRIBUTE_NAME_BYTES} bytes that do not begin with 'goog'.",
        )


def _in_partition(error: PublishError, partition: int, topic: str) -> PublishError:
    """The error for somebody who sees its text only, and whose rows Spark will publish again."""
    causes = [failure for failure in error.failures if failure.column or failure.code] or list(error.failures)
    shown = "; ".join(_describe(failure) for failure in causes[:_SHOWN_FAILURES])
    more = f"; and {len(causes) - _SHOWN_FAILURES} more" if len(causes) > _SHOWN_FAILURES else ""
    fix = "Correct these rows, or filter them out." if any(failure.column for failure in causes) else ""
    again = "Spark runs the task again as a whole: what was published comes again, see dedupAttribute."
    return PublishError(
        f"partition {partition}: published {error.published} of {error.taken} rows to {topic}; failed: {shown}{more}.",
        taken=error.taken,
        published=error.published,
        failures=error.failures,
        code=error.code,
        remedy=f"{fix} {again}".strip(),
    )


def _describe(failure: RowFailure) -> str:
    first, last = failure.rows.start, failure.rows.stop - 1
    rows = f"row {first}" if first == last else f"rows {first} to {last}"
    column = f" of column '{failure.column}'" if failure.column else ""
    return f"{rows}{column}: {failure.reason}"
