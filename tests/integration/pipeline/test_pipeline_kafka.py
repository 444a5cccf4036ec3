"""Whole jobs on a real Kafka: unchanged but for the URL of the queue, and resumed after whatever was killed."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from solstice.errors import LeaseLostError, QueueError
from solstice.pipeline import (
    Job,
    _kafka_cluster,
    _kafka_consumer,
    _kafka_control,
    _kafka_log,
    _kafka_members,
    _kafka_poll,
    _kafka_queue,
)
from solstice.pipeline._message import QueueMessage
from solstice.pipeline._queue import Settled, open_consumer, open_queue
from solstice.testing import KafkaBroker
from unit.pipeline.pipeline_support import TableSource, make_job, output_ids, sink, temporary_files
from waiting import wait_until

pytestmark = pytest.mark.kafka

TESTS = Path(__file__).parents[2]
# Of a worker, after its broker is back: 10 s at most were seen on a machine with five times too much to do.
BACK_S = 45.0
POINTS = ["sink.start", "sink.written", "worker.stored", "sink.prepared", "sink.renamed"]

DRIVER = """
import sys, time
from pathlib import Path
from unit.pipeline.pipeline_support import TableSource, make_job, sink
def slow(table):
    time.sleep(0.2)
    return table
root, queue, splits = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
job = make_job(root, TableSource(splits=splits), queue=queue)
job.stages[0].map(slow, name="slow", workers=2).sink(sink(root))
job.run(lambda progress: print(progress[-1].settled, flush=True))
"""


@pytest.fixture
def queue(kafka_broker):
    return f"{kafka_broker.url}/job-{uuid.uuid4().hex[:12]}?partitions=3"


@pytest.fixture(scope="module")
def own_broker():
    """One that tests may kill; each starts it again."""
    with KafkaBroker() as broker:
        yield broker


@pytest.fixture
def own_queue(own_broker):
    return f"{own_broker.url}/job-{uuid.uuid4().hex[:12]}?partitions=2"


def unchanged(table: pa.Table) -> pa.Table:
    return table


def slow(table: pa.Table) -> pa.Table:
    time.sleep(0.2)
    return table


def numbers(root: Path, queue: str, splits: int) -> Job:
    job = make_job(root, TableSource(splits=splits), queue=queue)
    job.stages[0].map(unchanged, name="slow", workers=2).sink(sink(root))
    return job


def nothing_is_left(root: Path) -> bool:
    return temporary_files(root) == [] and list((root / "state" / "payloads").rglob("*.arrow")) == []


def test_a_job_whose_driver_was_killed_resumes(tmp_path, queue):
    splits = 60
    command = [sys.executable, "-c", DRIVER, str(tmp_path), queue, str(splits)]
    environment = os.environ | {"PYTHONPATH": ":".join([str(TESTS), *filter(None, sys.path)])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as driver:
        for line in driver.stdout:
            if int(line) >= 2:
                break
        driver.send_signal(signal.SIGKILL)
    assert driver.returncode == -signal.SIGKILL
    assert 0 < len(output_ids(tmp_path)) < 10 * splits
    result = numbers(tmp_path, queue, splits).run()
    assert output_ids(tmp_path) == list(range(10 * splits))
    assert (result.stage("sink").settled, result.dead) == (splits, 0)
    assert nothing_is_left(tmp_path)


def test_workers_that_die_at_each_point_of_the_protocol_lose_and_repeat_nothing(tmp_path, queue, monkeypatch):
    monkeypatch.setenv("SOLSTICE_FAULTS", ",".join(f"{point}={tmp_path}/{point}" for point in POINTS))
    result = numbers(tmp_path, queue, 6).run()
    assert all((tmp_path / point).exists() for point in POINTS)
    assert output_ids(tmp_path) == list(range(60))
    assert (result.stage("sink").settled, result.dead) == (6, 0)
    assert nothing_is_left(tmp_path)


def message(id: str) -> QueueMessage:
    return QueueMessage("m", id, f"in/w/{id}", {})


def test_the_workers_of_a_group_share_the_data_not_one_the_data_and_one_the_retries(queue):
    opened = open_queue(queue)
    opened.subscribe("in", "work")
    opened.produce("in", [message(str(n)) for n in range(30)])
    deadline = time.monotonic() + BACK_S
    workers, failed = [], set()
    for name in ("first", "second"):
        opened.register_writer(name, "work", 600)
        worker = open_consumer(queue, "in", "work", name, retries=3, lease_s=10)
        workers.append(worker)
        while (delivery := worker.take()) is None:
            assert time.monotonic() < deadline
        worker.fail(delivery, "error", "trace", take=False)
        failed.add(delivery.message.split_id)
    again, busy = set(), set()
    while again != failed or len(busy) < len(workers):
        assert time.monotonic() < deadline
        for worker in workers:
            deliveries = worker.take_many(2)
            again |= {delivery.message.split_id for delivery in deliveries if delivery.failures}
            busy |= {worker for delivery in deliveries if not delivery.failures}
            worker.settle_many([Settled(delivery) for delivery in deliveries])
    for worker in workers:
        worker.close()
    opened.close()


def test_a_worker_that_joins_during_anothers_take_costs_no_split_and_no_attempt(queue, monkeypatch):
    count = 12
    opened = open_queue(queue)
    opened.subscribe("in", "work")
    opened.produce("in", [message(str(n)) for n in range(count)])
    workers = []
    for name in ("first", "second"):
        opened.register_writer(name, "work", 600)
        workers.append(open_consumer(queue, "in", "work", name, retries=3, lease_s=10))
    first, second = workers
    windows, send, asked_to_leave = first._poller.windows, first._send_offsets, threading.Event()

    def send_late(*arguments) -> None:
        owned = len(windows)
        second._poller.start()
        deadline = time.monotonic() + 30
        while not asked_to_leave.is_set() and time.monotonic() < deadline:
            if len(windows) < owned or any(window.leaving for window in list(windows.values())):
                asked_to_leave.set()
            time.sleep(0.01)
        send(*arguments)

    monkeypatch.setattr(first, "_send_offsets", send_late)
    settled = []
    deadline = time.monotonic() + BACK_S
    first._poller.start()
    while sum(len(window.buffer) for window in list(windows.values())) < count:  # so that it takes of each partition
        assert time.monotonic() < deadline
        time.sleep(0.01)
    while len(settled) < count and time.monotonic() < deadline:
        for worker in workers:
            deliveries = worker.take_many(count)
            worker.settle_many([Settled(delivery) for delivery in deliveries])
            settled += [(delivery.message.split_id, delivery.attempt, delivery.failures) for delivery in deliveries]
    assert asked_to_leave.is_set()
    assert sorted(settled) == sorted((str(n), 1, 0) for n in range(count))
    for worker in workers:
        worker.close()
    opened.close()


def test_a_worker_whose_partitions_were_paused_reads_on_after_another_has_joined(queue, monkeypatch):
    count, full = 600, 100
    monkeypatch.setattr(_kafka_poll, "_FULL", full)
    monkeypatch.setattr(_kafka_poll, "_FETCH", 10)
    monkeypatch.setattr(_kafka_poll, "_SLOW_S", 0.1)
    opened = open_queue(queue)
    opened.subscribe("in", "work")
    opened.produce("in", [message(str(n)) for n in range(count)])
    workers = []
    for name in ("first", "second"):
        opened.register_writer(name, "work", 600)
        workers.append(open_consumer(queue, "in", "work", name, retries=3, lease_s=10))
    first, second = workers
    settled: list[str] = []

    def settle(worker, limit: int) -> None:
        deliveries = worker.take_many(limit)
        worker.settle_many([Settled(delivery) for delivery in deliveries])
        settled.extend(delivery.message.split_id for delivery in deliveries)

    deadline = time.monotonic() + BACK_S
    while not first._poller._paused:
        assert time.monotonic() < deadline
        settle(first, 1)
        time.sleep(0.2)
    settle(first, full // 4)  # more is left than lets it go on, and less than has it paused again
    while not second._poller.windows:
        assert time.monotonic() < deadline
        second.take_many(0)
    while len(settled) < count:
        assert time.monotonic() < deadline
        for worker in workers:
            settle(worker, 10)
    assert sorted(settled) == sorted(str(n) for n in range(count))
    for worker in workers:
        worker.close()
    opened.close()


def test_a_withdrawn_worker_can_commit_under_neither_of_its_names(queue):
    opened = open_queue(queue)
    opened.subscribe("in", "work")
    opened.produce("in", [message(str(n)) for n in range(4)])
    opened.register_writer("worker", "work", 600)
    worker = open_consumer(queue, "in", "work", "worker", retries=3, lease_s=10)
    deadline = time.monotonic() + BACK_S
    while len(worker._producers) < 2:  # a transaction under each
        assert time.monotonic() < deadline
        worker.settle_many([Settled(delivery) for delivery in worker.take_many(1)])
    for producer in worker._producers.values():
        producer.begin_transaction()
        producer.produce(worker._cluster.data("in"), message("late").to_json(), partition=0)
        producer.flush()
    opened.withdraw_writer("worker")
    for producer in worker._producers.values():
        with pytest.raises(KafkaException):
            producer.commit_transaction(BACK_S)
    worker.close()
    opened.close()


def test_a_broker_that_is_killed_in_the_middle_of_transactions_costs_nothing(own_broker, own_queue):
    """One worker settles without a pause, one thread publishes; the broker dies under both."""
    count = 120
    queue = open_queue(own_queue)
    queue.subscribe("in", "work")
    queue.register_writer("worker", "work", 600)
    worker = open_consumer(own_queue, "in", "work", "worker", retries=3, lease_s=10)

    def publish() -> None:
        source = open_queue(own_queue)
        for partition in range(count // 10):
            source.register_writer(f"w{partition}", "in", 600)
            messages = [message(f"{partition}-{n}") for n in range(10)]
            assert source.publish_partition("in", "0", partition, f"w{partition}", messages)
        source.close()

    back: list[float] = []

    def start_again() -> None:
        own_broker.start()
        back.append(time.monotonic())

    publisher, starter = threading.Thread(target=publish), threading.Thread(target=start_again)
    publisher.start()
    settled: list[str] = []
    after: list[float] = []
    deadline = time.monotonic() + 300
    while len(settled) < count and time.monotonic() < deadline:
        try:
            deliveries = worker.take_many(3)
            results = [Settled(d, [message(d.message.split_id)]) for d in deliveries]
            if starter.ident is None and len(settled) >= count // 3:
                own_broker.kill()
                starter.start()
            if results:
                worker.settle_many(results, to="work")
                settled += [d.message.split_id for d in deliveries]
                after += [time.monotonic()] * bool(back)
        except LeaseLostError:
            continue  # the broker was away for longer than the lease: these come again
        if back and not after:
            assert time.monotonic() - back[0] < BACK_S
    publisher.join()
    starter.join()
    assert sorted(settled) == sorted(f"{p}-{n}" for p in range(count // 10) for n in range(10))
    progress = queue.group_progress("in", "work")
    assert (queue.topic_progress("in").produced, progress.settled, progress.dead) == (count, count, 0)
    assert queue.topic_progress("work").produced == count
    queue.subscribe("work", "check")
    queue.register_writer("checker", "check", 600)
    checker = open_consumer(own_queue, "work", "check", "checker", retries=0, lease_s=10)
    seen: list[str] = []
    while len(seen) < count and time.monotonic() < deadline:
        deliveries = checker.take_many(100)
        seen += [d.message.split_id for d in deliveries]
        checker.settle_many([Settled(d) for d in deliveries])
    assert sorted(seen) == sorted(settled)
    assert checker.take() is None
    checker.close()
    worker.close()
    queue.close()


def test_a_worker_goes_on_when_its_broker_was_away_for_longer_than_its_lease(own_broker, own_queue):
    """What it held comes again, to itself and without blame, and who is evicted then is gone."""
    queue = open_queue(own_queue)
    queue.subscribe("in", "work")
    queue.produce("in", [message(str(n)) for n in range(4)])
    queue.register_writer("worker", "work", 600)
    worker = open_consumer(own_queue, "in", "work", "worker", retries=0, lease_s=1)
    (held,) = worker.take_many(1)
    own_broker.kill()
    own_broker.start()
    back = time.monotonic()
    settled: list[str] = []
    while len(settled) < 4 and time.monotonic() < back + BACK_S:
        try:
            deliveries = worker.take_many(1)
            worker.settle_many([Settled(delivery) for delivery in deliveries])
            settled += [delivery.message.split_id for delivery in deliveries]
        except LeaseLostError:
            continue
    assert sorted(settled) == ["0", "1", "2", "3"]
    with pytest.raises(LeaseLostError):
        worker.settle(held)
    worker.extend()
    progress = queue.group_progress("in", "work")
    assert (progress.settled, progress.dead) == (4, 0)
    assert queue.withdraw_writer("worker")
    with pytest.raises(LeaseLostError):
        worker.take()
    worker.close()
    queue.close()


def test_a_job_goes_on_when_its_broker_comes_back(tmp_path, own_broker, own_queue):
    job = make_job(tmp_path, TableSource(splits=20), queue=own_queue)
    job.stages[0].map(slow, name="slow", workers=2).sink(sink(tmp_path))
    ended = threading.Event()
    back: list[float] = []

    def restart() -> None:
        while not output_ids(tmp_path) and not ended.wait(0.05):
            pass
        own_broker.kill()
        own_broker.start()
        back.append(time.monotonic())

    killer = threading.Thread(target=restart)
    killer.start()
    try:
        result = job.run()
    finally:
        ended.set()
        killer.join()
    assert time.monotonic() < back[0] + 2 * BACK_S
    assert output_ids(tmp_path) == list(range(200))
    assert (result.stage("sink").settled, result.dead) == (20, 0)
    assert nothing_is_left(tmp_path)


def test_a_job_whose_broker_is_gone_for_good_waits_for_it_once(tmp_path, own_broker, own_queue, monkeypatch):
    """The thread of the job is between two questions then; that of the source may be in one, with all its patience."""
    patience_s = 4.0
    waits = {"RECOVERY_S": patience_s, "CALL_S": 3.0, "_PROBE_S": 0.2}
    job = make_job(tmp_path, TableSource(splits=200), queue=own_queue)
    job.stages[0].map(slow, name="slow", workers=2).map(unchanged, name="more", workers=2).sink(sink(tmp_path))
    gone: list[float] = []

    with monkeypatch.context() as hasty:

        def stop(progress: object) -> None:
            if gone or not output_ids(tmp_path):
                return
            for module in (_kafka_cluster, _kafka_consumer, _kafka_control, _kafka_log, _kafka_members, _kafka_queue):
                for name in waits.keys() & vars(module).keys():
                    hasty.setattr(module, name, waits[name])
            own_broker.kill()
            gone.append(time.monotonic())

        with pytest.raises(QueueError, match="run the job again"):
            job.run(stop)
    # One call may begin just before the end of the patience; at the end there are more than ten calls.
    took_s = time.monotonic() - gone[0]
    own_broker.start()
    assert took_s < patience_s + 30

    def answers() -> bool:
        with contextlib.suppress(QueueError), contextlib.closing(open_queue(own_queue)) as queue:
            return queue.topic_progress(job.stages[0].name).produced > 0
        return False

    wait_until(answers, "a queue that was not given up for ever")


def test_a_payload_is_no_garbage_because_its_broker_is_slow_to_tell_where_logs_end(own_broker, own_queue, monkeypatch):
    queue = open_queue(own_queue)
    queue.subscribe("in", "work")
    queue.produce("in", [message("0"), message("1")])
    unsettled, sleepers = queue._unsettled, []

    def then_sleep(topic: str) -> dict[tuple[str, int], int]:
        starts = unsettled(topic)
        os.kill(own_broker.pid, signal.SIGSTOP)
        sleepers.append(threading.Timer(_kafka_cluster.ASK_S + 1, os.kill, (own_broker.pid, signal.SIGCONT)))
        sleepers[-1].start()
        return starts

    monkeypatch.setattr(queue, "_unsettled", then_sleep)
    try:
        assert queue.unreferenced(["in/w/0", "in/w/1", "in/w/2"]) == {"in/w/2"}
    finally:
        for sleeper in sleepers:
            sleeper.join()
    assert len(sleepers) == 1
    queue.close()


def test_removing_a_job_removes_its_own_topics_only_and_can_be_finished_later(kafka_broker, monkeypatch):
    job = f"job-{uuid.uuid4().hex[:12]}"
    url = f"{kafka_broker.url}/{job}?partitions=2"
    admin = AdminClient({"bootstrap.servers": kafka_broker.address})
    foreign = f"{job}.raw"
    admin.create_topics([NewTopic(foreign, 1)])[foreign].result()

    def topics() -> set[str]:
        return {name for name in admin.list_topics(timeout=10).topics if name.startswith(f"{job}.")}

    queue = open_queue(url)
    queue.subscribe("in", "work")
    queue.produce("in", [message("0")])
    queue.produce("unread", [message("0")])
    queue.dead_letters()
    made = topics()
    assert {f"{job}.in", f"{job}.in.work.retry", f"{job}.unread", f"{job}..dead", f"{job}..progress"} < made

    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(_kafka_queue, "delete_groups", interrupted)
        with pytest.raises(KeyboardInterrupt):
            queue.remove()
    assert f"{job}..control" in topics()
    open_queue(url).remove()
    assert topics() == {foreign}
    admin.delete_topics([foreign])[foreign].result()


def test_a_broker_that_is_not_there_is_told_within_seconds(tmp_path):
    job = numbers(tmp_path, "kafka://127.0.0.1:1", 2)
    started = time.monotonic()
    with pytest.raises(QueueError, match=r"no Kafka broker answers at 127\.0\.0\.1:1 .*queue"):
        job.run()
    assert time.monotonic() - started < 15
