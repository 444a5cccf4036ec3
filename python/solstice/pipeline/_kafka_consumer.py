"""Taking and settling on Kafka: the transactions that every split goes through."""

import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from solstice.errors import LeaseLostError
from solstice.pipeline._kafka_calls import BoundedCalls
from solstice.pipeline._kafka_cluster import CALL_S, PAUSE_S, RECOVERY_S, KafkaCluster
from solstice.pipeline._kafka_control import Appender, Record, flush, state_record, write
from solstice.pipeline._kafka_log import ControlLog, ProgressLog, encode
from solstice.pipeline._kafka_poll import Place, Poller, choose
from solstice.pipeline._kafka_queue import data_record
from solstice.pipeline._kafka_window import Entry, Item, Window, again_header
from solstice.pipeline._message import QueueMessage, totals
from solstice.pipeline._queue import (
    WORKER_DIED,
    Consumer,
    Delivery,
    Settled,
    Settlement,
    Settlements,
    fenced,
    lease_lost,
)

_READY_S = 5.0
_WAIT_S = 0.02
_MAX_RUN = 100  # outputs of a transaction for one partition, once there are so many that this leaves them even
_EVEN = 8  # how many such runs each partition has had by then
_MAX_TAKE = 100  # at a time: the text beside an offset has to hold them
_MAX_TEXT = 100_000  # of a traceback: a record of Kafka is at most a megabyte

# Where the counters of a worker are in its record: the fields of GroupProgress, in their order.
_TAKEN, _SETTLED, _SETTLED_BYTES, _SETTLED_RECORDS, _DEAD, _DEAD_BYTES = range(6)


@dataclass
class _Held:
    """A delivery in this worker's hands. ``window``: a partition that was away and is back is another one."""

    place: Place
    window: Window
    item: Item
    delivery: Delivery


@dataclass
class _Change:
    """One transaction in the making: what it writes, what it settles, what it counts."""

    settled: list[_Held] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    counts: list[int] = field(default_factory=lambda: [0] * 6)
    produced: dict[str, list[int]] = field(default_factory=dict)
    after: dict[Place, Window] = field(default_factory=dict)  # how the windows are once it is committed

    def copy(self) -> "_Change":
        """One that can be added to."""
        return _Change(list(self.settled), list(self.records), list(self.counts), self.produced)


class _MovedError(Exception):
    """A partition went to another worker while something of it was about to be taken."""


class KafkaConsumer(Consumer):
    """One worker of a group on one topic."""

    def __init__(self, url: str, topic: str, group: str, owner: str, *, retries: int, lease_s: float) -> None:
        # Its master has met the brokers: if they are away now, they come back.
        self._cluster = KafkaCluster(url, patience_s=RECOVERY_S)
        self._control = ControlLog(self._cluster)
        self._poller = Poller(self._cluster, self._control, topic, group, owner, lease_s)
        self._topic = topic
        self._group = group
        self._owner = owner
        self._retries = retries
        self._lease_s = lease_s
        self._held: dict[int, _Held] = {}
        self._counts = [0] * 6
        self._produced: dict[str, list[int]] = {}
        self._sequence = 0
        self._turn = 0
        self._sole: bool | None = None
        self._producers: dict[str, Any] = {}
        self._appender = Appender(self._cluster)
        self._calls = BoundedCalls("kafka-offsets")

    def take_many(self, limit: int) -> list[Delivery]:
        """The next messages: waits until the group has told which partitions are ours, and these are read."""
        self._require_registered()
        self._poller.start()
        with self._poller.condition:
            self._poller.condition.wait_for(self._poller.ready, _READY_S)
            if not self._poller.available():
                self._poller.check()
                return []
        return self._commit(_Change(), limit)

    def settle_many(
        self, results: Sequence[Settled], *, to: str = "", done: Sequence[str] = (), take: int = 0
    ) -> Settlements:
        """Commit deliveries with what they produced, and take the next, in one transaction."""
        change = _Change(settled=self._require_held([result.delivery for result in results]))
        messages = [result.delivery.message for result in results]
        change.counts[_SETTLED : _SETTLED_RECORDS + 1] = totals(messages)
        self._produce(change, to, [message for result in results for message in result.produced])
        released = messages if messages and self._consumed_by_us_alone() else []
        change.records += [
            state_record(
                self._cluster.progress,
                ("prepared", self._group, file.split_id),
                [self._owner, file.temporary, file.final],
            )
            for result in results
            for file in result.prepared
        ]
        change.records += [
            state_record(self._cluster.progress, ("prepared", self._group, split_id), None) for split_id in done
        ]
        return Settlements(self._commit(change, take), released)

    def fail(
        self, delivery: Delivery, error: str, traceback: str, *, delay_s: float = 0.0, take: bool = True
    ) -> Settlement:
        """Give a delivery back for a retry, or bury it: it moves to another topic, and blocks nothing."""
        (held,) = self._require_held([delivery])
        change = _Change(settled=[held])
        if delivery.failures + 1 > self._retries:
            self._bury(change, held.item, delivery, error, traceback)
        else:
            retry = self._cluster.retry(self._topic, self._group)
            self._cluster.ensure(retry)
            header = again_header(delivery.id, delivery.attempt, delivery.failures + 1, time.time() + delay_s)
            change.records.append(Record(retry, self._cluster.place(retry), held.item.key, held.item.body, [header]))
        return Settlements(self._commit(change, int(take)), []).single()

    def require(self, delivery: Delivery) -> None:
        """Raise LeaseLostError when the delivery is another's by now."""
        self._require_registered()
        self._require_held([delivery])

    def extend(self) -> None:
        """Say that the worker lives. Its group knows by itself. Raises LeaseLostError when it was fenced."""
        lease = state_record(self._cluster.control, ("lease", self._owner), time.time() + self._lease_s)
        self._appender.append(lease)
        self._require_registered()

    def wait(self, timeout_s: float, stop: threading.Event) -> None:
        """Until the polling thread has something; it is woken by it."""
        self._poller.start()
        deadline_s = time.monotonic() + timeout_s
        with self._poller.condition:
            while not stop.is_set() and time.monotonic() < deadline_s:
                if self._poller.available():
                    return
                self._poller.check()
                self._poller.condition.wait(_WAIT_S)

    def close(self) -> None:
        """Leave the group, which gives what is held to others, and give up the connections."""
        self._poller.close()
        self._control.close()
        self._appender.close()
        self._calls.close()
        self._producers.clear()

    # --- what a transaction is made of -------------------------------------------------------------------------------

    def _produce(self, change: _Change, to: str, messages: Sequence[QueueMessage]) -> None:
        if not messages:
            return
        name = self._cluster.data(to)
        self._cluster.ensure(name)
        change.produced[to] = totals(messages)
        before = self._produced.get(to, [0])[0]
        # A transaction pays for each partition that it touches; the next transaction goes on with the next one.
        run = max(1, min(before // (_EVEN * self._cluster.count_of(name)), _MAX_RUN))
        for start in range(0, len(messages), run):
            place = self._cluster.place(name)
            change.records += [data_record(name, place, message) for message in messages[start : start + run]]

    def _bury(self, change: _Change, item: Item, delivery: Delivery, error: str, traceback: str) -> None:
        topic = self._cluster.dead_letters
        self._cluster.ensure(topic)
        message = delivery.message
        letter = {
            "topic": self._topic,
            "group": self._group,
            "id": delivery.id,
            "message": msgspec.structs.asdict(message),
            "attempt": delivery.attempt,
            "error": error[:_MAX_TEXT],
            "traceback": traceback[-_MAX_TEXT:],
            "at": time.time(),
        }
        change.records.append(Record(topic, 0, item.key, encode(letter)))
        change.counts[_DEAD] += 1
        change.counts[_DEAD_BYTES] += message.payload_bytes

    def _commit(self, change: _Change, limit: int) -> list[Delivery]:
        """Commit the change and take up to ``limit`` messages, which are ours only if that succeeds."""
        while True:
            with self._poller.condition:
                self._poller.check()
                chosen = choose(self._poller, min(limit, _MAX_TAKE), self._turn)
                self._turn += 1
            if not chosen and not change.settled:
                return []
            whole = change.copy()
            try:
                taken = self._take(whole, chosen)
                self._transact(whole, taken)
                break
            except BaseException as error:
                with self._poller.condition:
                    for _, window, item in chosen:
                        window.put_back(item)
                    self._poller.condition.notify_all()
                if not isinstance(error, _MovedError):
                    raise
                # Some of what was chosen went to another worker before it was ours; the rest is chosen again.
        for held in whole.settled:
            self._held.pop(held.delivery.id, None)
        for held in taken:
            self._held[held.delivery.id] = held
        return [held.delivery for held in taken]

    def _take(self, change: _Change, chosen: Sequence[tuple[Place, Window, Item]]) -> list[_Held]:
        """Deliveries of the chosen messages. Those that have killed their workers too often are buried instead."""
        taken = []
        for place, window, item in chosen:
            before = window.entries.get(item.offset)
            attempt, failures = (before.attempt, before.failures) if before else (item.attempt, item.failures)
            delivery = Delivery(self._topic, self._group, item.id, item.message, attempt + 1, failures)
            held = _Held(place, window, item, delivery)
            if attempt == 0:
                change.counts[_TAKEN] += 1
            if failures > self._retries:
                self._bury(change, item, delivery, WORKER_DIED, "")
                change.settled.append(held)
            else:
                taken.append(held)
        return taken

    # --- the transaction ---------------------------------------------------------------------------------------------

    def _transact(self, change: _Change, taken: Sequence[_Held]) -> None:
        """Write, flush, send the offsets, commit; again, if the brokers failed and the splits are still ours."""
        self._sequence += 1
        counts = [a + b for a, b in zip(self._counts, change.counts, strict=True)]
        produced = dict(self._produced)
        for topic, more in change.produced.items():
            produced[topic] = [a + b for a, b in zip(produced.get(topic, [0, 0, 0]), more, strict=True)]
        counters = {
            "consumes": [self._topic, self._group],
            "counts": counts,
            "produced": produced,
            "sequence": self._sequence,
        }
        progress = state_record(self._cluster.progress, ("worker", self._owner, self._topic), counters)
        deadline_s = time.monotonic() + RECOVERY_S
        while not self._try(change, taken, [*change.records, progress], deadline_s):
            time.sleep(PAUSE_S)
        self._counts, self._produced = counts, produced

    def _try(self, change: _Change, taken: Sequence[_Held], records: Sequence[Record], deadline_s: float) -> bool:
        """One attempt. Returns whether it has happened; raises LeaseLostError only when it has not and never will."""
        try:
            producer = self._transactional()
            producer.begin_transaction()
            write(producer, records)
            # While the records are under way. If a partition moves after this look, the brokers refuse the member.
            member = self._poller.member()
            try:
                offsets = self._offsets(change, taken)
            except (LeaseLostError, _MovedError):
                producer.abort_transaction(CALL_S)
                raise
            if member is None:
                producer.abort_transaction(CALL_S)
                return False
            flush(self._cluster, producer)
            self._send_offsets(producer, offsets, member)
            producer.commit_transaction(CALL_S)
        except self._cluster.kafka.KafkaException as error:
            if not self._resolve(error, deadline_s):
                return False
        self._apply(change, taken)
        return True

    def _send_offsets(self, producer: Any, offsets: Sequence[Any], member: Any) -> None:
        """Within a time-out: librdkafka forgets its own after a broker was restarted, and the call never returns."""
        try:
            self._calls.call(lambda: producer.send_offsets_to_transaction(offsets, member, CALL_S), CALL_S)
        except TimeoutError:
            code = self._cluster.kafka.KafkaError
            raise self._cluster.kafka.KafkaException(code(code._TIMED_OUT, "the offsets are not taken")) from None

    def _offsets(self, change: _Change, taken: Sequence[_Held]) -> list[Any]:
        """What to commit for each partition. Raises LeaseLostError when a split that is done is no longer ours."""
        partition = self._cluster.kafka.TopicPartition
        self._require_held([held.delivery for held in change.settled if held.delivery.id in self._held])
        with self._poller.condition:
            windows = dict(self._poller.windows)
            if any(windows.get(held.place) is not held.window for held in (*change.settled, *taken)):
                raise _MovedError
            after = {
                place: windows[place].changed(settled, items)
                for place, (settled, items) in _by_place(change.settled, taken).items()
            }
        change.after = after
        alone = sum(window.held for window in (windows | after).values()) == 1
        # One that was alone no longer is, or the other way round: that too has to be written beside its offset.
        beside = {
            place: window
            for place, window in windows.items()
            if place not in after and window.held and window.alone != alone
        }
        return [
            partition(*place, offset, metadata=text)
            for place, window in (after | beside).items()
            for offset, text in (window.committed(self._owner, alone),)
        ]

    def _apply(self, change: _Change, taken: Sequence[_Held]) -> None:
        with self._poller.condition:
            windows = {held.place: held.window for held in (*change.settled, *taken)}
            for place, after in change.after.items():
                windows[place].next, windows[place].entries = after.next, after.entries
                windows[place].popped = 0
            alone = sum(window.held for window in self._poller.windows.values()) == 1
            for window in self._poller.windows.values():
                window.alone = alone
            self._poller.condition.notify_all()

    def _resolve(self, error: Any, deadline_s: float) -> bool:
        """After a failure: find out whether the transaction was committed. Raises what ends the worker."""
        cluster, cause = self._cluster, error.args[0]
        if time.monotonic() >= deadline_s:
            raise cluster.failed(error) from error
        codes = cluster.kafka.KafkaError
        of_the_group = (
            codes.ILLEGAL_GENERATION,
            codes.UNKNOWN_MEMBER_ID,
            codes.REBALANCE_IN_PROGRESS,
            codes.FENCED_INSTANCE_ID,
        )
        producer = self._producers.get(self._transactional_id)
        if cause.code() in of_the_group and producer is not None:
            try:
                producer.abort_transaction(CALL_S)
            except cluster.kafka.KafkaException:
                pass
            else:
                self._require_registered()
                return False
        # A new producer of our name ends the transaction one way or the other, and our own counters tell which.
        for producer in self._producers.values():
            producer.purge()
        self._producers.clear()
        if cluster.retrying(self._committed):
            return True
        self._require_registered()
        return False

    def _committed(self) -> bool:
        self._cluster.producer(self._transactional_id)
        log = ProgressLog(self._cluster)
        try:
            log.refresh()
            counters = log.of("worker").get((self._owner, self._topic))
        finally:
            log.close()
        return counters is not None and counters["sequence"] == self._sequence

    def _transactional(self) -> Any:
        """Our producer. Its name is ours alone; whoever fences us takes it, so we look whether we are fenced after."""
        name = self._transactional_id
        if name not in self._producers:
            self._cluster.ensure(self._cluster.control, self._cluster.progress)
            self._producers[name] = self._cluster.producer(name)
            self._require_registered()
        return self._producers[name]

    @property
    def _transactional_id(self) -> str:
        """The name whose turn it is in the transaction at hand."""
        return self._cluster.worker_ids(self._topic, self._owner)[self._sequence % 2]

    # --- who we are --------------------------------------------------------------------------------------------------

    def _require_registered(self) -> None:
        self._poller.check()
        self._control.refresh()
        if self._control.stage_of(self._owner) is None:
            raise fenced(self._owner)

    def _require_held(self, deliveries: Sequence[Delivery]) -> list[_Held]:
        found = []
        with self._poller.condition:
            self._poller.check()
            windows = self._poller.windows
            for delivery in deliveries:
                held = self._held.get(delivery.id)
                ours = held is not None and windows.get(held.place) is held.window
                entry = held.window.entries.get(held.item.offset) if held and ours else None
                if held is None or entry is None or not entry.held or held.delivery.attempt != delivery.attempt:
                    raise lease_lost(delivery, self._owner)
                found.append(held)
        return found

    def _consumed_by_us_alone(self) -> bool:
        """Whether a split that we have settled is settled for all; of several groups nobody knows who is the last."""
        if self._sole is None:
            self._control.refresh()
            self._sole = len(self._control.groups_of(self._topic)) == 1
        return self._sole


def _by_place(
    settled: Sequence[_Held], taken: Sequence[_Held]
) -> dict[Place, tuple[list[int], list[tuple[Item, Entry]]]]:
    found: dict[Place, tuple[list[int], list[tuple[Item, Entry]]]] = defaultdict(lambda: ([], []))
    for held in settled:
        found[held.place][0].append(held.item.offset)
    for held in taken:
        entry = Entry(held.delivery.attempt, held.delivery.failures, True)
        found[held.place][1].append((held.item, entry))
    return found
