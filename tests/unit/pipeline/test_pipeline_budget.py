"""How long a writer waits for those who read, and what deletes payloads when."""

import contextlib
import logging
import shutil
from types import SimpleNamespace

import pyarrow as pa
import pytest

from solstice.errors import ConfigError
from solstice.pipeline import Job
from solstice.pipeline._budget import (
    DEFAULT_BYTES,
    budget_bytes,
    parse_budget,
    wait_for_room,
    warn_of_a_full_disk,
    warn_of_overshoot,
)
from solstice.pipeline._queue import Backlog, open_queue
from solstice.pipeline._split_writer import SplitWriter
from solstice.pipeline._store import open_store
from solstice.pipeline._sweep import Deletions, sweep

TABLE = pa.table({"id": range(10)})


@pytest.mark.parametrize(
    ("backlogs", "waits"),
    [
        ([Backlog(0, 0)], 0),
        ([Backlog(60, 40)], 0),
        ([Backlog(60, 41), Backlog(59, 41)], 1),
        ([Backlog(500, 0), Backlog(300, 0), Backlog(100, 0)], 2),
        ([Backlog(1, 500), Backlog(0, 500)], 1),  # nothing is visible whose end would help
        ([Backlog(0, 5000)], 0),
    ],
)
def test_a_writer_waits_while_there_is_too_much_and_somebody_can_make_it_less(backlogs, waits):
    left, slept = iter(backlogs), []
    wait_for_room(lambda: next(left), 100, slept.append)
    assert len(slept) == waits


def test_what_a_writer_has_stored_counts_before_it_is_visible_and_holds_up_the_next(tmp_path):
    queue, store = open_queue(f"sqlite://{tmp_path}/queue.db"), open_store(f"file://{tmp_path}/payloads")
    queue.subscribe("source", "m")
    slept = []

    def writer(partition: int) -> SplitWriter:
        options = {"stage": "source", "batch_id": "0", "attempt": 1, "target_split_bytes": 1}
        return SplitWriter(queue, store, partition=partition, budget_bytes=1, sleep=give_up, **options)

    def give_up(seconds: float) -> None:
        slept.append(queue.backlog())
        raise TimeoutError

    with writer(0) as first:
        first.write(TABLE.to_batches())
        assert queue.backlog() == Backlog(0, first.stored_bytes)
        assert len(first.messages) == 10  # of which none could wait for another
        with writer(1) as second:
            second.write(TABLE.slice(0, 1).to_batches())
            second.publish()
            visible = second.stored_bytes
        with pytest.raises(TimeoutError):
            first.write(TABLE.to_batches())
    assert slept == [Backlog(visible, first.stored_bytes)]
    assert queue.backlog() == Backlog(visible, 0)
    queue.close()


@pytest.mark.parametrize(("value", "size"), [(5, 5), ("4kib", 4096), ("1gb", 10**9), (None, None)])
def test_a_budget_is_a_number_or_a_size(value, size):
    assert parse_budget(value) == size


@pytest.mark.parametrize("value", [0, -1, "much", "1.5"])
def test_a_budget_that_is_no_size_is_refused(value):
    with pytest.raises(ConfigError, match="payload_budget"):
        Job("numbers", payload_budget=value)


def test_by_default_payloads_take_no_more_than_half_of_the_disk(tmp_path, monkeypatch):
    store = open_store(f"file://{tmp_path}/not/yet/there")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=10_000 if path == tmp_path else 0))
    assert budget_bytes(None, store) == 5_000
    assert budget_bytes(123, store) == 123
    assert budget_bytes(None, open_store("s3://bucket/p")) == DEFAULT_BYTES


def test_tasks_that_are_larger_than_the_budget_are_told(caplog):
    warn_of_overshoot("source", 50, 2, 100)
    assert not caplog.records
    warn_of_overshoot("source", 3 << 20, 2, 5 << 20)
    assert "a task writes about 3 MiB, and 2 run at once" in caplog.text
    assert "budget of 5 MiB. Use more and smaller partitions" in caplog.text


def test_what_cannot_be_held_back_and_may_not_fit_is_told(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=10 << 30))
    store = open_store(f"file://{tmp_path}")
    warn_of_a_full_disk("source", 9 << 30, store)
    warn_of_a_full_disk("source", 9 << 40, open_store("s3://bucket/p"))
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        warn_of_a_full_disk("source", 20 << 30, store)
    assert "Spark expects 20 GiB, and 10 GiB is free" in caplog.text


class BucketLike:
    """A store whose readers do not survive a deletion."""

    def __init__(self, path):
        self._store = open_store(f"file://{path}")
        self.survives_deletion = False

    def __getattr__(self, name):
        return getattr(self._store, name)


def test_a_settled_object_is_deleted_one_lease_later(tmp_path):
    store, now = BucketLike(tmp_path), [0.0]
    deletions = Deletions(store, 30.0, lambda: now[0])
    for index, added_s in enumerate((0.0, 10.0)):
        now[0] = added_s
        store.store(f"s/w/{index}", TABLE)
        deletions.add(f"s/w/{index}")
        deletions.work()
    for now_s, left in ((29.0, 2), (30.0, 1), (39.0, 1), (40.0, 0)):
        now[0] = now_s
        deletions.work()
        assert len(list(store.keys())) == left
    quick = open_store(f"file://{tmp_path}")
    quick.store("s/w/0", TABLE)
    deletions = Deletions(quick, 30.0)
    deletions.add("s/w/0")
    deletions.work()
    assert list(quick.keys()) == []


def test_a_sweep_beside_workers_leaves_an_object_until_the_next_sweep(tmp_path):
    store, suspects = BucketLike(tmp_path / "payloads"), set()
    with contextlib.closing(open_queue(f"sqlite://{tmp_path}/queue.db")) as queue:
        store.store("s/w/0", TABLE)
        assert sweep(queue, store, suspects) == 0
        store.store("s/w/1", TABLE)
        assert sweep(queue, store, suspects) == 1
        assert list(store.keys()) == ["s/w/1"]
        assert sweep(queue, store, suspects) == 1
        store.store("s/w/2", TABLE)
        assert sweep(queue, store) == 1
        assert list(store.keys()) == []
