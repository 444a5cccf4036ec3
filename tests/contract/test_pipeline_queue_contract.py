"""What every queue backend promises; a new backend adds its URL to the fixture."""

import contextlib
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator

import pytest

from solstice.errors import LeaseLostError, QueueError, StreamResetError
from solstice.pipeline._message import QueueMessage
from solstice.pipeline._queue import (
    Backlog,
    BatchRecord,
    Consumer,
    Delivery,
    Prepared,
    Queue,
    Settled,
    WrittenPartition,
    open_consumer,
    open_queue,
)

TOPIC, GROUP, OUT = "clicks", "score", "score"
DEADLINE_S = 20.0


@pytest.fixture(params=["sqlite", pytest.param("kafka", marks=pytest.mark.kafka)])
def url(request, tmp_path):
    if request.param == "kafka":
        return f"{request.getfixturevalue('kafka_broker').url}/job-{uuid.uuid4().hex[:12]}?partitions=3"
    return f"sqlite://{tmp_path}/queue.db"


@pytest.fixture
def queue(url) -> Iterator[Queue]:
    queue = open_queue(url)
    queue.subscribe(TOPIC, GROUP)
    yield queue
    queue.close()


@pytest.fixture
def connect(url, queue) -> Iterator[Callable[..., Consumer]]:
    consumers = []

    def connect(owner: str, *, retries: int = 3, lease_s: float = 60.0, group: str = GROUP) -> Consumer:
        queue.register_writer(owner, group, 3600.0)
        consumers.append(open_consumer(url, TOPIC, group, owner, retries=retries, lease_s=lease_s))
        return consumers[-1]

    yield connect
    for consumer in consumers:
        consumer.close()


def messages(count: int, stage: str = TOPIC, start: int = 0) -> list[QueueMessage]:
    return [
        QueueMessage(
            f"{stage}_{n}",
            f"{stage}-{n}",
            f"{stage}/w/{n}",
            {"source_stage": stage, "num_records": 10, "bytes": 100},
        )
        for n in range(start, start + count)
    ]


def eventually(take: Callable[[], object]) -> object:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        if (found := take()) is not None:
            return found
        time.sleep(0.02)
    raise AssertionError("nothing came within the deadline")


def wait_until(holds: Callable[[], object]) -> None:
    eventually(lambda: True if holds() else None)


def holding(consumer: Consumer, count: int) -> list[Delivery]:
    taken: list[Delivery] = []
    while len(taken) < count:
        missing = count - len(taken)
        taken += eventually(lambda missing=missing: consumer.take_many(missing) or None)
    return taken


def drained(consumer: Consumer, count: int) -> list[str]:
    """What comes, settled: ``count`` splits, and no more."""
    found = []
    while len(found) < count:
        delivery = eventually(consumer.take)
        while delivery is not None:
            found.append(delivery.message.split_id)
            delivery = consumer.settle(delivery).next
    assert consumer.take() is None
    return found


WORKER = """
import sys, threading
from solstice.pipeline._message import QueueMessage
from solstice.pipeline._queue import open_consumer, open_queue
url, owner = sys.argv[1:]
queue = open_queue(url)
queue.register_writer(owner, "score", 60)
consumer = open_consumer(url, "clicks", "score", owner, retries=3, lease_s=60)
count = 0
while queue.group_progress("clicks", "score").settled < 400:
    consumer.wait(0.1, threading.Event())
    delivery = consumer.take()
    while delivery is not None:
        split = delivery.message.split_id
        out = QueueMessage(f"{owner}_{count}", split, f"score/{owner}/{count}", {"num_records": 10, "bytes": 100})
        delivery = consumer.settle(delivery, [out], to="score").next
        count += 1
consumer.close()
print(count)
"""

# Takes a split, and settles it when it is told to, or fails to.
HOLDER = """
import sys, time
from solstice.errors import LeaseLostError
from solstice.pipeline._message import QueueMessage
from solstice.pipeline._queue import Prepared, open_consumer, open_queue
queue = open_queue(sys.argv[1])
queue.register_writer("holder", "score", 60)
consumer = open_consumer(sys.argv[1], "clicks", "score", "holder", retries=3, lease_s=float(sys.argv[2]))
while True:
    before = time.time()
    if (delivery := consumer.take()) is not None:
        break
print(delivery.message.split_id, before, flush=True)
sys.stdin.readline()
out = QueueMessage("m", "s", "score/holder/0", {"num_records": 10, "bytes": 100})
for settle in (
    lambda: consumer.settle(delivery, [out], to="score", prepared=[Prepared("s", "/tmp/a", "/tmp/b")]),
    lambda: consumer.fail(delivery, "error", "trace"),
):
    try:
        settle()
        print("settled", flush=True)
    except LeaseLostError:
        print("lost", flush=True)
"""


@contextlib.contextmanager
def holder(url: str, lease_s: float) -> Iterator[tuple[subprocess.Popen, float]]:
    """A process that holds the first split, and a time before which it did not have it."""
    command = [sys.executable, "-c", HOLDER, url, str(lease_s)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            split, before = process.stdout.readline().split()
            assert split == f"{TOPIC}-0"
            yield process, float(before)
        finally:
            process.kill()


def test_many_processes_settle_every_message_exactly_once(url, queue, connect):
    queue.produce(TOPIC, messages(400))
    workers = [
        subprocess.Popen([sys.executable, "-c", WORKER, url, f"worker{n}"], stdout=subprocess.PIPE, text=True)
        for n in range(4)
    ]
    counts = [int(worker.communicate(timeout=60)[0]) for worker in workers]
    assert sum(counts) == 400
    progress = queue.group_progress(TOPIC, GROUP)
    assert (progress.settled, progress.in_flight, progress.dead) == (400, 0, 0)
    queue.subscribe(OUT, "next")
    queue.register_writer("checker", "next", 60)
    checker = open_consumer(url, OUT, "next", "checker", retries=0, lease_s=60)
    assert sorted(drained(checker, 400)) == sorted(message.split_id for message in messages(400))
    checker.close()


def test_a_killed_workers_split_comes_again_when_its_lease_ends(url, queue, connect):
    queue.produce(TOPIC, messages(1))
    lease_s = 2.0
    with holder(url, lease_s) as (_, before):
        pass
    other = connect("other")
    again = eventually(other.take)
    assert time.time() - before >= lease_s - 1  # counted from a sign of life, which may be a moment older
    assert (again.attempt, again.failures) == (2, 1)
    other.settle(again)
    assert queue.group_progress(TOPIC, GROUP).settled == 1


def test_a_worker_that_stood_still_for_longer_than_its_lease_commits_nothing(url, queue, connect):
    queue.produce(TOPIC, messages(1))
    with holder(url, 1.5) as (slow, _):
        slow.send_signal(signal.SIGSTOP)
        other = connect("other")
        again = eventually(other.take)
        slow.send_signal(signal.SIGCONT)
        assert slow.communicate("go\n", timeout=DEADLINE_S)[0].split() == ["lost", "lost"]
    assert queue.topic_progress(OUT).produced == 0
    assert queue.prepared(GROUP) == []
    other.settle(again, messages(1, OUT), to=OUT)
    assert queue.topic_progress(OUT).produced == 1
    assert queue.group_progress(TOPIC, GROUP).settled == 1


def test_a_renewed_lease_is_not_given_away(queue, connect):
    queue.produce(TOPIC, messages(1))
    lease_s = 3.0
    worker, other = connect("worker", lease_s=lease_s), connect("other")
    delivery = eventually(worker.take)
    deadline = time.monotonic() + 1.5 * lease_s
    while time.monotonic() < deadline:
        worker.extend()
        assert other.take() is None
        time.sleep(0.1)
    worker.settle(delivery)


def test_several_deliveries_are_settled_in_one_transaction_and_in_any_order(queue, connect):
    queue.produce(TOPIC, messages(20))
    worker = connect("worker")
    taken = holding(worker, 6)
    later = worker.settle_many([Settled(taken[n], messages(1, OUT, start=n)) for n in (5, 1, 3)], to=OUT, take=2)
    later.next.extend(holding(worker, 2 - len(later.next)))
    assert sorted(message.split_id for message in later.released) == sorted(
        taken[n].message.split_id for n in (5, 1, 3)
    )
    progress = queue.group_progress(TOPIC, GROUP)
    assert (progress.taken, progress.settled, progress.in_flight) == (8, 3, 5)
    assert queue.topic_progress(OUT).produced == 3
    with pytest.raises(LeaseLostError):
        worker.settle_many([Settled(taken[0]), Settled(taken[1])])  # the second is settled already: all or none
    worker.settle_many([Settled(taken[n]) for n in (4, 2, 0)] + [Settled(delivery) for delivery in later.next])
    settled = {delivery.message.split_id for delivery in [*taken, *later.next]}
    assert settled | set(drained(worker, 20 - len(settled))) == {message.split_id for message in messages(20)}
    assert queue.group_progress(TOPIC, GROUP).settled == 20


def test_what_a_dead_worker_held_and_had_not_settled_comes_again_alone_and_without_blame(queue, connect):
    queue.produce(TOPIC, messages(6))
    dead = connect("dead", retries=0)
    taken = holding(dead, 4)
    dead.settle_many([Settled(taken[1])])
    queue.withdraw_writer("dead")
    other = connect("other", retries=0)
    came = []
    while len(came) < 5:
        together = eventually(lambda: other.take_many(10) or None)
        assert len(together) == 1 or all(delivery.attempt == 1 for delivery in together)
        came += together
        other.settle_many([Settled(delivery) for delivery in together])
    assert {(d.message.split_id, d.failures) for d in came if d.attempt == 2} == {
        (taken[n].message.split_id, 0) for n in (0, 2, 3)
    }
    assert {d.message.split_id for d in came} == {m.split_id for m in messages(6)} - {taken[1].message.split_id}
    assert queue.dead_letters() == []


def test_an_earlier_delivery_of_a_split_that_the_same_worker_has_again_settles_nothing(queue, connect):
    queue.produce(TOPIC, messages(1))
    worker = connect("worker")
    earlier = eventually(worker.take)
    worker.fail(earlier, "e", "t", take=False)
    again = eventually(worker.take)
    assert (again.id, again.attempt) == (earlier.id, 2)
    with pytest.raises(LeaseLostError):
        worker.settle(earlier, messages(1, OUT), to=OUT)
    assert queue.topic_progress(OUT).produced == 0
    worker.settle(again)
    assert queue.group_progress(TOPIC, GROUP).settled == 1


def test_a_transaction_is_all_or_nothing(queue, connect):
    queue.produce(TOPIC, messages(2))
    worker = connect("worker")
    delivery = eventually(worker.take)
    good, bad = messages(1, OUT)[0], QueueMessage("m", "s", "k", {"num_records": 1, "bytes": 1, "x": object()})
    before = (queue.topic_progress(OUT), queue.group_progress(TOPIC, GROUP))
    with pytest.raises(TypeError):
        worker.settle(delivery, [good, bad], to=OUT, prepared=[Prepared("s", "/tmp/a", "/tmp/b")])
    assert (queue.topic_progress(OUT), queue.group_progress(TOPIC, GROUP)) == before
    assert queue.prepared(GROUP) == []
    settlement = worker.settle(delivery, [good], to=OUT, prepared=[Prepared("s", "/tmp/a", "/tmp/b")])
    following = settlement.next or eventually(worker.take)
    assert {delivery.message.split_id, following.message.split_id} == {f"{TOPIC}-0", f"{TOPIC}-1"}
    assert queue.topic_progress(OUT).produced == 1
    assert queue.prepared(GROUP) == [Prepared("s", "/tmp/a", "/tmp/b")]
    worker.settle(following, done=["s"])
    assert queue.prepared(GROUP) == []


def test_a_failed_split_is_retried_and_then_buried_with_its_traceback(queue, connect):
    queue.produce(TOPIC, messages(2))
    worker = connect("worker", retries=2)
    poisoned = eventually(worker.take)
    other = worker.fail(poisoned, "ValueError: bad", "Traceback 1", delay_s=1.0).next or eventually(worker.take)
    assert other.message.split_id != poisoned.message.split_id
    worker.settle(other, take=False)
    for attempt in (2, 3):
        again = eventually(worker.take)
        assert (again.message, again.attempt, again.failures) == (poisoned.message, attempt, attempt - 1)
        worker.fail(again, "ValueError: bad", f"Traceback {attempt}", take=False)
    assert worker.take() is None
    (letter,) = queue.dead_letters()
    assert (letter.message, letter.group, letter.attempt) == (poisoned.message, GROUP, 3)
    assert (letter.error, letter.traceback) == ("ValueError: bad", "Traceback 3")
    progress = queue.group_progress(TOPIC, GROUP)
    assert (progress.settled, progress.dead, progress.in_flight) == (1, 1, 0)
    assert queue.unreferenced([poisoned.message.payload_key]) == set()


def test_an_earlier_delivery_of_a_split_settles_nothing_though_the_same_worker_has_it_again(queue, connect):
    queue.produce(TOPIC, messages(1))
    worker = connect("worker")
    before = eventually(worker.take)
    worker.fail(before, "e", "t", take=False)
    again = eventually(worker.take)
    assert (again.id, again.attempt) == (before.id, before.attempt + 1)
    for late in (worker.settle, worker.require):
        with pytest.raises(LeaseLostError):
            late(before)
    with pytest.raises(LeaseLostError):
        worker.fail(before, "e", "t")
    worker.settle(again, take=False)
    assert queue.group_progress(TOPIC, GROUP).settled == 1


def test_a_retry_waits_for_its_delay(queue, connect):
    queue.produce(TOPIC, messages(1))
    worker = connect("worker")
    assert worker.fail(eventually(worker.take), "e", "t", delay_s=60).next is None
    assert worker.take() is None
    assert queue.group_progress(TOPIC, GROUP).in_flight == 1


def test_a_split_that_kills_its_workers_is_buried(queue, connect):
    queue.produce(TOPIC, messages(1))
    for name in ("first", "second"):
        worker = connect(name, retries=1)
        assert eventually(worker.take) is not None
        queue.withdraw_writer(name)
    third = connect("third", retries=1)
    wait_until(lambda: third.take() is None and queue.dead_letters())
    assert "worker died" in queue.dead_letters()[0].error


def test_a_withdrawn_writers_split_comes_again_at_once(queue, connect):
    queue.produce(TOPIC, messages(1))
    eventually(connect("dead").take)
    queue.withdraw_writer("dead")
    again = eventually(connect("other").take)
    assert (again.attempt, again.failures) == (2, 1)


def test_fencing_a_stage_gives_its_splits_back_without_blame(queue, connect):
    queue.produce(TOPIC, messages(1))
    old = connect("old")
    held = eventually(old.take)
    queue.fence([GROUP])
    again = eventually(connect("new").take)
    assert (again.attempt, again.failures) == (2, 0)
    with pytest.raises(LeaseLostError):
        old.settle(held)
    with pytest.raises(LeaseLostError):
        old.take()
    with pytest.raises(LeaseLostError):
        old.extend()


def test_every_group_gets_every_message_and_the_last_one_releases_the_payload(url, queue, connect):
    queue.subscribe(TOPIC, "audit")
    queue.produce(TOPIC, messages(1))
    first, second = connect("a"), connect("b", group="audit")
    one, two = eventually(first.take), eventually(second.take)
    assert one.message == two.message
    assert first.settle(one).released == []
    assert queue.unreferenced([one.message.payload_key]) == set()
    assert second.settle(two).released in ([two.message], [])  # or it is left to the sweep
    assert queue.unreferenced([one.message.payload_key]) == {one.message.payload_key}


def test_a_payload_that_one_group_buried_is_kept_when_the_other_settles(queue, connect):
    queue.subscribe(TOPIC, "audit")
    queue.produce(TOPIC, messages(1))
    first, second = connect("a", retries=0), connect("b", group="audit")
    first.fail(eventually(first.take), "e", "t")
    assert second.settle(eventually(second.take)).released == []


def test_several_deliveries_are_settled_with_one_output_or_none_of_them(queue, connect):
    queue.produce(TOPIC, messages(4))
    worker = connect("worker")
    held = holding(worker, 3)
    settlement = worker.settle_many(
        [Settled(held[0], messages(1, OUT)), *(Settled(other) for other in held[1:])], to=OUT, take=1
    ).single()
    assert settlement.released == [delivery.message for delivery in held]
    assert (queue.group_progress(TOPIC, GROUP).settled, queue.topic_progress(OUT).produced) == (3, 1)

    queue.produce(TOPIC, messages(1, start=4))
    gone, kept = settlement.next or eventually(worker.take), eventually(worker.take)
    worker.settle(gone, take=False)
    with pytest.raises(LeaseLostError):
        worker.settle_many([Settled(kept, messages(1, OUT, start=1)), Settled(gone)], to=OUT)
    assert (queue.group_progress(TOPIC, GROUP).settled, queue.topic_progress(OUT).produced) == (4, 1)


def test_a_replayed_dead_letter_comes_once_more_and_only_once(queue, connect):
    queue.subscribe(TOPIC, "audit")
    queue.produce(TOPIC, messages(2))
    worker, audit = connect("worker", retries=0), connect("auditor", group="audit")
    for _ in range(2):
        worker.fail(eventually(worker.take), "e", "t", take=False)
    done = eventually(audit.take)
    audit.settle(done, take=False)
    letters = queue.dead_letters()
    assert queue.replay(letters) == 2
    assert queue.replay(letters) == 0
    assert queue.dead_letters() == []
    progress = queue.group_progress(TOPIC, GROUP)
    assert (progress.dead, progress.dead_bytes, progress.settled, progress.in_flight) == (0, 0, 0, 2)
    again = eventually(worker.take)
    assert (again.failures, again.attempt) == (0, 2)
    audited = next(letter for letter in letters if letter.message.split_id == done.message.split_id)
    first = worker.settle(again)
    last = worker.settle(first.next or eventually(worker.take))
    released = {one.split_id for one in first.released + last.released}
    assert released <= {audited.message.split_id}  # the audit still needs the other; the sweep may be left to find it
    assert last.next is None
    keys = {letter.message.payload_key for letter in letters}
    assert queue.unreferenced(keys) <= {audited.message.payload_key}
    audit.settle(eventually(audit.take))
    assert queue.unreferenced(keys) == keys


def test_a_removed_queue_knows_nothing(url, queue):
    queue.produce(TOPIC, messages(1))
    queue.remember("plan", "a")
    queue.remove()
    again = open_queue(url)
    assert (again.topic_progress(TOPIC).produced, again.remember("plan", "b")) == (0, "b")
    again.close()


def test_a_group_cannot_join_after_others_have_consumed(queue, connect):
    queue.produce(TOPIC, messages(1))
    worker = connect("worker")
    worker.settle(eventually(worker.take))
    with pytest.raises(QueueError, match="another state"):
        queue.subscribe(TOPIC, "late")
    queue.subscribe(TOPIC, GROUP)


def test_counters_tell_lag_in_messages_bytes_and_records(queue, connect):
    queue.produce(TOPIC, messages(3))
    worker = connect("worker")
    done, _ = holding(worker, 2)
    worker.settle(done, take=False)
    topic, group = queue.topic_progress(TOPIC), queue.group_progress(TOPIC, GROUP)
    assert (topic.produced, topic.produced_bytes, topic.produced_records, topic.ended) == (3, 300, 30, False)
    assert (group.taken, group.settled, group.settled_bytes, group.settled_records) == (2, 1, 100, 10)
    assert group.in_flight == 1
    queue.end(TOPIC)
    assert queue.topic_progress(TOPIC).ended


def test_waiting_ends_when_something_is_produced(url, queue, connect):
    worker = connect("worker")
    never = threading.Event()
    started = time.monotonic()
    worker.wait(0.1, never)
    assert time.monotonic() - started >= 0.1
    threading.Timer(0.2, queue.produce, (TOPIC, messages(1))).start()
    worker.wait(DEADLINE_S, never)
    assert time.monotonic() - started < DEADLINE_S
    assert eventually(worker.take) is not None


def test_waiting_ends_when_stop_is_set(connect):
    stop = threading.Event()
    threading.Timer(0.1, stop.set).start()
    started = time.monotonic()
    connect("worker").wait(DEADLINE_S, stop)
    assert time.monotonic() - started < DEADLINE_S


# --- sources


def test_the_first_attempt_at_a_partition_wins(queue):
    queue.register_writer("one", TOPIC, 60)
    queue.register_writer("two", TOPIC, 60)
    assert queue.publish_partition(TOPIC, "0", 7, "two", messages(2))
    assert not queue.publish_partition(TOPIC, "0", 7, "one", messages(3))
    assert queue.topic_progress(TOPIC).produced == 2
    assert queue.completed_partitions(TOPIC, "0") == {7}
    assert queue.live_writers() == {"one"}  # so that withdrawing it tells that it has published nothing


def test_a_fenced_writer_makes_nothing_visible(queue):
    queue.register_writer("stale", TOPIC, 0.0)
    queue.register_writer("live", TOPIC, 60)
    queue.fence(())
    assert queue.live_writers() == {"live"}
    with pytest.raises(LeaseLostError):
        queue.publish_partition(TOPIC, "0", 0, "stale", messages(1))
    with pytest.raises(LeaseLostError):
        queue.extend_writer("stale", 60)
    assert queue.topic_progress(TOPIC).produced == 0
    assert queue.completed_partitions(TOPIC, "0") == set()


def test_partitions_that_belong_together_become_visible_together(queue, connect):
    for writer in ("a", "b", "late"):
        queue.register_writer(writer, TOPIC, 60.0)
    written = [WrittenPartition(0, "a", messages(2)), WrittenPartition(1, "b", messages(3, start=2))]
    with pytest.raises(LeaseLostError):
        queue.publish_batch(TOPIC, "0", [*written, WrittenPartition(2, "gone", messages(1, start=5))])
    assert (queue.topic_progress(TOPIC).produced, queue.completed_partitions(TOPIC, "0")) == (0, set())
    assert queue.publish_batch(TOPIC, "0", written)
    assert (queue.topic_progress(TOPIC).produced, queue.completed_partitions(TOPIC, "0")) == (5, {0, 1})
    assert queue.live_writers() == {"late"}
    again = [WrittenPartition(1, "late", messages(1, start=9)), WrittenPartition(2, "late", [])]
    assert not queue.publish_batch(TOPIC, "0", again)
    assert queue.completed_partitions(TOPIC, "0") == {0, 1}
    assert sorted(drained(connect("w"), 5)) == [f"{TOPIC}-{n}" for n in range(5)]


def test_the_backlog_is_what_is_stored_and_not_settled_by_everybody(queue, connect):
    queue.subscribe(TOPIC, "other")
    slow, fast = connect("slow", retries=0), connect("fast", group="other")
    assert queue.backlog() == Backlog(0, 0)
    queue.register_writer("task", TOPIC, 60.0)
    queue.extend_writer("task", 60.0, hidden_bytes=250)
    queue.extend_writer("task", 60.0)
    assert queue.backlog() == Backlog(0, 250)
    queue.publish_partition(TOPIC, "0", 0, "task", messages(3))
    assert queue.backlog() == Backlog(300, 0)
    drained(fast, 3)
    assert queue.backlog() == Backlog(300, 0)
    buried = slow.fail(eventually(slow.take), "no", "").next or eventually(slow.take)
    queue_after = slow.settle(buried, messages(5, "unread"), to="unread", take=False)
    assert queue_after.next is None
    assert queue.backlog() == Backlog(100, 0)
    queue.register_writer("task 2", TOPIC, 60.0)
    queue.extend_writer("task 2", 60.0, hidden_bytes=70)
    queue.fence([TOPIC])
    assert queue.backlog() == Backlog(100, 0)


def test_a_source_message_leads_to_a_payload_that_is_kept_and_released(queue, connect):
    metadata = {"source_stage": TOPIC, "num_records": 1, "bytes": 7, "stored_key": f"{TOPIC}/w/0"}
    queue.produce(TOPIC, [QueueMessage("m", "s", "", metadata)])
    assert queue.unreferenced([f"{TOPIC}/w/0", f"{TOPIC}/w/1"]) == {f"{TOPIC}/w/1"}
    worker = connect("w")
    [released] = worker.settle(eventually(worker.take)).released
    assert released.stored_key == f"{TOPIC}/w/0"
    assert queue.unreferenced([f"{TOPIC}/w/0"]) == {f"{TOPIC}/w/0"}


def test_withdrawing_tells_whether_the_writer_can_have_published(queue):
    for writer in ("first", "second", "fenced", "streamed", "repeated"):
        queue.register_writer(writer, "source", 60.0)
    assert queue.publish_partition("source", "0", 0, "first", messages(1))
    assert not queue.publish_partition("source", "0", 0, "second", messages(1))
    assert queue.publish_stream_batch("source", "main", "query", 0, ["streamed"], messages(1))
    assert not queue.publish_stream_batch("source", "main", "query", 0, ["repeated"], messages(1))
    live = {writer: queue.withdraw_writer(writer) for writer in ("first", "second", "streamed", "repeated")}
    assert live == {"first": False, "second": True, "streamed": False, "repeated": True}
    queue.fence(["source"])
    assert not queue.withdraw_writer("fenced")


def test_a_batch_record_stands_once_a_partition_is_visible(queue):
    first, second, third = (BatchRecord(name, 2, 100) for name in ("a", "b", "c"))
    assert queue.start_batch(TOPIC, "0", first) == first
    assert queue.start_batch(TOPIC, "0", second) == second
    queue.register_writer("w", TOPIC, 60)
    queue.publish_partition(TOPIC, "0", 0, "w", [])
    assert queue.start_batch(TOPIC, "0", third) == second


def stream(queue: Queue, batch: int, query: str | None = "q1", stream_id: str = "main", count: int = 1) -> bool:
    writer = f"{query}-{stream_id}-{batch}-{time.monotonic_ns()}"
    queue.register_writer(writer, TOPIC, 60)
    return queue.publish_stream_batch(TOPIC, stream_id, query, batch, [writer], messages(count, start=batch * 10))


def test_a_streams_batches_are_taken_in_sequence(queue):
    assert stream(queue, 0)
    assert stream(queue, 1, count=2)
    assert queue.topic_progress(TOPIC).produced == 3
    assert queue.live_writers() == set()


def test_a_repeated_batch_is_ignored(queue):
    assert stream(queue, 0)
    assert stream(queue, 1)
    assert not stream(queue, 1, count=5)
    assert not stream(queue, 0)
    assert queue.topic_progress(TOPIC).produced == 2
    assert len(queue.live_writers()) == 2  # so that withdrawing them tells that they have published nothing
    assert stream(queue, 2)


@pytest.mark.parametrize("known", [[], [0]])
def test_a_gap_is_refused(queue, known):
    for batch in known:
        stream(queue, batch)
    with pytest.raises(StreamResetError, match="streamId"):
        stream(queue, 2)
    assert queue.topic_progress(TOPIC).produced == len(known)


@pytest.mark.parametrize("batch", [0, 1, 2])
def test_a_new_query_under_a_known_stream_is_refused(queue, batch):
    stream(queue, 0)
    stream(queue, 1)
    with pytest.raises(StreamResetError, match="Restore the checkpoint"):
        stream(queue, batch, query="q2")
    assert queue.topic_progress(TOPIC).produced == 2
    assert stream(queue, 0, query="q2", stream_id="other")


def test_a_batch_without_tasks_moves_the_stream_on(queue):
    assert queue.publish_stream_batch(TOPIC, "main", None, 0, [], [])
    assert stream(queue, 1)
    assert queue.publish_stream_batch(TOPIC, "main", None, 2, [], [])
    with pytest.raises(StreamResetError):
        stream(queue, 3, query="q2")


def test_a_batch_with_a_fenced_writer_is_refused_whole(queue):
    queue.register_writer("a", TOPIC, 60)
    with pytest.raises(LeaseLostError):
        queue.publish_stream_batch(TOPIC, "main", "q1", 0, ["a", "fenced"], messages(2))
    assert queue.topic_progress(TOPIC).produced == 0
    assert stream(queue, 0)


def test_facts_are_remembered_once(url, queue):
    assert queue.remember("plan", "a") == "a"
    other = open_queue(url)
    assert other.remember("plan", "b") == "a"
    other.close()
