"""What a stage can be told, and several stages before one. In threads where processes add nothing."""

import contextlib
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from pipeline_support import TableSource, make_job, output_ids, read_source, sink

from solstice.errors import ConfigError
from solstice.pipeline import IterableSource, Operator, OperatorConfig, QueueMessage, Split, SplitPayload
from solstice.pipeline._autoscale import Autoscaler
from solstice.pipeline._events import read_events
from solstice.pipeline._intake import Intake
from solstice.pipeline._queue import open_queue
from solstice.pipeline._rate_limit import FileRateLimiter, parse_rate
from solstice.pipeline._store import open_store
from solstice.pipeline._worker import _rebatch


def threaded(root: Path, source=None, **options):
    return make_job(root, source, runner="inprocess", **options)


def left_over(job) -> set[str]:
    return set(open_store(job.payloads).keys())


def events(job, name: str) -> list[dict]:
    return [event for event in read_events(job.state) if event["event"] == name]


def test_a_stage_after_several_gets_the_splits_of_all_and_ends_with_the_last(tmp_path):
    def slow():
        for n in range(1000, 1030, 10):
            time.sleep(0.4)  # the others are through with theirs by then
            yield from ({"id": id} for id in range(n, n + 10))

    job = threaded(tmp_path, TableSource(splits=3))
    first = job.stages[0].map(lambda table: table, name="first")
    second = job.source(IterableSource(slow, rows_per_split=10), name="other")
    job.stages[0].union(first, second).map(lambda table: table, name="all", workers=2).sink(sink(tmp_path))
    result = job.run()
    assert output_ids(tmp_path) == sorted([*range(30), *range(30), *range(1000, 1030)])
    assert (result.stage("all").settled, result.stage("sink").settled, result.dead) == (9, 9, 0)
    assert all(stage.done for stage in result.stages)
    assert left_over(job) == set()


def test_a_union_resumes_what_was_left(tmp_path):
    def job(fail: bool):
        def stop(table):
            if fail and table["id"][0].as_py() >= 1000:
                raise ValueError("not yet")
            return table

        job = threaded(tmp_path, TableSource(splits=3), on_error="fail")
        other = job.source(IterableSource([pa.table({"id": [n]}) for n in (1000, 1001)]), name="other")
        job.stages[0].union(other).map(stop, retries=0).sink(sink(tmp_path))
        return job

    with pytest.raises(Exception, match="not yet"):
        job(True).run()
    again = job(False)
    again.replay()
    result = again.run()
    assert output_ids(tmp_path) == [*range(30), 1000, 1001]
    assert result.dead == 0
    assert left_over(again) == set()


def test_a_union_of_the_same_stage_twice_is_refused(tmp_path):
    job = make_job(tmp_path)
    with pytest.raises(ConfigError, match="there twice"):
        job.stages[0].union(job.stages[0])
    with pytest.raises(ConfigError, match="of another job"):
        job.stages[0].union(make_job(tmp_path / "b").stages[0])


@dataclass
class AddConfig(OperatorConfig):
    amount: int
    log: Path


class Add(Operator):
    def setup(self) -> None:
        self.config.log.write_text("up")

    def teardown(self) -> None:
        self.config.log.write_text("down")

    def process_split(self, split, payload):
        assert self.config.log.read_text() == "up"
        ids = [n + self.config.amount for n in payload.to_arrow()["id"].to_pylist()]
        table = pa.table({"id": ids})
        return [SplitPayload.from_arrow(table.slice(n, 5), split.split_id) for n in (0, 5)]


def test_a_class_operator_has_a_configuration_is_set_up_and_torn_down_and_may_make_several_splits(tmp_path):
    job = make_job(tmp_path, TableSource(splits=2))
    job.stages[0].map(Add(AddConfig(100, tmp_path / "log"))).sink(sink(tmp_path))
    result = job.run()
    assert output_ids(tmp_path) == list(range(100, 120))
    assert (result.stage("Add").produced, result.stage("sink").settled) == (4, 4)
    assert (tmp_path / "log").read_text() == "down"


def test_an_operator_that_cannot_be_set_up_ends_the_job(tmp_path):
    class Broken(Operator):
        def setup(self):
            raise RuntimeError("no model")

        def process_split(self, split, payload):
            return payload

    job = make_job(tmp_path)
    job.stages[0].map(Broken())
    with pytest.raises(RuntimeError, match="no model") as raised:
        job.run()
    where, stage = raised.value.__notes__
    assert "in setup" in where
    assert stage == "Raised by a worker of stage 'Broken'."
    assert job.dead_letters() == []


def test_a_schema_that_changes_in_the_middle_fails_the_split_and_says_how(tmp_path):
    def drifting(table):
        return pa.table({"id": table["id"].cast(pa.string())}) if table["id"][0].as_py() == 20 else table

    job = threaded(tmp_path)
    job.stages[0].map(drifting, retries=0).sink(sink(tmp_path))
    assert job.run().dead == 1
    (letter,) = job.dead_letters()
    assert "column 'id' was int64 and is string" in letter.error
    assert output_ids(tmp_path) == [n for n in range(60) if not 20 <= n < 30]


def test_the_schema_is_remembered_from_run_to_run(tmp_path):
    def job(root, column, poison=None):
        def rename(table):
            if table["id"][0].as_py() == poison:
                raise ValueError("poison")
            return table.rename_columns([column])

        job = threaded(root, TableSource(splits=3))
        job.stages[0].map(rename, name="m", retries=0)
        return job

    assert job(tmp_path, "id", poison=20).run().dead == 1
    resumed = job(tmp_path, "x")
    assert resumed.replay() == 1
    resumed.run()
    (letter,) = resumed.dead_letters()
    assert "column 'id' is missing, column 'x' (int64) is new" in letter.error
    assert job(tmp_path / "b", "x").run().dead == 0  # another job has its own


def test_a_column_without_values_and_another_order_of_columns_fit(tmp_path):
    def reorder(table):
        columns = {"id": table["id"], "note": pa.array(["a"] * len(table))}
        if table["id"][0].as_py() >= 10:
            columns = {"note": pa.nulls(len(table)), "id": table["id"]}
        return pa.table(columns)

    job = threaded(tmp_path, TableSource(splits=3))
    job.stages[0].map(reorder, retries=0).sink(sink(tmp_path))
    assert job.run().dead == 0
    assert output_ids(tmp_path) == list(range(30))


def stuck_at_20(table):
    if table["id"][0].as_py() == 20:
        time.sleep(600)
    return table


@pytest.mark.parametrize("runner", ["local", "inprocess"])
def test_a_stuck_split_is_ended_tried_again_and_given_up_with_the_place_where_it_was_stuck(tmp_path, runner):
    job = make_job(tmp_path, TableSource(splits=3), runner=runner)
    job.stages[0].map(stuck_at_20, timeout_s=1.5, retries=1).sink(sink(tmp_path))
    started = time.monotonic()
    result = job.run()
    assert time.monotonic() - started < 300
    assert output_ids(tmp_path) == list(range(20))
    (letter,) = job.dead_letters()
    assert (letter.error, letter.attempt) == ("TimeoutError: the split took longer than timeout_s=1.5", 2)
    assert "in stuck_at_20" in letter.traceback
    assert result.dead == 1


def test_a_split_that_holds_the_interpreters_lock_is_ended_too(tmp_path):
    def holds_the_lock(table):
        if table["id"][0].as_py() == 0:
            import ctypes

            ctypes.PyDLL(None).sleep(600)  # PyDLL keeps the lock, as bad native code does
        return table

    job = make_job(tmp_path, TableSource(splits=2))
    job.stages[0].map(holds_the_lock, timeout_s=0.5, retries=0).sink(sink(tmp_path))
    assert job.run().dead == 1
    assert output_ids(tmp_path) == list(range(10, 20))
    assert "past its time-out" in events(job, "worker died")[0]["ending"]


def test_small_splits_are_put_together_and_large_ones_cut(tmp_path):
    sizes = []

    def look(table):
        sizes.append(len(table))
        return table

    job = threaded(tmp_path, TableSource(splits=10, rows=10))
    job.stages[0].map(look, rebatch_rows=35).sink(sink(tmp_path), rebatch_rows=1000)
    read_source(job)  # before: a portion waits for half a second only
    result = job.run()
    assert sum(sizes) == 100
    assert max(sizes) == 35
    assert len(sizes) < 10
    assert output_ids(tmp_path) == list(range(100))
    assert len(list((tmp_path / "out").glob("*.parquet"))) < len(sizes)
    assert (result.stage("look").settled, result.dead) == (10, 0)
    assert left_over(job) == set()

    cut = threaded(tmp_path / "cut", TableSource(splits=2, rows=100))
    sizes.clear()
    cut.stages[0].map(look, rebatch_rows=30).sink(sink(tmp_path / "cut"))
    read_source(cut)
    cut.run()
    assert output_ids(tmp_path / "cut") == list(range(200))
    assert sorted(sizes)[-6:] == [30] * 6


def test_no_more_splits_are_put_together_than_a_transaction_can_name(tmp_path):
    url = f"sqlite://{tmp_path}/queue.db"
    with contextlib.closing(open_queue(url)) as queue:
        queue.subscribe("in", "m")
        queue.register_writer("w", "m", 600.0)
        queue.produce("in", [QueueMessage(f"in_{n}", f"in-{n}", "", {"num_records": 1}) for n in range(10_500)])
        with contextlib.closing(Intake(url, ["in"], "m", "w", retries=1, lease_s=60, rebatch_rows=1 << 20)) as intake:
            portion = intake.take(threading.Event())
            assert 10_000 <= len(portion) < 10_500
            intake.settle(portion, [], to="m", prepared=[], done=[], take=False)
        assert queue.group_progress("in", "m").settled == len(portion)


def test_a_split_knows_the_splits_that_it_was_made_of(tmp_path):
    seen = {}

    def note(table, ctx: Split):
        seen[ctx.stage, ctx.split_id] = ctx.parents
        return table

    job = threaded(tmp_path, TableSource(splits=3, rows=10))
    stage = job.stages[0].map(note, name="first").map(note, name="together", rebatch_rows=30)
    stage.map(note, name="cut", rebatch_rows=20).map(note, name="last")
    read_source(job)
    assert job.run().dead == 0
    firsts = tuple(f"source-b0-p{n}-s0.first-0" for n in range(3))
    assert {split: parents for (stage, split), parents in seen.items() if stage == "first"} == {
        f"source-b0-p{n}-s0": () for n in range(3)
    }
    assert seen["together", f"{firsts[0]}+2"] == firsts
    whole = f"{firsts[0]}+2.together-0"
    assert [seen["cut", f"{whole}~{n}"] for n in range(2)] == [(whole,)] * 2
    assert sorted(parents for (stage, _), parents in seen.items() if stage == "last") == [(whole,)] * 2


def test_a_piece_knows_only_the_splits_whose_rows_it_has():
    payloads = [SplitPayload.from_arrow(pa.table({"id": range(rows)}), "") for rows in (10, 5, 15, 1)]
    pieces = _rebatch(Split("a", "m", 1, {"parents": ["older"]}), ["a", "b", "c", "d"], payloads, 15)
    assert [(piece.split_id, piece.parents) for piece, _ in pieces] == [
        ("a+3~0", ("a", "b")),
        ("a+3~1", ("c",)),
        ("a+3~2", ("d",)),
    ]
    ((whole, _),) = _rebatch(Split("a", "m", 1, {"parents": ["older"]}), ["a"], payloads[:1], 15)
    assert (whole.split_id, whole.parents) == ("a", ("older",))


def test_a_poisoned_split_takes_no_other_along_when_they_were_put_together(tmp_path):
    def poisoned(table):
        if 20 in table["id"].to_pylist():
            raise ValueError("twenty")
        return table

    job = threaded(tmp_path)
    job.stages[0].map(poisoned, rebatch_rows=1000, retries=1).sink(sink(tmp_path))
    result = job.run()
    assert output_ids(tmp_path) == [n for n in range(60) if not 20 <= n < 30]
    assert (result.dead, [letter.message.split_id for letter in job.dead_letters()]) == (1, ["source-b0-p2-s0"])


def test_a_split_that_kills_the_worker_takes_no_other_along_either(tmp_path):
    def suicidal(table):
        if 20 in table["id"].to_pylist():
            os._exit(0)
        return table

    job = make_job(tmp_path)
    job.stages[0].map(suicidal, rebatch_rows=1000, retries=1).sink(sink(tmp_path))
    result = job.run()
    assert output_ids(tmp_path) == [n for n in range(60) if not 20 <= n < 30]
    assert result.dead == 1
    assert left_over(job) == {job.dead_letters()[0].message.payload_key}


def test_a_worker_is_replaced_after_its_splits(tmp_path):
    def pid(table):
        return table.append_column("pid", [[os.getpid()] * len(table)])

    job = make_job(tmp_path)
    job.stages[0].map(pid, max_worker_splits=2).sink(sink(tmp_path))
    result = job.run()
    assert output_ids(tmp_path) == list(range(60))
    assert len({event["worker"] for event in events(job, "worker started") if event["stage"] == "pid"}) >= 3
    assert (events(job, "worker died"), events(job, "retry"), result.dead) == ([], [], 0)


def test_a_worker_that_has_grown_is_replaced_and_one_that_bursts_fails_its_split(tmp_path):
    hoard = []

    def growing(table):
        if table["id"][0].as_py() == 20:
            hoard.append(bytearray(500_000_000))
            time.sleep(30)
        hoard.append(bytearray(200_000_000))
        return table

    job = make_job(tmp_path, TableSource(splits=3))
    job.stages[0].map(growing, max_worker_bytes=200_000_000, retries=0).sink(sink(tmp_path))
    result = job.run()
    assert output_ids(tmp_path) == list(range(20))
    assert result.dead == 1
    assert job.dead_letters()[0].error.startswith("MemoryError: the worker had ")
    assert len([event for event in events(job, "worker started") if event["stage"] == "growing"]) >= 3


def test_a_rate_holds_for_all_workers_together(tmp_path):
    job = threaded(tmp_path, TableSource(splits=12))
    job.stages[0].map(lambda table: table, name="slow", workers=3, rate_limit="10 splits/s").sink(sink(tmp_path))
    started = time.monotonic()
    job.run()
    assert time.monotonic() - started > 1.0
    assert output_ids(tmp_path) == list(range(120))


def test_a_rate_that_was_left_before_a_reboot_delays_nothing(tmp_path):
    """The clock starts again with the machine, so what is there may lie days ahead."""
    job = threaded(tmp_path, TableSource(splits=2))
    job.stages[0].map(lambda table: table, name="slow", rate_limit="10 splits/s").sink(sink(tmp_path))
    job.state.mkdir()
    FileRateLimiter(job.state / "rate-slow").reserve(86400.0)
    hangs = threading.Timer(30.0, lambda: job.stop(drain=False))
    hangs.start()
    assert not job.run().stopped
    hangs.cancel()
    assert output_ids(tmp_path) == list(range(20))


def test_a_rate_is_a_plan_of_free_moments(tmp_path):
    now = 100.0
    limiter = FileRateLimiter(tmp_path / "rate", now_s=lambda: now)
    other = FileRateLimiter(tmp_path / "rate", now_s=lambda: now)
    assert [limiter.reserve(0.5), other.reserve(1.0), limiter.reserve(0.5)] == [0.0, 0.5, 1.5]
    now = 103.0
    assert other.reserve(0.5) == 0.0
    assert parse_rate("2 splits/s").cost_s(3, 1000) == 1.5
    assert parse_rate("500 records/s").cost_s(3, 1000) == 2.0


def test_workers_follow_the_lag():
    now = 0.0
    scaler = Autoscaler(1, 8, now_s=lambda: now)
    wanted = []
    for waiting, in_flight in [(0, 0), (1, 1), (5, 1), (100, 2), (100, 4), (100, 8)]:
        now += 1.0
        wanted.append(scaler.wanted(waiting, in_flight))
    assert wanted == [1, 2, 4, 8, 8, 8]
    for _ in range(9):
        now += 1.0
        assert scaler.wanted(0, 1) == 8
    wanted = []
    for _ in range(100):
        now += 1.0
        wanted.append(scaler.wanted(0, 1))
    assert wanted[-1] == 1
    assert sorted(wanted, reverse=True) == wanted


def test_a_stage_with_much_to_do_gets_more_workers(tmp_path):
    def slow(table):
        time.sleep(0.1)
        return table

    job = threaded(tmp_path, TableSource(splits=60))
    job.stages[0].map(slow, workers=(1, 4)).sink(sink(tmp_path))
    seen = []
    job.run(on_progress=lambda stages: seen.append(stages[1].workers))
    assert max(seen) == 4
    assert output_ids(tmp_path) == list(range(600))


def test_one_stage_may_fail_the_job_while_the_others_go_on(tmp_path):
    def bad(table):
        raise ValueError("bad")

    job = threaded(tmp_path, TableSource(splits=1))
    job.stages[0].map(bad, retries=0)
    assert job.run().dead == 1
    job = threaded(tmp_path / "b", TableSource(splits=1))
    job.stages[0].map(bad, retries=0, on_error="fail")
    with pytest.raises(Exception, match="solstice dlq list numbers"):
        job.run()


def test_long_lineages_make_no_file_names_that_are_too_long(tmp_path):
    job = threaded(tmp_path, TableSource(splits=2))
    stage = job.stages[0]
    for n in range(12):
        stage = stage.map(lambda table: table, name=f"a-rather-long-name-of-a-stage-{n}")
    stage.sink(sink(tmp_path))
    assert job.run().dead == 0
    assert output_ids(tmp_path) == list(range(20))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timeout_s": 0}, "timeout_s is 0"),
        ({"rate_limit": "fast"}, "10 splits/s"),
        ({"rate_limit": "0 splits/s"}, "10 splits/s"),
        ({"rebatch_rows": 0}, "rebatch_rows is 0"),
        ({"rebatch_rows": 10, "retries": 0}, "one by one"),
        ({"max_worker_bytes": -1}, "max_worker_bytes is -1"),
        ({"on_error": "shrug"}, "on_error is 'shrug'"),
        ({"wrokers": 2}, "no option 'wrokers'"),
    ],
)
def test_a_wrong_option_is_refused_with_the_fix(tmp_path, options, message):
    with pytest.raises(ConfigError, match=message):
        make_job(tmp_path).stages[0].map(len, **options)
