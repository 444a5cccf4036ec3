"""Pulling Arrow batches without Spark."""

import json
import time
import uuid
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack

from solstice._core.extras import require
from solstice._core.logging import start_native_logging
from solstice._core.waiting import finished
from solstice.errors import AcknowledgeError, ConfigError
from solstice.pubsub._connection import connection
from solstice.pubsub._options import PULL_OPTIONS, parse_keywords, resource_name

if TYPE_CHECKING:
    from solstice import _native


class PullOptions(TypedDict, total=False):
    """How to pull; what is left out, or None, has its default.

    - ``project_id``: the project of a subscription given without one; else ``GOOGLE_CLOUD_PROJECT``.
    - ``emulator_host``: host:port of an emulator; else ``PUBSUB_EMULATOR_HOST``.
    - ``endpoint``, ``credentials_file``: where Pub/Sub is, and who asks; Google's, and the application default.
    - ``columns``: some of message_id, publish_time, data, attributes, ordering_key, delivery_attempt, in the order
      wanted; all of them by default. What is left out costs nothing.
    - ``attribute_columns``: attributes that become text columns of their own, behind the others; null where a message
      does not have the attribute.
    - ``streams``: StreamingPull streams; 1 by default.
    - ``max_outstanding_messages``, ``max_outstanding_bytes``: the most that is held unacknowledged, in batches and in
      the buffer; 100,000 and 256 MiB by default.
    - ``ack_deadline_s``: the least lease of a message, 10 to 600; 60 by default. Leases are extended while the message
      is held, by as long as almost all batches took until they were acknowledged.
    - ``max_lease_s``: leases are extended no longer than this; an hour by default. Then the message may come again.
    - ``max_batch_rows``: the most rows of a batch; 10,000 by default.
    - ``linger_s``: how long a batch that is not full waits for more rows; 0.05 by default.
    - ``idle_s``: the iteration ends when nothing came for so long; by default it never does.
    """

    project_id: str | None
    emulator_host: str | None
    endpoint: str | None
    credentials_file: str | None
    columns: Iterable[str] | None
    attribute_columns: Iterable[str] | None
    streams: int | None
    max_outstanding_messages: int | None
    max_outstanding_bytes: int | None
    ack_deadline_s: float | None
    max_lease_s: float | None
    max_batch_rows: int | None
    linger_s: float | None
    idle_s: float | None


_NAME_LISTS = ("columns", "attribute_columns")


def pull(subscription: str, **options: Unpack[PullOptions]) -> "Puller":
    """Pull from a subscription, batch by batch::

        with pull("projects/p/subscriptions/s", columns=["data"]) as puller:
            for batch in puller:
                store(batch.rows)
                batch.ack()

    ``subscription`` is ``projects/P/subscriptions/S``, or S with ``project_id``. The options are those of
    :class:`PullOptions`. Leaving ``with``, also by an error or Ctrl-C, gives back every message that was not
    acknowledged.
    """
    return Puller(subscription, **options)


def pull_async(subscription: str, **options: Unpack[PullOptions]) -> "AsyncPuller":
    """:func:`pull` for an event loop, which it never blocks::

        async with pull_async("projects/p/subscriptions/s") as puller:
            async for batch in puller:
                await batch.ack()

    Cancelling the task leaves ``async with``, and so gives back what was not acknowledged.
    """
    return AsyncPuller(subscription, **options)


class _Puller:
    """What both pullers are. Making one starts nothing; it belongs to the process that opens it."""

    def __init__(self, subscription: str, **options: Unpack[PullOptions]) -> None:
        self._values = parse_keywords(PULL_OPTIONS, options, _NAME_LISTS)
        self.subscription = resource_name("subscriptions", subscription, self._values)
        self._connection = connection(self._values)
        self._columns = _names("columns", options.get("columns"))
        self._attribute_columns = _names("attribute_columns", options.get("attribute_columns")) or []
        self._native: _native.Puller | None = None

    def stats(self) -> dict[str, float]:
        """What happened so far.

        ``received``, of them ``redelivered`` (where Pub/Sub counts deliveries); ``leased`` (held now), of them
        ``buffered`` (not in a batch yet) and ``acking`` (acknowledgement under way), with ``held_bytes`` and
        ``oldest_unacked_s``; ``acked``, ``nacked``, ``refused`` (acknowledged too late, exactly-once delivery),
        ``expired`` (lost their lease while they were held); ``reconnects`` of streams.
        """
        counts: dict[str, float] = json.loads(self._opened().stats())
        return counts

    def _make(self) -> "_native.Puller":
        from solstice import _native

        if self._native is not None:
            raise ConfigError("this puller was opened already.", remedy="Make another one.")
        start_native_logging()
        values = self._values
        self._native = _native.Puller(
            self._connection,
            self.subscription,
            client_id=str(uuid.uuid4()),
            columns=self._columns,
            attribute_columns=self._attribute_columns,
            streams=values["streams"],
            max_outstanding_messages=values["maxOutstandingMessages"],
            max_outstanding_bytes=values["maxOutstandingBytes"],
            ack_deadline_s=values["ackDeadline"],
            max_lease_s=values["maxLeaseDuration"],
            max_batch_rows=values["maxBatchRows"],
            linger_s=values["linger"],
        )
        return self._native

    def _opened(self) -> "_native.Puller":
        if self._native is None:
            raise ConfigError("this puller is not open.", remedy="Use it within `with` (or `async with`).")
        return self._native

    def _idle_deadline(self) -> float | None:
        idle_s: float | None = self._values["idle"]
        return None if idle_s is None else time.monotonic() + idle_s


def _names(option: str, given: Iterable[str] | None) -> list[str] | None:
    if isinstance(given, str):
        raise ConfigError(
            f"{option} is the text {given!r}.", option=option, value=given, remedy="Give a list of names."
        )
    return None if given is None else list(given)


def _left_s(deadline: float | None) -> float | None:
    """The seconds to the deadline, None for ever, 0 or less when it has passed."""
    return None if deadline is None else deadline - time.monotonic()


class Puller(_Puller):
    """An iterator of batches; see :func:`pull`. Iterate in one thread; batches may be acknowledged in any."""

    def open(self) -> Self:
        """Connect and pull; what ``with`` does. Fails at once if the subscription is not there, or may not be read."""
        native = self._make()
        try:
            native.open().wait()
        except BaseException:
            self.close()  # Ctrl-C may come when it is open already
            raise
        return self

    def close(self) -> None:
        """Give back what was not acknowledged, and end; what leaving ``with`` does. Further calls do nothing."""
        if self._native is not None:
            self._native.close().wait()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> "PulledBatch":
        native, deadline = self._opened(), self._idle_deadline()
        while (batch := native.take()) is None:
            left_s = _left_s(deadline)
            if left_s is not None and left_s <= 0:
                raise StopIteration
            native.ready(left_s).wait()
        return PulledBatch(batch)


class AsyncPuller(_Puller):
    """An asynchronous iterator of batches; see :func:`pull_async`."""

    async def open(self) -> Self:
        """Connect and pull; what ``async with`` does. Fails at once if the subscription is not there."""
        native = self._make()
        try:
            await finished(native.open())
        except BaseException:
            await self.close()
            raise
        return self

    async def close(self) -> None:
        """Give back what was not acknowledged, and end; what leaving ``async with`` does."""
        if self._native is not None:
            await finished(self._native.close())

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> "AsyncPulledBatch":
        native, deadline = self._opened(), self._idle_deadline()
        while (batch := native.take()) is None:
            left_s = _left_s(deadline)
            if left_s is not None and left_s <= 0:
                raise StopAsyncIteration
            await finished(native.ready(left_s))
        return AsyncPulledBatch(batch)


class _Batch:
    """What both batches are."""

    def __init__(self, native: "_native.PulledBatch") -> None:
        self._native = native
        self._settled: str | None = None
        self._pending: _native.Pending | None = None

    @property
    def rows(self) -> Any:
        """The rows as a ``pyarrow.RecordBatch``."""
        return require("pyarrow", "pubsub").record_batch(self)

    @property
    def expired(self) -> int:
        """How many of its messages Pub/Sub may have given to somebody else, because their lease has ended."""
        return self._native.expired()

    def __len__(self) -> int:
        return len(self._native)

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]:
        return self._native.__arrow_c_array__(requested_schema)

    def split(self, rows: int) -> tuple[Self, Self]:
        """The first ``rows`` rows and the others, to be settled apart; this batch is used up by that."""
        if self._settled is not None:
            raise ConfigError(f"this batch was {self._settled} already; it cannot be split now.")
        first, others = self._native.split(rows)
        self._settled = "split"
        return type(self)(first), type(self)(others)

    def _settle(self, how: str) -> "_native.Pending":
        """Begin to acknowledge or to give back; what was begun before is only to be waited for."""
        if self._pending is not None and self._settled == how:
            return self._pending
        if self._settled is not None:
            raise ConfigError(f"this batch was {self._settled} already; it cannot be {how} now.")
        self._pending = self._native.ack() if how == "acknowledged" else self._native.nack()
        self._settled = how
        return self._pending

    def _check_refused(self) -> None:
        refused = {row: (ack_id, reason) for row, ack_id, reason in self._native.refused()}
        if refused:
            shown = ", ".join(str(row) for row in list(refused)[:5]) + (", ..." if len(refused) > 5 else "")
            reasons = ", ".join(sorted({reason for _, reason in refused.values()}))
            raise AcknowledgeError(
                f"Pub/Sub refused {len(refused)} of {len(self)} acknowledgements for good: rows {shown} ({reasons}).",
                acked=len(self) - len(refused),
                refused=refused,
                remedy="Their leases had ended, so they come again: acknowledge sooner, or raise max_lease_s.",
            )


class PulledBatch(_Batch):
    """Rows of a :class:`Puller`, leased until they are acknowledged or given back.

    A batch that is neither stays leased until ``max_lease_s``, and is given back when its puller closes. It is Arrow
    data itself (``__arrow_c_array__``): pyarrow, Polars and others take it as it is, without a copy.
    """

    def ack(self) -> None:
        """Acknowledge; returns when Pub/Sub has confirmed it. A second call waits for the same.

        Raises :class:`~solstice.errors.AcknowledgeError` for messages that Pub/Sub refused for good.
        """
        self._settle("acknowledged").wait()
        self._check_refused()

    def nack(self) -> None:
        """Give back, to be delivered again, here or elsewhere."""
        self._settle("given back").wait()


class AsyncPulledBatch(_Batch):
    """Rows of an :class:`AsyncPuller`; see :class:`PulledBatch`."""

    async def ack(self) -> None:
        """Acknowledge; done when Pub/Sub has confirmed it, which goes on when this is cancelled.

        Raises :class:`~solstice.errors.AcknowledgeError` for messages that Pub/Sub refused for good.
        """
        await finished(self._settle("acknowledged"))
        self._check_refused()

    async def nack(self) -> None:
        """Give back, to be delivered again, here or elsewhere."""
        await finished(self._settle("given back"))
