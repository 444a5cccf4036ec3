"""Reading Kafka logs to a known end, and the two compacted logs that hold what a job remembers."""

import json
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from solstice.pipeline._kafka_cluster import EMPTY_MS, RECOVERY_S, KafkaCluster, discard, introduce
from solstice.pipeline._queue import GroupProgress, TopicProgress

Key = tuple[Any, ...]

_BATCH = 1_000
_POLL_S = 0.5
_SILENCE_S = 3.0  # of a log that has more: a transaction is open there, or the consumer has lost its broker for good


def encode(value: object) -> bytes:
    """JSON as short as it gets."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


class LogReader:
    """Reads partitions in order, only what is committed, and knows how far it is."""

    def __init__(self, cluster: KafkaCluster, starts: Mapping[tuple[str, int], int]) -> None:
        self._cluster = cluster
        self._reached = dict(starts)
        self._consumer = self._open()

    def _open(self) -> Any:
        # Not far ahead: what librdkafka fetches by itself is a hundred thousand messages of each partition. And on as
        # soon as these are read: with that much in hand it would rest for a second.
        consumer = self._cluster.consumer(
            queued_min_messages=_BATCH,
            queued_max_messages_kbytes=2_048,
            max_partition_fetch_bytes=131_072,
            fetch_queue_backoff_ms=5,
            fetch_wait_max_ms=EMPTY_MS,
        )
        introduce(self._cluster, consumer, {topic for topic, _ in self._reached})
        partition = self._cluster.kafka.TopicPartition
        consumer.assign([partition(*place, offset) for place, offset in self._reached.items()])
        return consumer

    def read_to(self, ends: Mapping[tuple[str, int], int]) -> Iterator[Any]:
        """Everything committed before these offsets; waits for the transactions that were open there."""
        end_of_partition = self._cluster.kafka.KafkaError._PARTITION_EOF
        deadline_s = time.monotonic() + RECOVERY_S
        silent_s = time.monotonic() + _SILENCE_S
        while any(self._reached[place] < end for place, end in ends.items()):
            heard = False
            for message in self._consumer.consume(_BATCH, 0) or [self._consumer.poll(_POLL_S)]:
                if message is None:
                    continue
                error = message.error()
                place = (message.topic(), message.partition())
                # After an unclean end of a broker, Kafka may send a client back to the beginning.
                if message.offset() is not None and message.offset() < self._reached.get(place, 0):
                    continue
                if error is None:
                    heard = True
                    self._reached[place] = message.offset() + 1
                    yield message
                elif error.code() == end_of_partition:
                    self._reached[place] = message.offset()
                # Anything else is a lost connection, which librdkafka mends.
            now_s = time.monotonic()
            if heard:
                deadline_s, silent_s = now_s + RECOVERY_S, now_s + _SILENCE_S
            elif now_s >= deadline_s:
                code = self._cluster.kafka.KafkaError
                silence = code(code._TIMED_OUT, f"nothing was heard for {RECOVERY_S:g} s")
                raise self._cluster.failed(self._cluster.kafka.KafkaException(silence))
            elif now_s >= silent_s:
                self._cluster.require_not_given_up()
                discard(self._consumer)
                self._consumer, silent_s = self._open(), now_s + _SILENCE_S

    def close(self) -> None:
        """Give up the connection."""
        self._consumer.close()


class StateLog:
    """The last value of each key of a compacted log with one partition. For several threads."""

    def __init__(self, cluster: KafkaCluster, topic: str) -> None:
        self._cluster = cluster
        self._place = (topic, 0)
        self._reader: LogReader | None = None
        self._lock = threading.RLock()
        self.values: dict[str, dict[Key, Any]] = {}

    def of(self, kind: str) -> dict[Key, Any]:
        """The values of one kind, by the rest of their keys."""
        return self.values.setdefault(kind, {})

    def refresh(self) -> None:
        """Read everything that was committed before this call."""
        self._cluster.ensure(self._place[0])
        self.read_to(self._cluster.ends({self._place[0]: [0]})[self._place])

    def read_to(self, end: int) -> None:
        """Read everything that was committed before an offset."""
        with self._lock:
            if self._reader is None:
                self._cluster.ensure(self._place[0])
                self._reader = LogReader(self._cluster, {self._place: 0})
            for message in self._reader.read_to({self._place: end}):
                kind, *rest = json.loads(message.key())
                value = message.value()
                self._apply(kind, tuple(rest), None if value is None else json.loads(value))

    def _apply(self, kind: str, key: Key, value: Any) -> None:
        values = self.of(kind)
        self._replace(kind, key, values.get(key), value)
        if value is None:
            values.pop(key, None)
        else:
            values[key] = value

    def _replace(self, kind: str, key: Key, old: Any, new: Any) -> None:
        """Told before a value is replaced."""

    def close(self) -> None:
        """Give up the connection."""
        with self._lock:
            if self._reader is not None:
                self._reader.close()
                self._reader = None


class Totals:
    """Sums that are kept while their parts are replaced: a look costs the same however long the job is."""

    def __init__(self) -> None:
        self._sums: dict[Key, list[int]] = {}

    def replace(self, key: Key, old: list[int] | None, new: list[int] | None) -> None:
        """Take the old part out and put the new one in."""
        sums = self._sums.setdefault(key, [0] * len(new or old or ()))
        for index in range(len(sums)):
            sums[index] += (new[index] if new else 0) - (old[index] if old else 0)

    def of(self, key: Key, count: int) -> list[int]:
        """The sums of one key."""
        return self._sums.get(key, [0] * count)


class ControlLog(StateLog):
    """What decides: facts, groups, ends, writers and their leases, batches, completions, streams."""

    def __init__(self, cluster: KafkaCluster) -> None:
        super().__init__(cluster, cluster.control)
        self.produced = Totals()

    def _replace(self, kind: str, key: Key, old: Any, new: Any) -> None:
        if kind in ("completion", "stream"):
            self.produced.replace((key[0],), old and old["counts"], new and new["counts"])

    def stage_of(self, writer: str) -> str | None:
        """The stage of a writer that may make something visible; None once it was fenced, or has ended."""
        value = self.of("writer").get((writer,))
        return None if value is None else value.get("stage")

    def live_writers(self) -> dict[str, tuple[str, float]]:
        """Stage and end of the lease of each live writer."""
        leases = self.of("lease")
        return {
            key[0]: (value["stage"], leases.get(key, value["until"]))
            for key, value in self.of("writer").items()
            if "stage" in value
        }

    def at_fault(self, worker: str) -> bool:
        """Whether what a worker left behind counts as failed: not if it was stopped, or fenced with its run."""
        value = self.of("writer").get((worker,))
        return bool(value and value.get("at_fault", True))

    def groups_of(self, topic: str) -> list[str]:
        """The groups that consume a topic."""
        return [group for of_topic, group in self.of("group") if of_topic == topic]


class ProgressLog(StateLog):
    """What every settled split adds to: cumulative counters of each worker and producer, and the prepared files."""

    def __init__(self, cluster: KafkaCluster) -> None:
        super().__init__(cluster, cluster.progress)
        self._produced = Totals()
        self._groups = Totals()

    def _replace(self, kind: str, key: Key, old: Any, new: Any) -> None:
        if kind not in ("worker", "producer"):
            return
        for value, sign in ((old, 0), (new, 1)):
            for topic, counts in (value or {}).get("produced", {}).items():
                self._produced.replace((topic,), *((None, counts) if sign else (counts, None)))
        if kind == "worker":
            topic_and_group = tuple((new or old)["consumes"])
            self._groups.replace(topic_and_group, old and old["counts"], new and new["counts"])

    def produced(self, topic: str) -> list[int]:
        """Messages, bytes and records that workers and producers have added to a topic."""
        return self._produced.of((topic,), 3)

    def group(self, topic: str, group: str) -> GroupProgress:
        """The sums over all workers of a group."""
        return GroupProgress(*self._groups.of((topic, group), 6))


def topic_progress(topic: str, control: ControlLog, progress: ProgressLog) -> TopicProgress:
    """What sources have published and what workers have produced."""
    count, size_bytes, records = (
        a + b for a, b in zip(control.produced.of((topic,), 3), progress.produced(topic), strict=True)
    )
    return TopicProgress(count, size_bytes, records, (topic,) in control.of("end"))
