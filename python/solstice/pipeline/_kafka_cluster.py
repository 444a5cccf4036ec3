"""What every Kafka handle of a job is made from: addresses, names, settings, and errors in our words."""

import contextlib
import functools
import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from solstice._core.extras import require
from solstice._core.urls import parse_url
from solstice.errors import ConfigError, QueueError

FIRST_ANSWER_S = 8.0  # a broker that is not there at the start is told at once
RECOVERY_S = 120.0  # one that goes away later is waited for
CALL_S = 10.0
ASK_S = 3.0  # a small question; it is asked again
TRANSACTION_S = 10.0  # a dead open transaction hides everything behind it for as long as this
HEARTBEAT_MS = 500
PAUSE_S = 0.1
# How long brokers keep a question for records that are not there. The end of a transaction is not told to who reads:
# only an answer without records says that nothing else was behind the last one. (librdkafka: half a second.)
EMPTY_MS = 50
_PROBE_S = 1.0

# After a broker was away, all of its clients look for it at least once a second (librdkafka: ten). They keep the
# brokers that they know: one that "bootstraps again" tries without a pause while there is none, and then waits for a
# coordinator that it has forgotten (librdkafka issue 5511).
_SETTINGS = {
    "metadata.recovery.strategy": "none",
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 1000,
}

_PARTITIONS = "partitions"
_DEFAULT_PARTITIONS = 8
_log = logging.getLogger("solstice.pipeline.kafka")

T = TypeVar("T")

_met: set[str] = set()  # the clusters that this process has met: if one of them is away, it comes back
_given_up: set[str] = set()  # those that were waited for in vain: a job that ends does not wait for each of its calls


class _Quiet:
    """librdkafka tells every lost connection as an error; what matters of it comes back from the calls."""

    def log(self, level: int, text: str, *values: object) -> None:
        _log.debug(text, *values)


class KafkaCluster:
    """A cluster, and the corner of it that belongs to one job: ``kafka://host:9092/job``.

    ``partitions`` (8) is how many workers of a stage can be busy at a time. Every other parameter of the URL is a
    setting of librdkafka, such as ``security.protocol``. Nothing is connected before it is needed.
    """

    def __init__(self, url: str, patience_s: float = FIRST_ANSWER_S) -> None:
        parsed = parse_url(url)
        self.url = str(parsed)
        self.address = parsed.addresses
        self.job = parsed.path.strip("/")
        # A dot ends the job's name in those of its topics: the topics of "a.b" would be among those of "a".
        if not parsed.host or not self.job or set("/.") & set(self.job):
            raise ConfigError(
                f"the queue {self.url!r} names no job of a Kafka cluster.",
                option="queue",
                value=self.url,
                remedy="Write kafka://host:9092/job, without dots; Job fills in its own name where there is none.",
            )
        settings = dict(parsed.params)
        partitions = settings.pop(_PARTITIONS, str(_DEFAULT_PARTITIONS))
        if not partitions.isdigit() or not 1 <= int(partitions) <= 10_000:
            raise ConfigError(
                f"partitions is {partitions!r} in the queue {self.url!r}.",
                option="queue",
                value=self.url,
                remedy="Give the number of workers that a stage may have, for example ?partitions=8.",
            )
        self.partitions = int(partitions)
        self.kafka = require("confluent_kafka", "kafka")
        self._settings = {"bootstrap.servers": self.address} | settings
        self._admin: Any = None
        self._patience_s = patience_s
        self._counts: dict[str, int] = {}
        self._turn = random.randrange(1 << 20)
        self._lock = threading.Lock()

    # --- names -----------------------------------------------------------------------------------------------------

    @property
    def control(self) -> str:
        """Facts, writers, completions: what decides."""
        return f"{self.job}..control"

    @property
    def progress(self) -> str:
        """Counters and prepared files: what every settled split adds to."""
        return f"{self.job}..progress"

    @property
    def dead_letters(self) -> str:
        """The splits that were given up."""
        return f"{self.job}..dead"

    def data(self, topic: str) -> str:
        """What a stage has produced."""
        return f"{self.job}.{topic}"

    def retry(self, topic: str, group: str) -> str:
        """What a stage has to do again."""
        return f"{self.job}.{topic}.{group}.retry"

    def group(self, topic: str, group: str) -> str:
        """The consumer group of a stage."""
        return f"{self.job}.{topic}.{group}"

    def transactional_id(self, *parts: object) -> str:
        """The name under which one writer at a time may write."""
        return "/".join([self.job, *map(str, parts)])

    def worker_ids(self, topic: str, worker: str) -> tuple[str, str]:
        """The transactional ids of a worker, which take turns; one that consumes several topics has two for each.

        A commit is answered before the brokers are through with it. A transaction of the same id that comes too soon is
        refused, and librdkafka asks again only after 20 ms.
        """
        return (
            self.transactional_id("workers", worker, topic, 0),
            self.transactional_id("workers", worker, topic, 1),
        )

    # --- handles ---------------------------------------------------------------------------------------------------

    def producer(self, transactional_id: str | None = None, linger_ms: int = 0) -> Any:
        """A producer; a transactional one has fenced every other of its name, and ended what they had begun.

        It sends at once, as its few records are waited for; ``linger_ms`` is for those who write many.
        """
        settings: dict[str, Any] = {
            "enable.idempotence": True,
            "linger.ms": linger_ms,
            "queue.buffering.max.messages": 1_000_000,
        }
        if transactional_id is not None:
            settings |= {
                "transactional.id": transactional_id,
                "transaction.timeout.ms": int(TRANSACTION_S * 1000),
            }
        producer = self.kafka.Producer(self._with(settings), logger=_Quiet())
        if transactional_id is not None:
            producer.list_topics(self.control, timeout=CALL_S)  # without a connection it would sleep for half a second
            producer.init_transactions(CALL_S)
        return producer

    def consumer(
        self, group: str = "", on_error: Callable[[Any], None] = lambda error: None, **settings: object
    ) -> Any:
        """A consumer of what is committed. Without a group it is told what to read.

        ``on_error`` is told within a poll what goes wrong: that a consumer is broken for good is said nowhere else.
        """
        return self.kafka.Consumer(
            self._with(
                {
                    "group.id": group or f"{self.job}..readers",
                    "isolation.level": "read_committed",
                    "enable.auto.commit": False,
                    "enable.partition.eof": True,
                    "auto.offset.reset": "earliest",
                    "queued.max.messages.kbytes": 16_384,
                    "error_cb": on_error,
                }
                | {name.replace("_", "."): value for name, value in settings.items()}
            ),
            logger=_Quiet(),
        )

    @property
    def admin(self) -> Any:
        """The administrative client; the first use finds out whether the cluster is there.

        Keep it in a variable until its answers are there: another thread may replace it, and one that nobody refers
        to is destroyed and leaves its questions without an answer, for ever.
        """
        with self._lock:
            if self._admin is None:
                admin = self._new_admin()
                self._meet(admin)
                self._admin = admin
            return self._admin

    def _new_admin(self) -> Any:
        return require("confluent_kafka.admin", "kafka").AdminClient(self._with({}), logger=_Quiet())

    def _meet(self, admin: Any) -> None:
        deadline_s = time.monotonic() + self._patience_s
        while self.address not in _met:
            try:
                admin.list_topics(timeout=min(self._patience_s, CALL_S))
                _met.add(self.address)
            except self.kafka.KafkaException as error:
                if time.monotonic() >= deadline_s:
                    raise QueueError(
                        f"no Kafka broker answers at {self.address} (queue={self.url!r}): {error.args[0].str()}.",
                        remedy="Is it running, and is `queue` its address?",
                    ) from error
                time.sleep(PAUSE_S)

    def _with(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        return {**_SETTINGS, **settings, **self._settings}

    # --- topics ----------------------------------------------------------------------------------------------------

    def ensure(self, *topics: str) -> None:
        """Create the topics that are not there yet, and wait until they can be used."""
        missing = [topic for topic in topics if topic not in self._counts]
        if not missing:
            return
        self.retrying(lambda: self._create(missing))
        for topic in missing:
            partitions = self.retrying(functools.partial(self._existing, topic))
            self.ends({topic: partitions})  # fails, and is tried again, until each partition has its leader
            self._counts[topic] = len(partitions)

    def _existing(self, topic: str) -> list[int]:
        if partitions := self.partitions_of(topic):
            return partitions
        code = self.kafka.KafkaError
        raise self.kafka.KafkaException(code(code.UNKNOWN_TOPIC_OR_PART, f"the topic {topic} does not appear"))

    def _create(self, topics: Sequence[str]) -> None:
        new_topic = require("confluent_kafka.admin", "kafka").NewTopic
        admin = self.admin
        created = admin.create_topics(
            [
                new_topic(topic, self._partitions_of(topic), config=self._configuration(topic), replication_factor=-1)
                for topic in topics
            ],
            operation_timeout=CALL_S,
            request_timeout=CALL_S,
        )
        for topic, future in created.items():
            try:
                self.answer(future, 2 * CALL_S)
            except self.kafka.KafkaException as error:
                code = error.args[0].code()
                if code < 0 or error.args[0].retriable():
                    raise  # librdkafka's own: there was no answer
                if code != self.kafka.KafkaError.TOPIC_ALREADY_EXISTS:
                    raise QueueError(f"the topic {topic} cannot be created: {error.args[0].str()}.") from error

    def count_of(self, topic: str) -> int:
        """How many partitions a topic has that was ensured."""
        return self._counts[topic]

    def place(self, topic: str) -> int:
        """The next partition to write to, in turn: with keys a few splits might all fall into one."""
        self._turn += 1
        return self._turn % self._counts[topic]

    def _partitions_of(self, topic: str) -> int:
        return 1 if topic in (self.control, self.progress, self.dead_letters) else self.partitions

    def _configuration(self, topic: str) -> dict[str, str]:
        if topic in (self.control, self.progress):
            # Small segments: the one that is written to is never compacted.
            return {"cleanup.policy": "compact", "segment.bytes": "16777216", "min.cleanable.dirty.ratio": "0.1"}
        return {"retention.ms": "-1", "retention.bytes": "-1"}

    def partitions_of(self, topic: str) -> list[int]:
        """The partitions that a topic has; none if it does not exist."""
        found = self.retrying(lambda: self.admin.list_topics(topic, timeout=CALL_S)).topics.get(topic)
        return [] if found is None else sorted(found.partitions)

    def ends(self, partitions: Mapping[str, Sequence[int]]) -> dict[tuple[str, int], int]:
        """Where each log ends now, open transactions included."""
        asked = {
            self.kafka.TopicPartition(topic, partition): _latest()
            for topic, numbers in partitions.items()
            for partition in numbers
        }

        def ask() -> dict[tuple[str, int], int]:
            admin = self.admin
            answers = admin.list_offsets(asked, request_timeout=ASK_S)
            return {
                (place.topic, place.partition): self._offset(self.answer(answer, 2 * ASK_S))
                for place, answer in answers.items()
            }

        return self.retrying(ask) if asked else {}

    def _offset(self, answer: Any) -> int:
        """An end. A leader that did not answer in time is no error to librdkafka: it then tells an offset below zero.

        Taken for an end, a log would seem to be read, and whoever looked for something in it did not find it.
        """
        if answer.offset >= 0:
            return int(answer.offset)
        code = self.kafka.KafkaError
        raise self.kafka.KafkaException(code(code._TIMED_OUT, "the leaders do not tell where their logs end"))

    def answer_of_coordinator(self, future: Any) -> Any:
        """What a group's coordinator says. Ask with a ``request_timeout`` of RECOVERY_S; this one is shorter.

        When librdkafka's own time-out passes while it looks for a coordinator that is away, it ends the process as soon
        as the coordinator is back (librdkafka issue 4605).
        """
        return self.answer(future, ASK_S)

    def answer(self, future: Any, within_s: float) -> Any:
        """What an administrative call gives. A broker that goes away may take librdkafka's own time-out with it."""
        try:
            return future.result(within_s)
        except TimeoutError:
            code = self.kafka.KafkaError
            raise self.kafka.KafkaException(code(code._TIMED_OUT, "the brokers do not answer")) from None

    def retrying(self, call: Callable[[], T], failed: Callable[[], None] = lambda: None) -> T:
        """Call until it succeeds: a broker that is away comes back. For what can be repeated.

        ``failed`` is told of each failure. Once brokers were waited for in vain, or a user was tired of it, this raises
        at once for as long as none answers.
        """
        self.require_not_given_up()
        try:
            return self._repeat(call, failed)
        except KeyboardInterrupt:
            _given_up.add(self.address)
            raise

    def _repeat(self, call: Callable[[], T], failed: Callable[[], None]) -> T:
        deadline_s = time.monotonic() + RECOVERY_S
        while True:
            try:
                return call()
            except self.kafka.KafkaException as error:
                failed()
                if time.monotonic() >= deadline_s:
                    raise self.failed(error) from error
                self.require_not_given_up()  # somebody else has waited for long enough
                _log.debug("tried again: %s", error)
                # It may go on with what no longer holds: coordinators, or leaders as they were before a restart.
                with self._lock:
                    self._admin = None
            time.sleep(PAUSE_S)

    def require_not_given_up(self) -> None:
        """Raise if brokers were waited for in vain, by whatever thread, and still none answers."""
        if self.address not in _given_up:
            return
        try:
            self._new_admin().list_topics(timeout=_PROBE_S)
        except self.kafka.KafkaException as error:
            raise self.failed(error) from error
        _given_up.discard(self.address)

    def failed(self, error: Any) -> QueueError:
        """An error of librdkafka as ours, when it was waited for long enough."""
        _given_up.add(self.address)
        return QueueError(
            f"the queue {self.url} failed: {error.args[0].str()} ({error.args[0].name()}).",
            remedy="Nothing is lost: run the job again when the brokers answer.",
        )


def discard(consumer: Any) -> None:
    """Give up a consumer that is of no use any more, without waiting for it: its brokers may be away."""
    threading.Thread(target=consumer.close, name="kafka-discard", daemon=True).start()


def introduce(cluster: KafkaCluster, client: Any, topics: Iterable[str]) -> None:
    """Let a new client meet its brokers and hear of its topics: else it sleeps for half a second, or a whole one."""
    with contextlib.suppress(cluster.kafka.KafkaException):  # they are away: it goes on looking by itself
        for topic in topics:
            client.list_topics(topic, timeout=ASK_S)


def _latest() -> Any:
    return require("confluent_kafka.admin", "kafka").OffsetSpec.latest()
