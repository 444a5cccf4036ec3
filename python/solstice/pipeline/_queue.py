"""The queue between stages: what it promises, whatever the backend.

A topic holds what one stage produced. A group is one stage that consumes it; each group gets every message. A message
is *settled* by a group when it was committed or went to the dead letters, and that happens once.
"""

import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from solstice._core.urls import parse_url
from solstice.errors import ConfigError, LeaseLostError, StreamResetError
from solstice.pipeline._message import QueueMessage
from solstice.pipeline._paths import absolute_url


class Delivery(msgspec.Struct, frozen=True):
    """A message in the hands of one worker. ``attempt`` counts deliveries, ``failures`` those that ended badly."""

    topic: str
    group: str
    id: int
    message: QueueMessage
    attempt: int
    failures: int


@dataclass(frozen=True)
class Prepared:
    """An output file that is committed but may not have its final name yet."""

    split_id: str
    temporary: str
    final: str


class Settled(msgspec.Struct, frozen=True):
    """A delivery that is done, and what it was turned into."""

    delivery: Delivery
    produced: Sequence[QueueMessage] = ()
    prepared: Sequence[Prepared] = ()


@dataclass(frozen=True)
class Settlement:
    """What a settling transaction gave: the next delivery, and the messages whose payloads nobody needs any more.

    Where several groups consume a topic a queue need not know who was the last: then the sweep finds the payload.
    """

    next: Delivery | None
    released: list[QueueMessage] = field(default_factory=list)


@dataclass(frozen=True)
class Settlements:
    """The same for several deliveries at once."""

    next: list[Delivery]
    released: list[QueueMessage]

    def single(self) -> Settlement:
        """As the settlement of one."""
        return Settlement(self.next[0] if self.next else None, self.released)


@dataclass(frozen=True)
class DeadLetter:
    """A split that was given up, with the reason."""

    topic: str
    group: str
    id: int
    message: QueueMessage
    attempt: int
    error: str
    traceback: str
    at: float


@dataclass(frozen=True)
class BatchRecord:
    """What a batch write is made of; a resumed one has to match it."""

    fingerprint: str
    partitions: int
    target_split_bytes: int


@dataclass(frozen=True)
class WrittenPartition:
    """A partition whose splits are stored and not visible yet."""

    partition: int
    writer: str
    messages: Sequence[QueueMessage]


@dataclass(frozen=True)
class Backlog:
    """Payload bytes of the whole job: announced and not settled by every group, and stored but not announced yet.

    Dead letters are in neither, nor is a topic that nobody consumes: waiting would make neither of them less.
    """

    visible_bytes: int = 0
    hidden_bytes: int = 0


@dataclass(frozen=True)
class TopicProgress:
    """How much a stage has produced; ``ended`` means that this is all."""

    produced: int = 0
    produced_bytes: int = 0
    produced_records: int = 0
    ended: bool = False


@dataclass(frozen=True)
class GroupProgress:
    """How far a group is on a topic."""

    taken: int = 0
    settled: int = 0
    settled_bytes: int = 0
    settled_records: int = 0
    dead: int = 0
    dead_bytes: int = 0

    @property
    def in_flight(self) -> int:
        """Delivered and not settled, waiting for a retry included."""
        return self.taken - self.settled - self.dead


class Consumer(ABC):
    """One worker's view of a topic. Not for use by several threads, except ``extend`` and ``close``."""

    @abstractmethod
    def take_many(self, limit: int) -> list[Delivery]:
        """Up to ``limit`` messages; fewer, or none, when there are no more now.

        A message that was in the hands of a worker that died comes alone, so that it is known who kills workers.
        """

    @abstractmethod
    def settle_many(
        self, results: Sequence[Settled], *, to: str = "", done: Sequence[str] = (), take: int = 0
    ) -> Settlements:
        """Commit deliveries with what they produced (``to`` a topic), and take up to ``take`` more: one transaction.

        Their ``prepared`` files are recorded and the ``done`` ones (by split) forgotten in it. Raises LeaseLostError,
        with nothing done, when one of the deliveries was given to another worker.
        """

    def take(self) -> Delivery | None:
        """The next message, or None when there is none now."""
        deliveries = self.take_many(1)
        return deliveries[0] if deliveries else None

    def settle(
        self,
        delivery: Delivery,
        produced: Sequence[QueueMessage] = (),
        *,
        to: str = "",
        prepared: Sequence[Prepared] = (),
        done: Sequence[str] = (),
        take: bool = True,
    ) -> Settlement:
        """``settle_many`` of one."""
        return self.settle_many([Settled(delivery, produced, prepared)], to=to, done=done, take=int(take)).single()

    @abstractmethod
    def fail(
        self, delivery: Delivery, error: str, traceback: str, *, delay_s: float = 0.0, take: bool = True
    ) -> Settlement:
        """Give a delivery back, to come again after ``delay_s``, or bury it when it has been retried often enough."""

    @abstractmethod
    def require(self, delivery: Delivery) -> None:
        """Raise LeaseLostError when the delivery was given to another worker, or this one was fenced."""

    @abstractmethod
    def extend(self) -> None:
        """Renew the leases of everything that this worker holds."""

    @abstractmethod
    def wait(self, timeout_s: float, stop: threading.Event) -> None:
        """Return when there may be something to take, when ``stop`` is set, or after ``timeout_s``."""

    @abstractmethod
    def close(self) -> None:
        """Give up the connection; what is held comes again when its lease ends, or before."""


class Queue(ABC):
    """The topics of one job. Not for use by several threads."""

    @abstractmethod
    def close(self) -> None:
        """Give up the connection."""

    # --- the job ---------------------------------------------------------------------------------------------------

    @abstractmethod
    def remember(self, name: str, value: str) -> str:
        """Record a fact about the job once; returns the value that was there already, or ``value``."""

    @abstractmethod
    def subscribe(self, topic: str, group: str) -> None:
        """Make ``group`` a consumer of ``topic``, from its first message; a known one is left as it is."""

    @abstractmethod
    def end(self, topic: str) -> None:
        """Record that a topic has all its messages."""

    # --- writers: who may make something visible -------------------------------------------------------------------

    @abstractmethod
    def register_writer(self, writer: str, stage: str, lease_s: float) -> None:
        """Announce a writer before it writes its first payload."""

    @abstractmethod
    def extend_writer(self, writer: str, lease_s: float, hidden_bytes: int | None = None) -> None:
        """Renew a writer's lease, and tell how much it has stored so far; raises LeaseLostError when it was fenced."""

    @abstractmethod
    def withdraw_writer(self, writer: str, *, at_fault: bool = True) -> bool:
        """Forget a writer that has ended, or whose process is known to be gone. Returns whether it was still known.

        Only then is it sure that a source's writer has published nothing: to publish ends a writer, as a fence does.
        What it still holds comes again at once; it counts as failed if the writer was ``at_fault``, not stopped.
        """

    @abstractmethod
    def fence(self, stages: Iterable[str]) -> None:
        """Forget all writers of these stages and those whose lease has ended: none can make anything visible now.

        What they held comes again at once and counts as no failure: the run was stopped, not the split at fault.
        """

    @abstractmethod
    def live_writers(self) -> set[str]:
        """The writers that may still make something visible."""

    @abstractmethod
    def unreferenced(self, keys: Iterable[str]) -> set[str]:
        """Those of these payload keys that no message and no dead letter names."""

    # --- sources ---------------------------------------------------------------------------------------------------

    @abstractmethod
    def produce(self, topic: str, messages: Sequence[QueueMessage]) -> None:
        """Append messages, all or none."""

    @abstractmethod
    def start_batch(self, stage: str, batch_id: str, record: BatchRecord) -> BatchRecord:
        """Record what a batch is made of. Returns what holds: an older record, once anything of it is visible."""

    @abstractmethod
    def completed_partitions(self, stage: str, batch_id: str) -> set[int]:
        """The partitions of a batch that are visible."""

    @abstractmethod
    def publish_partition(
        self, stage: str, batch_id: str, partition: int, writer: str, messages: Sequence[QueueMessage]
    ) -> bool:
        """Make a partition's splits visible, and end the writer. False, with nothing done, if another was first.

        Raises LeaseLostError when the writer was fenced.
        """

    @abstractmethod
    def publish_batch(self, stage: str, batch_id: str, partitions: Sequence[WrittenPartition]) -> bool:
        """Make partitions visible, all in one transaction, and end their writers. False, with nothing done, if any is.

        Raises LeaseLostError when a writer was fenced.
        """

    @abstractmethod
    def publish_stream_batch(
        self,
        stage: str,
        stream_id: str,
        query_id: str | None,
        batch: int,
        writers: Sequence[str],
        messages: Sequence[QueueMessage],
    ) -> bool:
        """Make a micro-batch visible, and end its writers. False, with nothing done, for one that is visible already.

        Raises StreamResetError for a gap or a new query under a known stream, LeaseLostError when a writer was fenced.
        """

    # --- consumers -------------------------------------------------------------------------------------------------

    @abstractmethod
    def prepared(self, stage: str, owner: str | None = None) -> list[Prepared]:
        """The output files of a sink (or of one of its workers) whose rename is not known to be done."""

    @abstractmethod
    def mark_done(self, stage: str, split_ids: Sequence[str]) -> None:
        """Record that these files have their final names."""

    # --- looking ---------------------------------------------------------------------------------------------------

    @abstractmethod
    def topic_progress(self, topic: str) -> TopicProgress:
        """Counters of a topic, kept by its transactions."""

    @abstractmethod
    def group_progress(self, topic: str, group: str) -> GroupProgress:
        """Counters of a group, kept by its transactions."""

    @abstractmethod
    def backlog(self) -> Backlog:
        """How many payload bytes there are, from the counters of topics, groups and live writers."""

    @abstractmethod
    def dead_letters(self) -> list[DeadLetter]:
        """All dead letters, oldest first."""

    @abstractmethod
    def replay(self, letters: Sequence[DeadLetter]) -> int:
        """Give dead letters back to the groups that buried them, as if they had never failed; returns how many.

        All or none, and each once: one that is no dead letter any more is left out.
        """

    # --- the end of everything -------------------------------------------------------------------------------------

    @abstractmethod
    def remove(self) -> None:
        """Remove all topics and all that is known of the job, and give up the connection."""


def queue_url(url: str, job: str) -> str:
    """The queue of a job: a cluster that many jobs share is told by the path of its URL whose queue is meant."""
    parsed = parse_url(url)
    if parsed.scheme != "kafka" or parsed.path.strip("/"):
        return absolute_url(url)
    place, *params = re.split(r"(?=[;?])", url, maxsplit=1)
    return f"{place.rstrip('/')}/{job}{''.join(params)}"


def open_queue(url: str) -> Queue:
    """Connect to the queue that a URL names; an embedded one is created."""
    scheme = parse_url(url).scheme
    if scheme == "sqlite":
        from solstice.pipeline._sqlite_queue import SqliteQueue

        return SqliteQueue(url)
    if scheme == "kafka":
        from solstice.pipeline._kafka_queue import KafkaQueue

        return KafkaQueue(url)
    raise _unknown(url)


def open_consumer(url: str, topic: str, group: str, owner: str, *, retries: int, lease_s: float) -> Consumer:
    """Connect as the worker ``owner`` (a registered writer) of a group.

    A message that failed more than ``retries`` times goes to the dead letters.
    """
    scheme = parse_url(url).scheme
    if scheme == "sqlite":
        from solstice.pipeline._sqlite_consumer import SqliteConsumer

        return SqliteConsumer(url, topic, group, owner, retries=retries, lease_s=lease_s)
    if scheme == "kafka":
        from solstice.pipeline._kafka_consumer import KafkaConsumer

        return KafkaConsumer(url, topic, group, owner, retries=retries, lease_s=lease_s)
    raise _unknown(url)


def _unknown(url: str) -> ConfigError:
    return ConfigError(
        f"no queue is known for {url!r}.",
        option="queue",
        value=url,
        remedy="Use sqlite:///a/file or kafka://host:9092.",
    )


# --- what every backend says in the same words -----------------------------------------------------------------------

WORKER_DIED = "the worker died, or did not renew its lease, while it had the split"


def fenced(writer: str) -> LeaseLostError:
    """A writer was fenced: its payloads may be deleted already."""
    return LeaseLostError(
        f"writer {writer} was fenced: its lease had ended, or its job was started again.",
        remedy="Nothing is lost: what it wrote is written again.",
    )


def lease_lost(delivery: Delivery, owner: str) -> LeaseLostError:
    """A delivery is another's by now."""
    return LeaseLostError(
        f"split {delivery.message.split_id!r} is no longer held by {owner}: its lease had ended.",
        remedy="Nothing is lost: the split was given to another worker.",
    )


def check_stream_batch(stage: str, stream_id: str, known: tuple[str, int], offered: tuple[str | None, int]) -> bool:
    """Whether (query, batch) is the next of a stream; False if it is there. Raises StreamResetError for a gap."""
    (known_query, last), (query_id, batch) = known, offered
    # A batch without tasks has nobody who could tell the query; it has no rows to lose either.
    if query_id and known_query and query_id != known_query:
        raise StreamResetError(
            f"stream {stream_id!r} of stage {stage!r} was written by query {known_query} up to batch {last},"
            f" and now query {query_id} writes batch {batch}: the checkpoint was reset.",
            remedy="Restore the checkpoint of that query; or, to read the source anew, give the stream "
            "another streamId and expect what is there already to come twice.",
        )
    if batch > last + 1:
        raise StreamResetError(
            f"stream {stream_id!r} of stage {stage!r} has batches up to {last}, and now comes batch {batch}:"
            " the queue or the checkpoint was replaced, and rows in between would be lost.",
            remedy="Restore the queue that belongs to this checkpoint; or start with a new checkpoint "
            "and another streamId.",
        )
    return batch == last + 1
