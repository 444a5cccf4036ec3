"""Dead letters: messages whose payloads do not fit, published to a topic of their own by the worker that found them."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from solstice._core.options import OptionValues
from solstice.pubsub._connection import connection_keywords
from solstice.pubsub._options import resource_name
from solstice.pubsub._publish import Publisher

if TYPE_CHECKING:
    import pyarrow as pa

    from solstice.pubsub._project import Projected

_MAX_ATTRIBUTES = 100
_MAX_VALUE_BYTES = 1024
# Of a request, 10 MB, with room for the names of topic and ordering key and what the encoding adds.
_MAX_MESSAGE_BYTES = 10_000_000 - 4_096
_PAIR_BYTES = 16  # what the encoding adds to an attribute
# Pub/Sub sets attributes that begin so, and refuses them from others.
_PUBSUBS_OWN = "goog"


@dataclass(frozen=True)
class DeadLetters:
    """Where they go. Spark pickles it with the reader."""

    topic: str
    connection: dict[str, Any]

    # What a dead letter is made of.
    columns = ("message_id", "data", "attributes", "ordering_key")

    @classmethod
    def of(cls, values: OptionValues) -> "DeadLetters | None":
        """Those of the option ``deadLetterTopic``."""
        topic = values["deadLetterTopic"]
        if topic is None:
            return None
        return cls(resource_name("topics", topic, values, "deadLetterTopic"), connection_keywords(values))

    @contextmanager
    def open(self, origin: Mapping[str, str]) -> "Iterator[_Letters]":
        """Publish the letters of one part; leaving waits until each has a server id, or fails."""
        with Publisher(self.topic, **self.connection) as publisher:
            yield _Letters(publisher, origin)


class _Letters:
    def __init__(self, publisher: Publisher, origin: Mapping[str, str]) -> None:
        self._publisher = publisher
        self._origin = origin
        self._rows_before = 0

    def add(self, raw: "pa.RecordBatch", projected: "Projected") -> None:
        """Publish the corrupt rows of a raw batch, the next of the part."""
        if projected.corrupt:
            self._publisher.publish(self._table(raw, projected))
        self._rows_before += raw.num_rows

    def _table(self, raw: "pa.RecordBatch", projected: "Projected") -> "pa.RecordBatch":
        import pyarrow as pa

        corrupt = raw.select(DeadLetters.columns).take(pa.array(projected.corrupt))
        attributes, data = [], corrupt["data"].to_pylist()
        rows = zip(projected.corrupt, projected.reasons, corrupt["message_id"], corrupt["attributes"], strict=True)
        for index, (row, reason, message_id, given) in enumerate(rows):
            ours = {f"solstice_{name}": value for name, value in self._origin.items()}
            ours["solstice_row"] = str(self._rows_before + row)
            ours["solstice_message_id"] = message_id.as_py()
            ours["solstice_reason"] = reason.encode()[:_MAX_VALUE_BYTES].decode(errors="ignore")
            theirs = (pair for pair in given.as_py() if not pair[0].startswith(_PUBSUBS_OWN) and pair[0] not in ours)
            kept = list(islice(theirs, _MAX_ATTRIBUTES - len(ours)))
            # A message may be as large as Pub/Sub takes it, and its origin comes on top.
            length = len(data[index] or b"")
            room = _MAX_MESSAGE_BYTES - length - _size(ours.items())
            if _size(kept) > room:
                kept = []
            if room < 0:
                ours["solstice_truncated"] = str(length)
                data[index] = data[index][: _MAX_MESSAGE_BYTES - _size(ours.items())]
            attributes.append([*kept, *ours.items()])
        return pa.record_batch(
            {
                "data": pa.array(data, pa.binary()),
                "attributes": pa.array(attributes, pa.map_(pa.string(), pa.string())),
                "ordering_key": corrupt["ordering_key"],
            }
        )


def _size(attributes: Iterable[tuple[str, str]]) -> int:
    return sum(len(name.encode()) + len(value.encode()) + _PAIR_BYTES for name, value in attributes)
