"""The queue on Kafka (``kafka://``): many machines. Everything that a job must remember is in the cluster."""

import functools
import json
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from solstice.errors import QueueError
from solstice.pipeline._kafka_cluster import CALL_S, RECOVERY_S, KafkaCluster
from solstice.pipeline._kafka_control import Appender, Decider, Record, flush, state_record, write
from solstice.pipeline._kafka_log import ControlLog, LogReader, ProgressLog, topic_progress
from solstice.pipeline._kafka_members import evict, members
from solstice.pipeline._kafka_removal import delete_groups, delete_topics
from solstice.pipeline._kafka_window import again_header
from solstice.pipeline._keys import KeysOnDisk
from solstice.pipeline._message import QueueMessage, totals
from solstice.pipeline._queue import (
    Backlog,
    BatchRecord,
    DeadLetter,
    GroupProgress,
    Prepared,
    Queue,
    TopicProgress,
    WrittenPartition,
    check_stream_batch,
    fenced,
)


class KafkaQueue(Queue):
    """All but the taking and settling, which is ``KafkaConsumer``."""

    def __init__(self, url: str, now_s: Callable[[], float] = time.time) -> None:
        self._cluster = KafkaCluster(url)
        self._now_s = now_s
        self._control = ControlLog(self._cluster)
        self._progress = ProgressLog(self._cluster)
        self._name = uuid.uuid4().hex[:16]
        self._decider = Decider(self._cluster, self._control, self._name)
        self._appender = Appender(self._cluster)
        self._bulk: Any = None
        self._produced: dict[str, list[int]] = {}

    def close(self) -> None:
        """Give up the connections."""
        self._control.close()
        self._progress.close()
        self._appender.close()
        self._bulk = None

    # --- the job ---------------------------------------------------------------------------------------------------

    def remember(self, name: str, value: str) -> str:
        """Record a fact once; returns the one that holds."""
        record = state_record(self._cluster.control, ("fact", name), value)
        self._decider.decide(lambda control: None if (name,) in control.of("fact") else [record])
        self._control.refresh()
        return str(self._control.of("fact")[(name,)])

    def subscribe(self, topic: str, group: str) -> None:
        """Make a group a consumer of a topic, from its first message."""
        cluster = self._cluster
        self._refresh()
        if (topic, group) not in self._control.of("group"):
            self._check_nothing_settled(topic, group)
            # Before there are topics: what is in this log is removed with the job, and nothing else.
            self._appender.append(state_record(cluster.control, ("group", topic, group), True))
        cluster.ensure(cluster.data(topic), cluster.retry(topic, group))

    def _check_nothing_settled(self, topic: str, group: str) -> None:
        for known in self._control.groups_of(topic):
            progress = self._progress.group(topic, known)
            if progress.settled + progress.dead:
                raise QueueError(
                    f"{group!r} cannot start to consume {topic!r}: others have consumed a part of it, which is gone.",
                    remedy="Give the job another state directory.",
                )

    def end(self, topic: str) -> None:
        """Record that a topic has all its messages."""
        self._appender.append(state_record(self._cluster.control, ("end", topic), True))

    # --- writers ---------------------------------------------------------------------------------------------------

    def register_writer(self, writer: str, stage: str, lease_s: float) -> None:
        """Announce a writer."""
        value = {"stage": stage, "until": self._now_s() + lease_s}
        self._appender.append(state_record(self._cluster.control, ("writer", writer), value))

    def extend_writer(self, writer: str, lease_s: float, hidden_bytes: int | None = None) -> None:
        """Renew a writer's lease. Its record cannot bring back a writer that was fenced, whichever comes first."""
        topic = self._cluster.control
        records = [state_record(topic, ("lease", writer), self._now_s() + lease_s)]
        if hidden_bytes is not None:
            records.append(state_record(topic, ("hidden", writer), hidden_bytes))
        self._appender.append(*records)
        self._control.refresh()
        if self._control.stage_of(writer) is None:
            raise fenced(writer)

    def withdraw_writer(self, writer: str, *, at_fault: bool = True) -> bool:
        """Forget a writer; what it holds comes again. Returns whether it was still known."""
        workers: list[str] = []

        def then(control: ControlLog) -> list[Record] | None:
            if control.stage_of(writer) is None:
                return None
            workers.extend(self._workers(control, [writer]))
            return self._forget(control, writer, at_fault)

        known = self._decider.decide(then)
        self._give_back(workers)
        return known

    def fence(self, stages: Iterable[str]) -> None:
        """Forget all writers of these stages, and those whose lease has ended."""
        stages = set(stages)
        workers: list[str] = []

        def then(control: ControlLog) -> list[Record]:
            now_s = self._now_s()
            gone = [
                writer
                for writer, (stage, until_s) in control.live_writers().items()
                if stage in stages or until_s <= now_s
            ]
            workers[:] = self._workers(control, gone)
            return [record for writer in gone for record in self._forget(control, writer, False)]

        self._decider.decide(then)
        # Also those that an earlier fence has forgotten and did not live to evict.
        self._give_back(workers, stages)

    def live_writers(self) -> set[str]:
        """The writers that were not fenced."""
        self._control.refresh()
        return set(self._control.live_writers())

    def _workers(self, control: ControlLog, writers: Iterable[str]) -> list[str]:
        consuming = {group for _, group in control.of("group")}
        return [writer for writer in writers if control.stage_of(writer) in consuming]

    def _forget(self, control: ControlLog, writer: str, at_fault: bool) -> list[Record]:
        """A worker leaves behind whether it was at fault, for whoever gets what it held; other writers nothing."""
        value = {"at_fault": at_fault} if self._workers(control, [writer]) else None
        topic = self._cluster.control
        gone = [state_record(topic, (kind, writer), None) for kind in ("lease", "hidden")]
        return [state_record(topic, ("writer", writer), value), *gone]

    def _give_back(self, workers: Sequence[str], stages: Iterable[str] = ()) -> None:
        """End the transactions of these workers for good, and make their groups give away what they had."""
        stages = set(stages)
        if not workers and not stages:
            return
        self._control.refresh()
        live = self._control.live_writers()
        for topic, group in list(self._control.of("group")):
            if not workers and group not in stages:
                continue
            gone = [
                member
                for member in members(self._cluster, topic, group)
                if member in workers or (group in stages and member not in live)
            ]
            for worker in {*gone, *(workers if stages else ())}:
                for name in self._cluster.worker_ids(topic, worker):
                    self._cluster.retrying(functools.partial(self._cluster.producer, name))
            evict(self._cluster, topic, group, gone)

    # --- payloads --------------------------------------------------------------------------------------------------

    def unreferenced(self, keys: Iterable[str]) -> set[str]:
        """Those keys that no message and no dead letter names: one pass over what is not settled."""
        cluster = self._cluster
        with KeysOnDisk(keys) as left:
            if not left:
                return set()
            self._control.refresh()
            cluster.ensure(cluster.dead_letters)
            starts = {(cluster.dead_letters, 0): 0}
            for topic in {topic for topic, _ in self._control.of("group")} | self._topics():
                starts |= self._unsettled(topic)
            ends = cluster.ends(_by_topic(starts))
            reader = LogReader(cluster, starts)
            try:
                left.discard(
                    key.decode()
                    for message in reader.read_to(ends)
                    if (key := message.key()) is not None and not self._was_replayed(message)
                )
            finally:
                reader.close()
            return left.all()

    def _topics(self) -> set[str]:
        self._progress.refresh()
        produced = {topic for value in self._all_counters() for topic in value.get("produced", {})}
        return produced | {key[0] for kind in ("completion", "stream") for key in self._control.of(kind)}

    def _all_counters(self) -> list[Any]:
        return [*self._progress.of("worker").values(), *self._progress.of("producer").values()]

    def _unsettled(self, topic: str) -> dict[tuple[str, int], int]:
        """Where what is not settled begins, in a topic and in the retries of its groups. What is before is removed."""
        cluster = self._cluster
        groups = self._control.groups_of(topic)
        data = {(cluster.data(topic), partition): 0 for partition in cluster.partitions_of(cluster.data(topic))}
        committed = [self._committed(cluster.group(topic, group)) for group in groups]
        for place in data:
            if committed:
                data[place] = min(offsets.get(place, 0) for offsets in committed)
        retries = {
            (cluster.retry(topic, group), partition): offsets.get((cluster.retry(topic, group), partition), 0)
            for group, offsets in zip(groups, committed, strict=True)
            for partition in cluster.partitions_of(cluster.retry(topic, group))
        }
        self._trim(data | retries)
        return data | retries

    def _committed(self, group: str) -> dict[tuple[str, int], int]:
        kafka = self._cluster.kafka

        def ask() -> dict[tuple[str, int], int]:
            request = [kafka.ConsumerGroupTopicPartitions(group)]
            admin = self._cluster.admin
            (answer,) = admin.list_consumer_group_offsets(
                request, require_stable=True, request_timeout=RECOVERY_S
            ).values()
            found = self._cluster.answer_of_coordinator(answer).topic_partitions
            return {(place.topic, place.partition): place.offset for place in found if place.offset >= 0}

        return self._cluster.retrying(ask)

    def _trim(self, starts: dict[tuple[str, int], int]) -> None:
        """Let Kafka delete what everybody has settled; a failure costs only space."""
        kafka = self._cluster.kafka
        places = [kafka.TopicPartition(*place, offset) for place, offset in starts.items() if offset > 0]
        if places:
            self._cluster.admin.delete_records(places)

    # --- sources ---------------------------------------------------------------------------------------------------

    def produce(self, topic: str, messages: Sequence[QueueMessage]) -> None:
        """Append messages, all or none."""
        cluster = self._cluster
        cluster.ensure(cluster.progress, cluster.data(topic))
        counts = self._produced.get(topic, [0, 0, 0])
        produced = self._produced | {topic: [a + b for a, b in zip(counts, totals(messages), strict=True)]}
        records = self._data(topic, messages)
        key = ("producer", self._name)
        records.append(state_record(cluster.progress, key, {"produced": produced}))
        in_doubt = False

        def attempt() -> None:
            self._bulk = self._bulk or cluster.producer(cluster.transactional_id("produce", self._name), linger_ms=2)
            if in_doubt:  # a new producer of the name has ended the transaction, and the counter tells which way
                self._progress.refresh()
                if self._progress.of("producer").get(key[1:], {}).get("produced") == produced:
                    return
            self._bulk.begin_transaction()
            write(self._bulk, records)
            flush(cluster, self._bulk)
            self._bulk.commit_transaction(CALL_S)

        def failed() -> None:
            nonlocal in_doubt
            in_doubt = True
            if self._bulk is not None:
                self._bulk.purge()
                self._bulk = None

        cluster.retrying(attempt, failed)
        self._produced = produced

    def start_batch(self, stage: str, batch_id: str, record: BatchRecord) -> BatchRecord:
        """Record what a batch is made of; an older record stands once anything of it is visible."""
        value = [record.fingerprint, record.partitions, record.target_split_bytes]
        written = state_record(self._cluster.control, ("batch", stage, batch_id), value)
        self._decider.decide(lambda control: None if _completed(control, stage, batch_id) else [written])
        self._control.refresh()
        return BatchRecord(*self._control.of("batch")[(stage, batch_id)])

    def completed_partitions(self, stage: str, batch_id: str) -> set[int]:
        """The partitions of a batch that are visible."""
        self._control.refresh()
        return _completed(self._control, stage, batch_id)

    def publish_partition(
        self, stage: str, batch_id: str, partition: int, writer: str, messages: Sequence[QueueMessage]
    ) -> bool:
        """Make a partition's splits visible if no other attempt was first."""
        return self.publish_batch(stage, batch_id, [WrittenPartition(partition, writer, messages)])

    def publish_batch(self, stage: str, batch_id: str, partitions: Sequence[WrittenPartition]) -> bool:
        """Make partitions visible together, if none of them is."""
        self._cluster.ensure(self._cluster.data(stage))
        records = [
            state_record(
                self._cluster.control,
                ("completion", stage, batch_id, written.partition),
                {"counts": totals(written.messages), "writer": written.writer},
            )
            for written in partitions
        ]
        records += self._data(stage, [message for written in partitions for message in written.messages])
        ours = False

        def then(control: ControlLog) -> list[Record] | None:
            nonlocal ours
            completions = control.of("completion")
            known = [completions.get((stage, batch_id, written.partition)) for written in partitions]
            if any(known):
                winners = [value and value["writer"] for value in known]
                ours = winners == [written.writer for written in partitions]
                return None
            for written in partitions:
                if control.stage_of(written.writer) is None:
                    raise fenced(written.writer)
            return records + [r for written in partitions for r in self._forget(control, written.writer, False)]

        return self._decider.decide(then) or ours

    def publish_stream_batch(
        self,
        stage: str,
        stream_id: str,
        query_id: str | None,
        batch: int,
        writers: Sequence[str],
        messages: Sequence[QueueMessage],
    ) -> bool:
        """Make a micro-batch visible if it is the next one of its query."""
        key = (stage, stream_id)
        self._cluster.ensure(self._cluster.data(stage))
        records = self._data(stage, messages)
        nonce = uuid.uuid4().hex
        ours = False

        def then(control: ControlLog) -> list[Record] | None:
            nonlocal ours
            known = control.of("stream").get(key)
            known_query, last = (known["query"], known["batch"]) if known else ("", -1)
            if known and known["by"] == nonce:
                ours = True
                return None
            if not check_stream_batch(stage, stream_id, (known_query, last), (query_id, batch)):
                return None
            forgotten = []
            for writer in writers:
                if control.stage_of(writer) is None:
                    raise fenced(writer)
                forgotten += self._forget(control, writer, False)
            before = known["counts"] if known else [0, 0, 0]
            value = {
                "query": known_query or query_id or "",
                "batch": batch,
                "counts": [a + b for a, b in zip(before, totals(messages), strict=True)],
                "by": nonce,
            }
            return [*records, *forgotten, state_record(self._cluster.control, ("stream", *key), value)]

        return self._decider.decide(then) or ours

    # --- consumers -------------------------------------------------------------------------------------------------

    def prepared(self, stage: str, owner: str | None = None) -> list[Prepared]:
        """The output files whose rename is not known to be done."""
        self._progress.refresh()
        return [
            Prepared(split_id, temporary, final)
            for (of_stage, split_id), (of_owner, temporary, final) in self._progress.of("prepared").items()
            if of_stage == stage and owner in (None, of_owner)
        ]

    def mark_done(self, stage: str, split_ids: Sequence[str]) -> None:
        """Record that these files have their final names."""
        topic = self._cluster.progress
        self._appender.append(*(state_record(topic, ("prepared", stage, split_id), None) for split_id in split_ids))

    # --- looking ---------------------------------------------------------------------------------------------------

    def topic_progress(self, topic: str) -> TopicProgress:
        """Counters of a topic."""
        self._refresh()
        return topic_progress(topic, self._control, self._progress)

    def group_progress(self, topic: str, group: str) -> GroupProgress:
        """Counters of a group."""
        self._progress.refresh()
        return self._progress.group(topic, group)

    def backlog(self) -> Backlog:
        """The sums of a few counters: of each topic that is consumed, and of each writer that is alive."""
        self._refresh()
        visible = 0
        for topic in {topic for topic, _ in self._control.of("group")}:
            groups = [self._progress.group(topic, group) for group in self._control.groups_of(topic)]
            done = min(group.settled_bytes + group.dead_bytes for group in groups)
            visible += topic_progress(topic, self._control, self._progress).produced_bytes - done
        hidden = self._control.of("hidden")
        return Backlog(visible, sum(hidden.get((writer,), 0) for writer in self._control.live_writers()))

    def dead_letters(self) -> list[DeadLetter]:
        """All dead letters, oldest first."""
        cluster = self._cluster
        cluster.ensure(cluster.dead_letters)
        reader = LogReader(cluster, {(cluster.dead_letters, 0): 0})
        try:
            letters = list(reader.read_to(cluster.ends({cluster.dead_letters: [0]})))
        finally:
            reader.close()
        self._control.refresh()
        return [_dead_letter(json.loads(letter.value())) for letter in letters if not self._was_replayed(letter)]

    def _was_replayed(self, message: Any) -> bool:
        """A dead letter stays in its log; that it was given back is in the control log."""
        if message.topic() != self._cluster.dead_letters:
            return False
        return _letter_key(_dead_letter(json.loads(message.value()))) in self._control.of("replayed")

    def replay(self, letters: Sequence[DeadLetter]) -> int:
        """Give dead letters back to their groups: they lie in the retry topic again, and are no longer counted."""
        cluster = self._cluster
        known = {_letter_key(letter) for letter in self.dead_letters()}
        letters = [letter for letter in letters if _letter_key(letter) in known]
        for topic, group in {(letter.topic, letter.group) for letter in letters}:
            cluster.ensure(cluster.progress, cluster.retry(topic, group))
        nonce, replayed = uuid.uuid4().hex[:16], 0

        def then(control: ControlLog) -> list[Record] | None:
            nonlocal replayed
            done = control.of("replayed")
            if any(done.get(_letter_key(letter)) == nonce for letter in letters):
                return None
            left = [letter for letter in letters if _letter_key(letter) not in done]
            replayed = len(left)
            return [record for index, letter in enumerate(left) for record in self._given_back(letter, nonce, index)]

        self._decider.decide(then)
        return replayed

    def _given_back(self, letter: DeadLetter, nonce: str, index: int) -> list[Record]:
        cluster, message = self._cluster, letter.message
        retry = cluster.retry(letter.topic, letter.group)
        header = again_header(letter.id, letter.attempt, 0, 0.0)
        key, body = message.stored_key.encode() or None, message.to_json_bytes()
        counters = {
            "consumes": [letter.topic, letter.group],
            "counts": [0, 0, 0, 0, -1, -message.payload_bytes],
            "sequence": 0,
        }
        return [
            Record(retry, cluster.place(retry), key, body, [header]),
            state_record(cluster.control, ("replayed", *_letter_key(letter)), nonce),
            state_record(cluster.progress, ("worker", f"replay-{nonce}-{index}", letter.topic), counters),
        ]

    def remove(self) -> None:
        """Remove the topics and the groups of the job: those that its logs name, and the log that names them last."""
        cluster = self._cluster
        self._refresh()
        groups = list(self._control.of("group"))
        topics = {cluster.data(topic) for topic in {topic for topic, _ in groups} | self._topics()}
        topics |= {cluster.retry(topic, group) for topic, group in groups}
        self.close()
        delete_topics(cluster, {*topics, cluster.dead_letters})
        delete_groups(cluster, [cluster.group(topic, group) for topic, group in groups])
        delete_topics(cluster, {cluster.progress})
        delete_topics(cluster, {cluster.control})

    # --- writing ---------------------------------------------------------------------------------------------------

    def _refresh(self) -> None:
        """Both logs, with one question."""
        cluster = self._cluster
        cluster.ensure(cluster.control, cluster.progress)
        ends = cluster.ends({cluster.control: [0], cluster.progress: [0]})
        self._progress.read_to(ends[(cluster.progress, 0)])
        self._control.read_to(ends[(cluster.control, 0)])

    def _data(self, topic: str, messages: Sequence[QueueMessage]) -> list[Record]:
        name = self._cluster.data(topic)
        return [data_record(name, self._cluster.place(name), message) for message in messages]


def data_record(name: str, partition: int, message: QueueMessage) -> Record:
    """A message as it lies in a topic. Its key tells which payload it needs without a look inside."""
    return Record(name, partition, message.stored_key.encode() or None, message.to_json_bytes())


def _completed(control: ControlLog, stage: str, batch_id: str) -> set[int]:
    return {partition for of, batch, partition in control.of("completion") if (of, batch) == (stage, batch_id)}


def _by_topic(places: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic, partition in places:
        found.setdefault(topic, []).append(partition)
    return found


def _letter_key(letter: DeadLetter) -> tuple[Any, ...]:
    """What tells one dead letter from all others: a split may be buried, given back and buried again."""
    return letter.topic, letter.group, letter.id, letter.at


def _dead_letter(value: dict[str, Any]) -> DeadLetter:
    return DeadLetter(**value | {"message": QueueMessage.from_json(json.dumps(value["message"]))})
