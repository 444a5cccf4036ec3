"""What a worker takes in: from all stages before its own, and in portions of the size that was asked for."""

import math
import threading
import time
from collections import deque
from collections.abc import Sequence

from solstice.pipeline._message import QueueMessage
from solstice.pipeline._queue import Consumer, Delivery, Prepared, Settled, open_consumer

_IDLE_S = 0.5  # how long a retry that became due may go unnoticed
_LINGER_S = 0.5  # how long a portion that is not full waits for more
_TAKEN_AT_ONCE = 100  # splits that are put together are taken in one transaction, as far as can be guessed
_LARGEST_PORTION = 10_000  # a statement about a portion has a parameter a split; some builds of SQLite take 32,766
_SHARE_S = 0.05  # how long one of several stages before is waited for


def writer_ids(worker: str, upstreams: Sequence[str]) -> dict[str, str]:
    """Under which name a worker takes from each stage before: a name is for one consumer, as a queue sees it."""
    return {topic: f"{worker}-{number}" if number else worker for number, topic in enumerate(upstreams)}


class Intake:
    """The consumers of one worker, one per stage before. What it has handed out it holds until it is settled."""

    def __init__(
        self,
        url: str,
        upstreams: Sequence[str],
        stage: str,
        worker: str,
        *,
        retries: int,
        lease_s: float,
        rebatch_rows: int | None,
    ) -> None:
        self._consumers: dict[str, Consumer] = {}
        self.writers = writer_ids(worker, upstreams)
        try:
            for topic, writer in self.writers.items():
                self._consumers[topic] = open_consumer(url, topic, stage, writer, retries=retries, lease_s=lease_s)
        except BaseException:
            self.close()
            raise
        self._turns = deque(self._consumers.values())
        self._rebatch_rows = rebatch_rows
        self._taken: deque[Delivery] = deque()

    @property
    def holds(self) -> bool:
        """Whether there are deliveries that were taken and not handed out yet."""
        return bool(self._taken)

    def take(self, stop: threading.Event) -> list[Delivery]:
        """The next portion, all of one stage; empty when there is nothing now."""
        first = self._next()
        if first is None:
            return []
        portion = [first]
        if self._rebatch_rows is None or first.attempt > 1:
            return portion  # one that was tried before is tried alone, so that it can take nobody along
        consumer, deadline_s = self._consumers[first.topic], time.monotonic() + _LINGER_S
        while not self._taken and not stop.is_set() and len(portion) < _LARGEST_PORTION:
            rows = sum(delivery.message.num_records for delivery in portion)
            missing = (self._rebatch_rows - rows) * len(portion) / max(rows, 1)
            if missing <= 0:
                break
            more = consumer.take_many(min(math.ceil(missing), _TAKEN_AT_ONCE))
            if not more and time.monotonic() >= deadline_s:
                break
            if not more:
                consumer.wait(deadline_s - time.monotonic(), stop)
            portion += [delivery for delivery in more if delivery.attempt == 1]
            self._taken += [delivery for delivery in more if delivery.attempt > 1]
        return portion

    def settle(
        self,
        portion: Sequence[Delivery],
        produced: Sequence[QueueMessage],
        *,
        to: str,
        prepared: Sequence[Prepared],
        done: Sequence[str],
        take: bool,
    ) -> list[QueueMessage]:
        """Commit a portion with its output; returns the messages whose payloads nobody needs any more."""
        # What was put together has one output; it is booked on the first, and committed with all of them.
        first, *others = portion
        settlements = self._consumers[first.topic].settle_many(
            [Settled(first, produced, prepared), *(Settled(other) for other in others)],
            to=to,
            done=done,
            take=int(take and self._may_take_ahead),
        )
        self._taken += settlements.next
        return settlements.released

    def fail(self, delivery: Delivery, error: str, trace: str, *, delay_s: float, take: bool) -> None:
        """Give a delivery back, or bury it."""
        settlement = self._consumers[delivery.topic].fail(
            delivery, error, trace, delay_s=delay_s, take=take and self._may_take_ahead
        )
        if settlement.next is not None:
            self._taken.append(settlement.next)

    def require(self, delivery: Delivery) -> None:
        """Raise LeaseLostError when the delivery is another worker's by now."""
        self._consumers[delivery.topic].require(delivery)

    def extend(self) -> None:
        """Renew the leases of everything that this worker holds. From any thread."""
        for consumer in self._consumers.values():
            consumer.extend()

    def wait(self, stop: threading.Event) -> None:
        """Return when there may be something to take, or after a while."""
        if len(self._turns) == 1:
            self._turns[0].wait(_IDLE_S, stop)
        else:
            self._turns[0].wait(_SHARE_S, stop)

    def close(self) -> None:
        """Give up the connections."""
        for consumer in self._consumers.values():
            consumer.close()

    @property
    def _may_take_ahead(self) -> bool:
        """Whether the next may come with a settlement: not if it could be another stage's turn, or part of more."""
        return len(self._consumers) == 1 and self._rebatch_rows is None

    def _next(self) -> Delivery | None:
        if self._taken:
            return self._taken.popleft()
        for _ in range(len(self._turns)):
            self._turns.rotate(-1)
            if (delivery := self._turns[-1].take()) is not None:
                return delivery
        return None
