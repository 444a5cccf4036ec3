"""What the Kafka queue does when brokers refuse or do not answer, without any broker."""

import threading
import time
import weakref
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from solstice.errors import QueueError
from solstice.pipeline import _kafka_cluster, _kafka_log
from solstice.pipeline._kafka_calls import BoundedCalls
from solstice.pipeline._kafka_cluster import KafkaCluster, discard
from solstice.pipeline._kafka_control import Decider, state_record
from solstice.pipeline._kafka_log import LogReader


@pytest.fixture
def cluster(monkeypatch):
    monkeypatch.setattr(_kafka_cluster, "_given_up", set())
    return KafkaCluster("kafka://127.0.0.1:1/job")


class Producer:
    """Its first record is delivered, or refused."""

    def __init__(self, refusal: KafkaError | None) -> None:
        self._refusal = refusal
        self.committed = False

    def produce(self, *arguments: Any, on_delivery: Any = None, **options: Any) -> None:
        if on_delivery is not None:
            on_delivery(self._refusal, SimpleNamespace(offset=lambda: 0))

    def flush(self, timeout_s: float) -> int:
        return 0

    def begin_transaction(self) -> None: ...

    def purge(self) -> None: ...

    def commit_transaction(self, timeout_s: float) -> None:
        self.committed = True


def test_a_decision_whose_record_was_refused_is_made_again(cluster, monkeypatch):
    producers = [Producer(KafkaError(KafkaError._MSG_TIMED_OUT)), Producer(None)]
    left = list(producers)
    monkeypatch.setattr(cluster, "ensure", lambda *topics: None)
    monkeypatch.setattr(cluster, "producer", lambda name: left.pop(0))
    control = SimpleNamespace(read_to=lambda end: None)
    assert Decider(cluster, control, "d").decide(lambda control: [state_record("job..control", ("fact", "a"), "b")])
    assert [producer.committed for producer in producers] == [False, True]


def test_a_topic_that_never_appears_is_waited_for_only_so_long(cluster, monkeypatch):
    monkeypatch.setattr(_kafka_cluster, "RECOVERY_S", 0.3)
    monkeypatch.setattr(cluster, "_create", lambda topics: None)
    monkeypatch.setattr(cluster, "partitions_of", lambda topic: [])
    with pytest.raises(QueueError, match=r"job\.in does not appear"):
        cluster.ensure("job.in")


@pytest.mark.parametrize("end", [KafkaException(KafkaError(KafkaError._TRANSPORT)), KeyboardInterrupt()])
def test_after_brokers_were_waited_for_in_vain_the_next_call_only_looks_whether_one_answers(cluster, monkeypatch, end):
    monkeypatch.setattr(_kafka_cluster, "RECOVERY_S", 0.0)
    monkeypatch.setattr(_kafka_cluster, "_PROBE_S", 0.2)

    def call() -> None:
        raise end

    with pytest.raises((QueueError, KeyboardInterrupt)):
        cluster.retrying(call)
    with pytest.raises(QueueError, match="run the job again"):
        cluster.retrying(lambda: pytest.fail("was called"))
    monkeypatch.setattr(cluster, "_new_admin", lambda: SimpleNamespace(list_topics=lambda timeout: None))
    assert cluster.retrying(lambda: 1) == 1


def test_who_still_tries_again_stops_when_another_has_waited_in_vain(cluster, monkeypatch):
    monkeypatch.setattr(_kafka_cluster, "RECOVERY_S", 60.0)
    monkeypatch.setattr(_kafka_cluster, "_PROBE_S", 0.2)
    away = KafkaException(KafkaError(KafkaError._TRANSPORT))
    calls = []

    def call() -> None:
        calls.append(1)
        if len(calls) == 2:
            cluster.failed(away)  # as another thread does
        raise away

    started_s = time.monotonic()
    with pytest.raises(QueueError, match="run the job again"):
        cluster.retrying(call)
    assert len(calls) == 2
    assert time.monotonic() - started_s < 30


def test_who_reads_on_stops_when_another_has_waited_in_vain(cluster, monkeypatch):
    monkeypatch.setattr(_kafka_cluster, "_PROBE_S", 0.2)
    monkeypatch.setattr(_kafka_log, "_SILENCE_S", 0.2)
    reader = LogReader(cluster, {("in", 0): 0})
    _kafka_cluster._given_up.add(cluster.address)  # as another thread does
    started_s = time.monotonic()
    with pytest.raises(QueueError, match="run the job again"):
        list(reader.read_to({("in", 0): 1}))
    assert time.monotonic() - started_s < 30
    discard(reader._consumer)


@pytest.mark.parametrize("untold", [-1, -1001])
def test_an_end_that_no_leader_has_told_is_asked_for_again(cluster, monkeypatch, untold):
    """So librdkafka answers, and as a success, when a leader that it knows is silent for longer than its time-out."""
    admins = [Admin([5, untold]), Admin([5, 7])]
    left = list(admins)
    monkeypatch.setattr(cluster, "_new_admin", lambda: left.pop(0))
    monkeypatch.setattr(cluster, "_meet", lambda admin: None)
    assert cluster.ends({"in": [0, 1]}) == {("in", 0): 5, ("in", 1): 7}
    assert left == []


def test_ends_that_are_never_told_are_waited_for_only_so_long(cluster, monkeypatch):
    monkeypatch.setattr(_kafka_cluster, "RECOVERY_S", 0.3)
    monkeypatch.setattr(cluster, "_new_admin", lambda: Admin([-1001]))
    monkeypatch.setattr(cluster, "_meet", lambda admin: None)
    with pytest.raises(QueueError, match="do not tell where their logs end"):
        cluster.ends({"in": [0]})


class Admin:
    """Tells these offsets."""

    def __init__(self, offsets: list[int]) -> None:
        self._offsets = offsets

    def list_offsets(self, asked: Any, request_timeout: float) -> Any:
        answers: dict[Any, Any] = {}
        for place, offset in zip(asked, self._offsets, strict=True):
            answers[place] = Future()
            answers[place].set_result(SimpleNamespace(offset=offset))
        return answers


def test_a_call_that_does_not_return_is_given_up_and_the_next_one_is_made():
    calls, released, answered = BoundedCalls("stuck"), threading.Event(), []
    with pytest.raises(TimeoutError):
        calls.call(released.wait, 0.05)
    calls.call(lambda: answered.append(1), 5)
    assert answered == [1]
    released.set()
    calls.close()
    _wait_until(lambda: not [thread for thread in threading.enumerate() if thread.name == "stuck"])


def test_what_a_bounded_call_raises_is_raised():
    calls = BoundedCalls("failing")
    with pytest.raises(ZeroDivisionError):
        calls.call(lambda: 1 / 0, 5)
    calls.close()


def test_what_a_bounded_call_has_used_is_let_go_at_once():
    class Producer:
        def send(self) -> None: ...

    calls, producer = BoundedCalls("idle"), Producer()
    calls.call(producer.send, 5)
    known = weakref.ref(producer)
    del producer
    _wait_until(lambda: known() is None)
    calls.close()


def _wait_until(condition) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
