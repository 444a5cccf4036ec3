"""The driver's side of a stream write, as Spark calls it, without a JVM."""

import pyarrow as pa
import pytest

from solstice.pipeline._queue import open_consumer, open_queue
from solstice.pipeline._spark_format import CommitMessage, SplitStreamWriter
from solstice.pipeline._spark_tasks import TaskOutput, WriteTarget
from solstice.pipeline._split_writer import SplitWriter
from solstice.pipeline._store import open_store

TABLE = pa.table({"id": range(20)})


@pytest.fixture
def target(tmp_path):
    return WriteTarget("source", f"sqlite://{tmp_path}/queue.db", f"file://{tmp_path}/payloads", TABLE.nbytes // 2)


@pytest.fixture
def queue(target):
    queue = open_queue(target.queue)
    queue.subscribe("source", "sink")
    yield queue
    queue.close()


@pytest.fixture
def store(target):
    return open_store(target.payloads)


def task(queue, store, target, partition: int = 0) -> CommitMessage:
    """What a task leaves: two splits, and a message for the driver."""
    with SplitWriter(
        queue,
        store,
        stage=target.stage,
        batch_id="main-0",
        partition=partition,
        attempt=1,
        target_split_bytes=target.target_split_bytes,
    ) as writer:
        writer.write(TABLE.to_batches())
        writer.hand_over(60.0)
    return CommitMessage(TaskOutput(partition, writer.writer, 0, writer.messages, "query"))


def keys(*messages: CommitMessage) -> set[str]:
    return {split.payload_key for message in messages for split in message.output.messages}


def test_an_abort_removes_what_the_tasks_wrote_and_nothing_else(queue, store, target):
    first, second, running = (task(queue, store, target, partition) for partition in range(3))
    SplitStreamWriter(target, "main").abort([first, None, second], 0)
    assert set(store.keys()) == keys(running)
    assert queue.live_writers() == {running.output.writer}
    assert queue.topic_progress("source").produced == 0


def test_an_abort_after_the_commit_keeps_what_is_visible(queue, store, target):
    message = task(queue, store, target)
    writer = SplitStreamWriter(target, "main")
    writer.commit([message], 0)
    queue.register_writer("worker", "sink", 60.0)
    consumer = open_consumer(target.queue, "source", "sink", "worker", retries=0, lease_s=60.0)
    settled = consumer.settle(consumer.take())
    for released in settled.released:
        store.delete(released.payload_key)
    writer.abort([message], 0)
    assert store.get(settled.next.message.ref).num_records == 10
    consumer.close()


def test_a_repeated_batch_removes_its_own_payloads_only(queue, store, target):
    first, again = task(queue, store, target), task(queue, store, target)
    writer = SplitStreamWriter(target, "main")
    writer.commit([first], 0)
    writer.commit([again], 0)
    assert set(store.keys()) == keys(first)
    assert queue.live_writers() == set()


def test_a_commit_that_is_repeated_with_the_same_tasks_keeps_what_is_visible(queue, store, target):
    message = task(queue, store, target)
    writer = SplitStreamWriter(target, "main")
    writer.commit([message], 0)
    writer.commit([message], 0)
    assert set(store.keys()) == keys(message)
    assert queue.topic_progress("source").produced == 2
