"""Publishing Arrow data without Spark."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict, Unpack

from solstice._core.extras import require
from solstice._core.logging import start_native_logging
from solstice.errors import PublishError
from solstice.pubsub._connection import connection
from solstice.pubsub._options import PUBLISH_OPTIONS, parse_keywords, resource_name

if TYPE_CHECKING:
    from solstice import _native


class PublishOptions(TypedDict, total=False):
    """How to publish; what is left out, or None, has its default.

    - ``project_id``: the project of a topic given without one; else ``GOOGLE_CLOUD_PROJECT``.
    - ``emulator_host``: host:port of an emulator; else ``PUBSUB_EMULATOR_HOST``.
    - ``endpoint``: host:port of Pub/Sub, if it is not Google's; ``http://`` before it goes without TLS and credentials.
    - ``credentials_file``: whose credentials; else ``GOOGLE_APPLICATION_CREDENTIALS``, gcloud's, or the machine's.
    - ``batch_size``: the most messages of a request, up to 1,000 (the default).
    - ``max_batch_bytes``: the most bytes of a request of several messages, up to 10 MB; 1 MB by default.
    - ``linger_ms``: how long a request that is not full waits for more rows; 10 ms by default.
    - ``publish_timeout_s``: how long a request is tried before its rows count as failed; 60 s by default.
    - ``compression``: ``gzip``, or ``none`` (the default).
    """

    project_id: str | None
    emulator_host: str | None
    endpoint: str | None
    credentials_file: str | None
    batch_size: int | None
    max_batch_bytes: int | None
    linger_ms: float | None
    publish_timeout_s: float | None
    compression: Literal["none", "gzip"] | None


@dataclass(frozen=True)
class PublishResult:
    """Everything was published.

    ``message_ids`` has the server's id of every row, in the order of the rows (a ``pyarrow.ChunkedArray`` of strings),
    if ``return_ids`` was asked for.
    """

    published: int
    message_ids: Any = None


def publish(topic: str, data: Any, *, return_ids: bool = False, **options: Unpack[PublishOptions]) -> PublishResult:
    """Publish Arrow data to a topic. When it returns, every row has a server id.

    ``data`` is anything with ``__arrow_c_stream__`` (a pyarrow or Polars table), or an iterable of such, which may be
    slow and endless: a request is sent when it is full, or ``linger_ms`` after its first row. Columns: ``data`` (binary
    or string), and if wanted ``attributes`` (map of strings; or a list of structs of name and value) and
    ``ordering_key`` (string); others are refused. A null is what the message does not have. ``topic`` is
    ``projects/P/topics/T``, or T with ``project_id``. The options are those of :class:`PublishOptions`.

    Rows of one ordering key are published in their order. When one fails, the later ones of its key are not sent.

    Raises :class:`~solstice.errors.PublishError`, which says which rows failed and why, and how many were published and
    taken: when nothing more can be sent, what follows is not looked at. What the service would refuse is found before
    anything of its record batch is sent.
    """
    return _run(Publisher(topic, _keep_ids=return_ids, **options), data)


async def publish_async(
    topic: str, data: Any, *, return_ids: bool = False, **options: Unpack[PublishOptions]
) -> PublishResult:
    """:func:`publish` that does not block the event loop. Cancelling stops the sending at once."""
    publisher = Publisher(topic, _keep_ids=return_ids, **options)
    work = asyncio.ensure_future(asyncio.to_thread(_run, publisher, data))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        publisher.cancel()
        # The thread ends by itself; what it raises then is only that it was cancelled.
        work.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        raise


def _run(publisher: "Publisher", data: Any) -> PublishResult:
    with publisher:
        publisher.publish(data)
        return publisher.flush()


class Publisher:
    """Publishes to one topic what it is given piece by piece, with bounded memory::

        with Publisher("projects/p/topics/t") as publisher:
            for table in tables:
                publisher.publish(table)

    Leaving ``with`` waits until every row has a server id. When an error leaves it, the sending stops. One thread at a
    time may use it; it connects on first use and belongs to its process. The options are those of
    :class:`PublishOptions`.
    """

    def __init__(self, topic: str, *, _keep_ids: bool = False, **options: Unpack[PublishOptions]) -> None:
        self._values = parse_keywords(PUBLISH_OPTIONS, options)
        self.topic = resource_name("topics", topic, self._values)
        connection(self._values)  # so that a wrong address is said here
        self._keep_ids = _keep_ids
        self._native: _native.Publisher | None = None
        self._cancelled = False

    def publish(self, data: Any) -> None:
        """Take rows; waits while too much is on its way. See :func:`publish` for ``data``.

        Raises what :meth:`flush` raises once a row was refused or the service is out of reach.
        """
        native = self._opened()
        pieces = data if not hasattr(data, "__arrow_c_stream__") and isinstance(data, Iterable) else (data,)
        for piece in pieces:
            if not native.feed(piece):
                self.flush()

    def flush(self) -> PublishResult:
        """Wait until every row so far has a server id.

        Raises :class:`~solstice.errors.PublishError` when rows have none, now or at an earlier call.
        """
        published, ids = self._opened().flush()
        if ids is None:
            return PublishResult(published)
        return PublishResult(published, require("pyarrow", "pubsub").table(ids)["message_id"])

    def published(self) -> int:
        """How many rows have a server id so far."""
        return 0 if self._native is None else self._native.published()

    def cancel(self) -> None:
        """Stop at once, also while another thread waits: nothing is sent any more, and no answer is waited for."""
        self._cancelled = True
        if self._native is not None:
            self._native.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            if self._native is not None:
                self.flush()
            return
        self.cancel()
        if not isinstance(error, PublishError):
            error.add_note(f"{self.published()} messages were published to {self.topic} before.")

    def _opened(self) -> "_native.Publisher":
        if self._native is None:
            from solstice import _native

            start_native_logging()
            self._native = _native.Publisher(
                connection(self._values),
                self.topic,
                batch_size=self._values["batchSize"],
                max_batch_bytes=self._values["maxBatchBytes"],
                linger_s=self._values["lingerMs"] / 1000,
                timeout_s=self._values["publishTimeout"],
                gzip=self._values["compression"] == "gzip",
                keep_ids=self._keep_ids,
            )
            if self._cancelled:
                self._native.cancel()
        return self._native
