"""The thread that polls Kafka for a worker: it keeps the worker in its group while the operator runs."""

import logging
import threading
import time
from collections.abc import Iterable
from typing import Any

from solstice.errors import QueueError
from solstice.pipeline._kafka_cluster import CALL_S, KafkaCluster, discard
from solstice.pipeline._kafka_log import ControlLog
from solstice.pipeline._kafka_members import evict, join, members
from solstice.pipeline._kafka_window import Item, Window, read_item
from solstice.pipeline._queue import fenced

Place = tuple[str, int]

_POLL_S = 0.1
_POLL_PAUSED_S = 0.01
_FETCH = 500
_FULL = 10_000  # messages in memory: above it no more are polled until there are half as many
_SLOW_S = 1.0  # a worker that takes longer for that half has its partitions paused meanwhile
_PATIENCE_S = 5.0  # without a membership, before the consumer is replaced; doubled as long as that does not help
_MAX_PATIENCE_S = 60.0
_KEEP_S = 60.0  # how long a partition that shall go to another worker is kept until its split is settled

_log = logging.getLogger(__name__)


class Poller:
    """A member of the group, polled by a thread of its own from the first ``start`` to ``close``.

    ``condition`` guards the windows: the thread adds partitions and messages, the worker takes and settles.

    A consumer whose membership was lost is replaced by a new one of the same name, whatever the reason. librdkafka
    would join again by itself, but after a broker was restarted it may well not: it shows an empty member id, is
    refused as if somebody had taken its name over, and says so nowhere but to ``on_error``. The name is ours as long
    as we are registered, so a new consumer can always have it; and it knows nothing that is stale.

    The group shares out the partitions of the data only, and those of the retries go with them. Groups balance numbers:
    of two workers one would get all the data, and the other the retries, of which there are none.
    """

    def __init__(
        self, cluster: KafkaCluster, control: ControlLog, topic: str, group: str, owner: str, lease_s: float
    ) -> None:
        self.windows: dict[Place, Window] = {}
        self.condition = threading.Condition()
        self.consumer: Any = None
        self._cluster = cluster
        self._control = control
        self._topic = topic
        self._group = group
        self._data, self._retry = cluster.data(topic), cluster.retry(topic, group)
        self._owner = owner
        self._lease_s = lease_s
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        self._error: Exception | None = None
        self._joined = False
        self._paused = False
        self._member: Any = None
        self._broken = False
        self._refused = False
        self._patience_s = _PATIENCE_S
        self._patient_until_s = 0.0

    def start(self) -> None:
        """Join the group; does nothing the second time."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"kafka-{self._owner}", daemon=True)
            self._thread.start()

    def check(self) -> None:
        """Raise what has ended the thread: LeaseLostError if the worker was fenced."""
        if self._error is not None:
            raise self._error

    def ready(self) -> bool:
        """Whether it is known what can be taken: something, or nothing. Under ``condition``."""
        return self._error is not None or self.available() or (self._joined and self._all_read())

    def available(self) -> bool:
        """Whether something can be taken now. Under ``condition``."""
        now_s = time.time()
        for window in self.windows.values():
            item = window.pop(now_s)
            if item is not None:
                window.put_back(item)
                return True
        return False

    def member(self) -> Any:
        """The proof of membership for a transaction: the brokers refuse one that is old. None if there is none now.

        Ask for it before looking whether a partition is ours: a new membership begins only after this thread was told
        that the old one is lost, and has dropped its partitions.
        """
        return self._member

    def close(self) -> None:
        """Leave the group; what is held goes to others."""
        self._closing.set()
        with self.condition:
            self.condition.notify_all()
        if self._thread is not None:
            self._thread.join()

    # --- the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._join()
            while not self._closing.is_set():
                self._poll()
                self._note_membership()
                self.check()
                if self._is_broken():
                    self._replace()
        except Exception as error:  # noqa: BLE001 - carried over to the worker's thread
            self._end(error)
        try:
            self._leave()
        except Exception as error:  # noqa: BLE001 - it will be no member when its lease ends
            _log.debug("kafka: %s", error)

    def _join(self) -> None:
        callbacks = {"on_assign": self._assigned, "on_revoke": self._revoked, "on_lost": self._lost}
        self._broken = self._refused = False
        self._cluster.ensure(self._data, self._retry)
        self._patient_until_s = time.monotonic() + self._patience_s
        self.consumer = join(
            self._cluster, self._topic, self._group, self._owner, self._lease_s, self._failed, **callbacks
        )

    def _failed(self, error: Any) -> None:
        if error.fatal():
            self._broken = self._refused = True

    def _is_broken(self) -> bool:
        now_s = time.monotonic()
        if self._joined and self._member is not None:
            self._patience_s = _PATIENCE_S
            self._patient_until_s = now_s + self._patience_s
        return self._broken or now_s >= self._patient_until_s

    def _replace(self) -> None:
        """Throw the consumer away, and all that it had, and join anew. Who was made to leave is told so instead."""
        _log.debug("kafka: %s joins %s anew", self._owner, self._group)
        consumer, self.consumer = self.consumer, None
        with self.condition:
            self._member = None
            self._joined = self._paused = False
            self._drop(list(self.windows))
        discard(consumer)
        self._patience_s = min(2 * self._patience_s, _MAX_PATIENCE_S)
        self._still_registered()
        self.check()
        self._join()

    def _end(self, error: Exception) -> None:
        with self.condition:
            self._error = self._error or error
            self.windows.clear()
            self.condition.notify_all()

    def _note_membership(self) -> None:
        """Here and not where it is needed: no call on a consumer returns while another thread polls it."""
        self._member = self.consumer.consumer_group_metadata() if self.consumer.memberid() else None

    def _poll(self) -> None:
        self._await_room()
        try:
            first = self.consumer.poll(_POLL_PAUSED_S if self._paused else _POLL_S)
            messages = [] if first is None else [first, *self.consumer.consume(_FETCH, 0)]
        except self._cluster.kafka.KafkaException as error:  # of one of the callbacks
            _log.debug("kafka: %s", error)
            self._broken = True
            return
        with self.condition:
            for message in messages:
                window = self.windows.get((message.topic(), message.partition()))
                if message.error() is not None:
                    self._handle(message.error(), window)
                elif window is not None:
                    window.add(read_item(message))
            if messages:
                self.condition.notify_all()

    def _handle(self, error: Any, window: Window | None) -> None:
        codes = self._cluster.kafka.KafkaError
        if error.code() == codes._PARTITION_EOF:
            if window is not None:
                window.at_end = True
        elif error.code() == codes.FENCED_INSTANCE_ID or error.fatal():
            self._broken = self._refused = True
        elif error.code() == codes.INVALID_SESSION_TIMEOUT:
            raise QueueError(
                f"the brokers refuse a lease of {self._lease_s:g} s.",
                remedy="Give the job another lease_s: their group.min.session.timeout.ms and .max. are the bounds.",
            )
        else:
            _log.debug("kafka: %s", error)  # a lost connection, which librdkafka mends

    def _await_room(self) -> None:
        """Pause only for a worker that is slow, as its group has to be polled: a pause throws away what is fetched.

        And librdkafka looks but once a second whether it may fetch again, which a fast worker would wait for.
        """
        with self.condition:
            if self._paused:
                if self._has_room():
                    self.consumer.resume(self.consumer.assignment())
                    self._paused = False
            elif self._buffered() > _FULL and not self.condition.wait_for(self._has_room, _SLOW_S):
                self.consumer.pause(self.consumer.assignment())
                self._paused = True

    def _has_room(self) -> bool:
        return self._closing.is_set() or self._buffered() < _FULL // 2

    def _buffered(self) -> int:
        return sum(len(window.buffer) for window in self.windows.values())

    def _all_read(self) -> bool:
        return all(window.at_end or window.buffer for window in self.windows.values())

    def _leave(self) -> None:
        if (consumer := self.consumer) is not None:
            try:
                consumer.unsubscribe()  # a static member that is merely closed stays one until its lease ends
                deadline_s = time.monotonic() + CALL_S
                while not self._broken and consumer.memberid() and time.monotonic() < deadline_s:
                    self._poll()
            except Exception as error:  # noqa: BLE001 - it is no member any more, or will be seen to below
                _log.debug("kafka: %s", error)
            self.consumer = None
            consumer.close()
        # It may have been about to join again, and is a member that nobody polls. If it was refused because somebody
        # has taken its name over to make it leave, they will do so.
        taken_over = self._refused and not self._still_registered()
        if not taken_over and self._owner in members(self._cluster, self._topic, self._group):
            evict(self._cluster, self._topic, self._group, [self._owner])

    # --- what Kafka tells, within a poll -----------------------------------------------------------------------------

    def _assigned(self, consumer: Any, places: list[Any]) -> None:
        if consumer is not self.consumer or not self._still_registered():
            return  # librdkafka assigns them, to nobody's use, until we leave
        windows: dict[Place, Window] = {}
        partition = self._cluster.kafka.TopicPartition
        if places:
            asked = [partition(*place) for place in self._with_retries(places)]
            windows = {
                (place.topic, place.partition): Window.from_committed(place.offset, place.metadata, self._at_fault)
                for place in self._committed(consumer, asked)
            }
        consumer.incremental_assign([partition(*place, window.start) for place, window in windows.items()])
        if self._paused:
            consumer.resume(consumer.assignment())  # those that were ours before, too
        self._note_membership()
        with self.condition:
            self.windows |= windows
            self._joined = True
            self._paused = False
            self.condition.notify_all()

    def _with_retries(self, places: list[Any]) -> list[Place]:
        """The partitions that the group names, and those of the retries that go with them."""
        numbers = [place.partition for place in places]
        count = self._cluster.count_of(self._data)
        retries = [number for number in range(self._cluster.count_of(self._retry)) if number % count in numbers]
        return [(self._data, number) for number in numbers] + [(self._retry, number) for number in retries]

    def _committed(self, consumer: Any, places: list[Any]) -> list[Any]:
        """What the owners before have left; an error is not the same as nothing, and has the consumer replaced."""
        found: list[Any] = consumer.committed(places, CALL_S)
        for place in found:
            if place.error is not None:
                raise self._cluster.kafka.KafkaException(place.error)
        return found

    def _at_fault(self, worker: str) -> bool:
        """Whether what a worker held counts as failed. We are alive: what we ourselves had has killed nobody."""
        return worker != self._owner and self._control.at_fault(worker)

    def _still_registered(self) -> bool:
        """Whether we are in our right: a member that was made to leave simply joins again, and has to be told."""
        self._control.refresh()
        if self._control.stage_of(self._owner) is None:
            self._end(fenced(self._owner))
            return False
        return True

    def _revoked(self, consumer: Any, places: list[Any]) -> None:
        """Another worker shall have these. What is held of them is settled first, if that does not take too long.

        So is what is being taken: once it is written as held by us, the next owner would blame it.
        """
        if consumer is not self.consumer:
            return
        leaving = self._with_retries(places)
        self._note_membership()
        with self.condition:
            windows = {place: self.windows[place] for place in leaving if place in self.windows}
            for window in windows.values():
                window.leaving = True
            self.condition.wait_for(
                lambda: (
                    self._closing.is_set()
                    or self._error is not None
                    or not any(window.held or window.popped for window in windows.values())
                ),
                _KEEP_S,
            )
            left = {place: window.given_up() for place, window in windows.items() if window.held}
            self._drop(leaving)
        partition = self._cluster.kafka.TopicPartition
        if left:
            offsets = []
            for place, window in left.items():
                offset, text = window.committed(self._owner, alone=False)
                offsets.append(partition(*place, offset, metadata=text))
            try:
                consumer.commit(offsets=offsets, asynchronous=False)
            except self._cluster.kafka.KafkaException as error:
                _log.debug("kafka: what was held counts as failed: %s", error)
        # If brokers went away while these were assigned, librdkafka has assigned the data itself, and no retries.
        assigned = {(place.topic, place.partition) for place in consumer.assignment()}
        consumer.incremental_unassign([partition(*place) for place in leaving if place in assigned])

    def _lost(self, consumer: Any, places: list[Any]) -> None:
        """The group has given these away already: the lease had ended."""
        if consumer is self.consumer:
            self._broken = True
            consumer.unsubscribe()  # or it joins again as soon as this returns, and it is not known whether it may
            with self.condition:
                self._drop(self._with_retries(places))

    def _drop(self, places: Iterable[Place]) -> None:
        for place in places:
            self.windows.pop(place, None)
        self.condition.notify_all()


def choose(poller: Poller, limit: int, turn: int) -> list[tuple[Place, Window, Item]]:
    """Up to ``limit`` messages, of as few partitions as they are in: each costs the transaction. Under ``condition``.

    What was in the hands of a worker that died comes alone: if it kills this one too, it is known who it was.
    """
    now_s = time.time()
    places = sorted(poller.windows)
    chosen: list[tuple[Place, Window, Item]] = []
    for index in range(len(places)):
        place = places[(turn + index) % len(places)]
        window = poller.windows[place]
        while len(chosen) < limit and (item := window.pop(now_s)) is not None:
            again = item.offset in window.entries
            if again and chosen:
                window.put_back(item)
                return chosen
            chosen.append((place, window, item))
            if again:
                return chosen
    return chosen
