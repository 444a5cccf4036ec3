"""What every queue backend promises; a new backend adds its URL to the fixture."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from solstice.errors import LeaseLostError, QueueError, StreamResetError
from solstice.pipeline._message import QueueMessage
from solstice.pipeline._queue import BatchRecord, Consumer, Prepared, Queue, open_consumer, open_queue

TOPIC, GROUP, OUT = "clicks", "score", "score"
DEADLINE_S = 20.0


@pytest.fixture(params=["sqlite"])
def url(request, tmp_path):
    return {"sqlite": f"sqlite://{tmp_path}/queue.db"}[request.param]


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


def drained(consumer: Consumer) -> list[str]:
    found = []
    delivery = consumer.take()
    while delivery is not None:
        found.append(delivery.message.split_id)
        delivery = consumer.settle(delivery).next
    return found


WORKER = """
import sys
from solstice.pipeline._message import QueueMessage
from solstice.pipeline._queue import open_consumer, open_queue
url, owner = sys.argv[1:]
queue = open_queue(url)
queue.register_writer(owner, "score", 60)
consumer = open_consumer(url, "clicks", "score", owner, retries=3, lease_s=60)
delivery, count = consumer.take(), 0
while delivery is not None:
    split = delivery.message.split_id
    out = QueueMessage(f"{owner}_{count}", split, f"score/{owner}/{count}", {"num_records": 10, "bytes": 100})
    delivery = consumer.settle(delivery, [out], to="score").next
    count += 1
print(count)
"""

HOLDER = """
import sys, time
from solstice.pipeline._queue import open_consumer, open_queue
queue = open_queue(sys.argv[1])
queue.register_writer("holder", "score", 60)
consumer = open_consumer(sys.argv[1], "clicks", "score", "holder", retries=3, lease_s=float(sys.argv[2]))
print(consumer.take().message.split_id, flush=True)
time.sleep(600)
"""


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
    assert sorted(drained(checker)) == sorted(message.split_id for message in messages(400))
    checker.close()


def test_a_killed_workers_split_comes_again_when_its_lease_ends(url, queue, connect):
    queue.produce(TOPIC, messages(1))
    lease_s = 2.0
    started = time.time()
    with subprocess.Popen([sys.executable, "-c", HOLDER, url, str(lease_s)], stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout.readline().decode().strip() == f"{TOPIC}-0"
        finally:
            holder.kill()
    other = connect("other")
    if time.time() - started < lease_s:
        assert other.take() is None
    again = eventually(other.take)
    assert time.time() - started >= lease_s
    assert (again.attempt, again.failures) == (2, 1)
    other.settle(again)
    assert queue.group_progress(TOPIC, GROUP).settled == 1


def test_a_worker_that_lost_its_lease_commits_nothing(queue, connect):
    queue.produce(TOPIC, messages(1))
    slow, other = connect("slow", lease_s=0.05), connect("other")
    late = slow.take()
    again = eventually(other.take)
    with pytest.raises(LeaseLostError):
        slow.settle(late, messages(1, OUT), to=OUT, prepared=[Prepared("s", "/tmp/a", "/tmp/b")])
    with pytest.raises(LeaseLostError):
        slow.fail(late, "error", "trace")
    assert queue.topic_progress(OUT).produced == 0
    assert queue.prepared(GROUP) == []
    other.settle(again, messages(1, OUT), to=OUT)
    assert queue.topic_progress(OUT).produced == 1


def test_a_second_delivery_to_the_same_worker_invalidates_the_first(queue, connect):
    queue.produce(TOPIC, messages(1))
    worker = connect("worker", lease_s=0.05)
    first = worker.take()
    second = eventually(worker.take)
    with pytest.raises(LeaseLostError):
        worker.settle(first)
    worker.settle(second)


def test_a_renewed_lease_is_not_given_away(queue, connect):
    queue.produce(TOPIC, messages(1))
    worker, other = connect("worker", lease_s=0.3), connect("other")
    delivery = worker.take()
    for _ in range(10):
        worker.extend()
        assert other.take() is None
        time.sleep(0.1)
    worker.settle(delivery)


def test_a_transaction_is_all_or_nothing(queue, connect):
    queue.produce(TOPIC, messages(2))
    worker = connect("worker")
    delivery = worker.take()
    good, bad = messages(1, OUT)[0], QueueMessage("m", "s", "k", {"num_records": 1, "bytes": 1, "x": object()})
    before = (queue.topic_progress(OUT), queue.group_progress(TOPIC, GROUP))
    with pytest.raises(TypeError):
        worker.settle(delivery, [good, bad], to=OUT, prepared=[Prepared("s", "/tmp/a", "/tmp/b")])
    assert (queue.topic_progress(OUT), queue.group_progress(TOPIC, GROUP)) == before
    assert queue.prepared(GROUP) == []
    settlement = worker.settle(delivery, [good], to=OUT, prepared=[Prepared("s", "/tmp/a", "/tmp/b")])
    assert settlement.next.message.split_id == f"{TOPIC}-1"
    assert queue.topic_progress(OUT).produced == 1
    assert queue.prepared(GROUP) == [Prepared("s", "/tmp/a", "/tmp/b")]
    worker.settle(settlement.next, done=["s"])
    assert queue.prepared(GROUP) == []


def test_a_failed_split_is_retried_and_then_buried_with_its_traceback(queue, connect):
    queue.produce(TOPIC, messages(2))
    worker = connect("worker", retries=2)
    poisoned = worker.take()
    other = worker.fail(poisoned, "ValueError: bad", "Traceback 1", delay_s=0.05).next
    assert other.message.split_id == f"{TOPIC}-1"
    worker.settle(other)
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


def test_a_retry_waits_for_its_delay(queue, connect):
    queue.produce(TOPIC, messages(1))
    worker = connect("worker")
    assert worker.fail(worker.take(), "e", "t", delay_s=60).next is None
    assert worker.take() is None
    assert queue.group_progress(TOPIC, GROUP).in_flight == 1


def test_a_split_that_kills_its_workers_is_buried(queue, connect):
    queue.produce(TOPIC, messages(1))
    for name in ("first", "second"):
        worker = connect(name, retries=1)
        assert eventually(worker.take) is not None
        queue.withdraw_writer(name)
    assert connect("third", retries=1).take() is None
    assert "worker died" in queue.dead_letters()[0].error


def test_a_withdrawn_writers_split_comes_again_at_once(queue, connect):
    queue.produce(TOPIC, messages(1))
    connect("dead").take()
    queue.withdraw_writer("dead")
    again = connect("other").take()
    assert (again.attempt, again.failures) == (2, 1)


def test_fencing_a_stage_gives_its_splits_back_without_blame(queue, connect):
    queue.produce(TOPIC, messages(1))
    old = connect("old")
    held = old.take()
    queue.fence([GROUP])
    again = connect("new").take()
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
    one, two = first.take(), second.take()
    assert one.message == two.message
    assert first.settle(one).released == []
    assert queue.unreferenced([one.message.payload_key]) == set()
    assert second.settle(two).released == [two.message]
    assert queue.unreferenced([one.message.payload_key]) == {one.message.payload_key}


def test_a_payload_that_one_group_buried_is_kept_when_the_other_settles(queue, connect):
    queue.subscribe(TOPIC, "audit")
    queue.produce(TOPIC, messages(1))
    first, second = connect("a", retries=0), connect("b", group="audit")
    first.fail(first.take(), "e", "t")
    assert second.settle(second.take()).released == []


def test_a_group_cannot_join_after_others_have_consumed(queue, connect):
    queue.produce(TOPIC, messages(1))
    worker = connect("worker")
    worker.settle(worker.take())
    with pytest.raises(QueueError, match="another state"):
        queue.subscribe(TOPIC, "late")
    queue.subscribe(TOPIC, GROUP)


def test_counters_tell_lag_in_messages_bytes_and_records(queue, connect):
    queue.produce(TOPIC, messages(3))
    worker = connect("worker")
    worker.settle(worker.take())
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
    assert worker.take() is not None


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
