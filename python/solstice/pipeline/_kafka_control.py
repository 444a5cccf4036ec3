"""Decisions in Kafka: write the intent, look at what was committed before it, and only then commit.

The control log has one partition, so its order is the order of decisions. Whoever wants to decide something begins a
transaction, writes a record of it, and reads the log up to that record, waiting for the transactions that were open
before. Two who want the same thing thus see each other: the later one in the log waits for the earlier one, and knows
what it has decided. Fencing is such a decision too: a writer whose record comes later finds that it was fenced, one
whose record came earlier has published before it was.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from solstice.pipeline._kafka_cluster import CALL_S, PAUSE_S, KafkaCluster
from solstice.pipeline._kafka_log import ControlLog, Key, encode


class Record(NamedTuple):
    """What a transaction writes; ``partition`` -1 leaves the choice to the topic."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: "list[tuple[str, bytes]] | None" = None


def state_record(topic: str, key: Key, value: Any) -> Record:
    """A record of a compacted log; None removes the key."""
    return Record(topic, 0, encode(key), None if value is None else encode(value))


def write(producer: Any, records: Sequence[Record], told: Callable[[Any, Any], None] | None = None) -> None:
    """Hand records to a producer; one whose buffer is full is waited for. ``told`` hears of each what became of it."""
    produce = producer.produce
    for topic, partition, key, value, headers in records:
        while True:
            try:
                if headers is None:
                    produce(topic, value, key, partition, told)  # by position: half the cost of a call by names
                else:
                    produce(topic, value, key, partition, told, headers=headers)
                break
            except BufferError:
                producer.poll(PAUSE_S)


def flush(cluster: KafkaCluster, producer: Any) -> None:
    """Wait until the brokers have everything. Always before offsets or a commit, which are slow behind open batches."""
    if producer.flush(CALL_S):
        error = cluster.kafka.KafkaError
        raise cluster.kafka.KafkaException(error(error._TIMED_OUT, "the brokers do not take what is written"))


class Appender:
    """Writes records that need no look: each is right whatever else happens, and may be written twice."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster
        self._producer: Any = None

    def append(self, *records: Record) -> None:
        """Write, and wait until the brokers have it."""
        self._cluster.ensure(*{record.topic for record in records})
        self._cluster.retrying(lambda: self._append(records))

    def _append(self, records: Sequence[Record]) -> None:
        producer = self._producer = self._producer or self._cluster.producer()
        refused: list[Any] = []
        try:
            write(producer, records, lambda error, message: refused.append(error) if error else None)
            flush(self._cluster, producer)
            if refused:
                raise self._cluster.kafka.KafkaException(refused[0])
        except self._cluster.kafka.KafkaException:
            self.close()  # the next one knows nothing of the brokers that have failed
            raise

    def close(self) -> None:
        """Give up the connection."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge()


class Decider:
    """Makes decisions under a name of its own, with a producer that is kept from one to the next."""

    def __init__(self, cluster: KafkaCluster, control: ControlLog, name: str) -> None:
        self._cluster = cluster
        self._control = control
        self._transactional_id = cluster.transactional_id("decisions", name)
        self._producer: Any = None

    def decide(self, then: Callable[[ControlLog], Sequence[Record] | None]) -> bool:
        """Commit what ``then`` returns after a look; give it up and return False if that is None.

        Repeated when the brokers fail: ``then`` has to recognize that an attempt has succeeded whose answer was lost.
        """
        self._cluster.ensure(self._cluster.control)
        return self._cluster.retrying(lambda: self._decide(then), self._discard)

    def _discard(self) -> None:
        """The next producer of the name ends what this one has left open."""
        if self._producer is not None:
            self._producer.purge()
            self._producer = None

    def _decide(self, then: Callable[[ControlLog], Sequence[Record] | None]) -> bool:
        offsets: list[int] = []
        refused: list[Any] = []

        def written(error: Any, message: Any) -> None:
            if error is None:
                offsets.append(message.offset())
            else:
                refused.append(error)

        self._producer = self._producer or self._cluster.producer(self._transactional_id)
        producer, intent = self._producer, state_record(self._cluster.control, ("intent",), self._transactional_id)
        producer.begin_transaction()
        try:
            producer.produce(intent.topic, intent.value, intent.key, partition=0, on_delivery=written)
            flush(self._cluster, producer)
            if refused:
                raise self._cluster.kafka.KafkaException(refused[0])
            self._control.read_to(offsets[0])
            records = then(self._control)
            if records is None:
                producer.abort_transaction(CALL_S)
                return False
            write(producer, records)
            flush(self._cluster, producer)
        except self._cluster.kafka.KafkaException:
            raise
        except BaseException:
            producer.abort_transaction(CALL_S)
            raise
        producer.commit_transaction(CALL_S)
        return True
