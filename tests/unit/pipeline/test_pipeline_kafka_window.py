"""What stands beside an offset: whoever gets a partition next goes on exactly where the one before was."""

import threading
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solstice.errors import ConfigError
from solstice.pipeline._kafka_cluster import KafkaCluster
from solstice.pipeline._kafka_consumer import KafkaConsumer, _Change, _MovedError
from solstice.pipeline._kafka_poll import choose
from solstice.pipeline._kafka_window import MAX_OPEN, Entry, Item, Window
from solstice.pipeline._message import QueueMessage
from solstice.pipeline._queue import queue_url


def item(offset: int, due_s: float = 0.0) -> Item:
    return Item(offset, offset, QueueMessage("m", str(offset), "k", {}).to_json().encode(), None, 0, 0, due_s)


def filled(count: int) -> Window:
    window = Window()
    for offset in range(count):
        window.add(item(offset))
    return window


def take(window: Window, count: int) -> tuple[Window, list[Item]]:
    items = [window.pop(0.0) for _ in range(count)]
    after = window.changed([], [(one, Entry(one.attempt + 1, 0, True)) for one in items])
    after.buffer = window.buffer
    return after, items


def handed_over(window: Window, *, alone: bool = False, at_fault: bool = True) -> Window:
    return Window.from_committed(*window.committed("worker", alone), lambda worker: at_fault)


@given(st.sets(st.integers(0, 29)), st.integers(0, 30))
def test_the_next_owner_gets_what_was_taken_and_not_settled_and_what_was_never_taken(settled, taken):
    window, _ = take(filled(30), taken)
    settled = {offset for offset in settled if offset < taken}
    after = handed_over(window.changed(settled, []))
    for offset in range(after.start, 30):
        after.add(item(offset))
    came = []
    while (one := after.pop(0.0)) is not None:
        came.append(one.offset)
    assert came == [offset for offset in range(30) if offset not in settled]


def test_a_split_counts_as_failed_only_if_its_dead_worker_held_no_other():
    window, _ = take(filled(2), 1)
    assert handed_over(window, alone=True).entries == {0: Entry(1, 1, False)}
    assert handed_over(window, alone=False).entries == {0: Entry(1, 0, False)}
    assert handed_over(window, alone=True, at_fault=False).entries == {0: Entry(1, 0, False)}
    assert handed_over(window.given_up(), alone=True).entries == {0: Entry(1, 0, False)}


def test_one_that_waits_for_its_time_is_passed_over_and_not_forgotten():
    window = Window()
    window.add(item(0, due_s=100.0))
    window.add(item(1))
    one = window.pop(now_s=50.0)
    assert one.offset == 1
    after = handed_over(window.changed([1], []))
    assert (after.start, after.next, after.entries) == (0, 2, {0: Entry(0, 0, False)})


def test_what_stands_beside_an_offset_fits_what_a_broker_takes():
    window = Window(next=10_000_000, entries={n * 60_000: Entry(12, 11, True) for n in range(MAX_OPEN)})
    offset, text = window.committed("0123456789abcdef", alone=False)
    assert offset == 0
    assert len(text.encode()) < 4096


def test_a_message_that_comes_twice_is_taken_once():
    window = filled(3)
    for offset in range(3):
        window.add(item(offset))
    assert [one.offset for one in window.buffer] == [0, 1, 2]


def test_a_partition_with_too_much_open_gives_no_more():
    window = Window(next=MAX_OPEN, entries={n: Entry(1, 0, True) for n in range(MAX_OPEN)})
    window.add(item(MAX_OPEN))
    assert window.pop(0.0) is None


def test_what_is_chosen_together_counts_as_open_and_the_next_owner_gets_it_all():
    window, _ = take(filled(400), MAX_OPEN - 1)
    window.add(item(400, due_s=100.0))
    chosen = [one for _ in range(100) if (one := window.pop(0.0)) is not None]
    assert [one.offset for one in chosen] == [MAX_OPEN - 1]
    after = handed_over(window.changed([], [(one, Entry(1, 0, True)) for one in chosen]))
    assert len(after.entries) == MAX_OPEN
    for offset in range(400):
        after.add(item(offset))
    assert after.pop(0.0).offset == 0


def test_one_that_is_put_back_does_not_count_as_open():
    window = Window(next=MAX_OPEN - 1, entries={n: Entry(1, 0, True) for n in range(MAX_OPEN - 1)})
    window.add(item(MAX_OPEN - 1))
    for _ in range(3):
        window.put_back(window.pop(0.0))
    assert window.pop(0.0).offset == MAX_OPEN - 1


class Brokerless(KafkaConsumer):
    """Its transactions do nothing; what it owns is told by ``own``."""

    def __init__(self, *moves: Callable[[], None]) -> None:
        super().__init__("kafka://127.0.0.1:1/job", "in", "work", "worker", retries=3, lease_s=60)
        self.windows = self._poller.windows
        self._moves = list(moves)

    def own(self, partition: int, *offsets: int) -> None:
        window = self.windows[("job.in", partition)] = Window()
        for offset in offsets:
            window.add(item(offset))

    def _transact(self, change: Any, taken: Any) -> None:
        if self._moves:
            self._moves.pop()()
            raise _MovedError
        self._offsets(change, taken)
        self._apply(change, taken)


def test_what_was_chosen_beside_a_partition_that_moved_is_chosen_again():
    worker = Brokerless(lambda: worker.windows.pop(("job.in", 0)))
    worker.own(0, 0, 1)
    worker.own(1, 0, 1)
    taken = worker._commit(_Change(), 4)
    assert len(taken) == 2
    window = worker.windows[("job.in", 1)]
    assert (sorted(window.entries), window.next, window.popped) == ([0, 1], 2, 0)


def test_a_partition_leaves_only_after_what_is_being_taken_of_it_is_ours_or_put_back():
    worker = Brokerless()
    worker.own(0, 0)
    worker._cluster._counts |= {"job.in": 1, "job.in.work.retry": 1}
    poller, consumer = (
        worker._poller,
        SimpleNamespace(memberid=lambda: None, assignment=list, incremental_unassign=list),
    )
    poller.consumer = consumer
    ((_, window, one),) = choose(poller, 1, 0)
    place = SimpleNamespace(topic="job.in", partition=0)
    revoking = threading.Thread(target=poller._revoked, args=(consumer, [place]))
    revoking.start()
    revoking.join(0.2)
    assert revoking.is_alive()
    with poller.condition:
        window.put_back(one)
        poller.condition.notify_all()
    revoking.join(10)
    assert not revoking.is_alive()
    assert worker.windows == {}


def test_a_partition_that_was_assigned_without_its_retries_leaves_without_them():
    worker, unassigned = Brokerless(), []
    worker._cluster._counts |= {"job.in": 1, "job.in.work.retry": 1}
    place = SimpleNamespace(topic="job.in", partition=0)
    consumer = SimpleNamespace(
        memberid=lambda: None, assignment=lambda: [place], incremental_unassign=unassigned.extend
    )
    worker._poller.consumer = consumer
    worker._poller._revoked(consumer, [place])
    assert [(one.topic, one.partition) for one in unassigned] == [("job.in", 0)]


def test_few_outputs_are_spread_one_by_one_and_many_by_the_transaction():
    worker = Brokerless()
    worker._cluster._counts["job.out"] = 4

    def partitions(count: int) -> Counter[int]:
        change = _Change()
        worker._produce(change, "out", [QueueMessage("m", str(n), "k", {}) for n in range(count)])
        return Counter(record.partition for record in change.records)

    assert partitions(4) == {0: 1, 1: 1, 2: 1, 3: 1}
    worker._produced["out"] = [8 * 4 * 10, 0, 0]  # runs of ten: an eighth of what each partition has had
    assert sorted(partitions(25).values()) == [5, 10, 10]
    worker._produced["out"] = [1_000_000, 0, 0]
    together = [partitions(100) for _ in range(4)]
    assert [len(counts) for counts in together] == [1, 1, 1, 1]
    assert set().union(*together) == {0, 1, 2, 3}


def test_what_is_taken_together_is_of_as_few_partitions_as_it_is_in_and_of_another_one_the_next_time():
    worker = Brokerless()
    for partition in range(3):
        worker.own(partition, *range(10))

    def open_after(limit: int) -> list[int]:
        assert len(worker._commit(_Change(), limit)) == limit
        return [len(worker.windows[("job.in", partition)].entries) for partition in range(3)]

    assert open_after(10) == [10, 0, 0]
    assert open_after(15) == [10, 10, 5]


def test_a_queue_on_a_cluster_is_that_of_the_job_unless_it_names_another():
    assert queue_url("kafka://a:1,b:2", "clicks") == "kafka://a:1,b:2/clicks"
    assert queue_url("kafka://a:1/?partitions=3", "clicks") == "kafka://a:1/clicks?partitions=3"
    assert queue_url("kafka://a:1/other;partitions=3", "clicks") == "kafka://a:1/other;partitions=3"


@pytest.mark.parametrize("path", ["", "/", "/a/b", "/a.b"])
def test_a_url_without_one_name_of_a_job_is_refused(path: str) -> None:
    with pytest.raises(ConfigError, match=r"names no job .*without dots"):
        KafkaCluster(f"kafka://127.0.0.1:9092{path}")
