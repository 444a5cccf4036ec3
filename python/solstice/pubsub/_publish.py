"""Publishing Arrow data without Spark."""

from typing import Any

from solstice._core.logging import start_native_logging
from solstice.pubsub._connection import connection
from solstice.pubsub._options import PUBLISH_OPTIONS, resource_name


def publish(topic: str, data: Any, **options: str) -> int:
    """Publish Arrow data to a topic; returns the number of messages, all of which have a server id then.

    ``data`` is anything with ``__arrow_c_stream__`` (a pyarrow or Polars table): a column ``data`` (binary or string),
    and if wanted ``attributes`` (map of strings) and ``ordering_key`` (string). ``topic`` is ``projects/P/topics/T``,
    or T alone together with ``projectId``. Rows that were published before an error stay published.
    """
    from solstice import _native

    values = PUBLISH_OPTIONS.parse(options)
    start_native_logging()
    return _native.publish(connection(values), resource_name("topics", topic, values), data)
