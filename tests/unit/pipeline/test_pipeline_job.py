"""Jobs with real worker processes, without Spark."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pipeline_support import TableSource, make_job, output_ids, read_source, sink, temporary_files

from solstice.errors import JobFailedError, PipelineError, PlanChangedError, SinkError
from solstice.pipeline import Operator, Split, SplitPayload
from solstice.pipeline._events import read_events
from solstice.pipeline._queue import open_queue
from solstice.pipeline._store import open_store
from waiting import wait_until


def left_over(job) -> set[str]:
    return set(open_store(job.payloads).keys())


def test_every_row_goes_through_all_stages_once(tmp_path):
    offset = 1000
    job = make_job(tmp_path)
    shifted = job.stages[0].map(lambda table: table.set_column(0, "id", pc.add(table["id"], offset)), workers=2)
    shifted.sink(sink(tmp_path))
    seen = []
    result = job.run(on_progress=seen.append)
    assert output_ids(tmp_path) == [offset + n for n in range(60)]
    assert [(stage.stage, stage.produced, stage.settled) for stage in result.stages] == [
        ("source", 6, 0),
        ("map", 6, 6),
        ("sink", 0, 6),
    ]
    assert (result.stopped, result.dead, result.stage("sink").settled_records) == (False, 0, 60)
    assert all(stage.done for stage in result.stages)
    assert seen[-1][1].workers == 2
    assert left_over(job) == set()
    assert temporary_files(tmp_path) == []


def test_a_finished_job_that_runs_again_does_nothing_twice(tmp_path):
    def job():
        job = make_job(tmp_path)
        job.stages[0].map(lambda table: table).sink(sink(tmp_path))
        return job

    job().run()
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.parquet")}
    result = job().run()
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.parquet")} == before
    assert result.stage("sink").settled == 6


class EverySecondTimeWrong(Operator):
    """Remembers in files what it has seen, because a retry may run in another process."""

    def __init__(self, marks: Path) -> None:
        self.marks = marks

    def process_split(self, split, payload):
        self.marks.mkdir(exist_ok=True)
        mark = self.marks / split.split_id
        if not mark.exists():
            mark.touch()
            raise ValueError(f"not this time, attempt {split.attempt}")
        return SplitPayload.from_arrow(payload.to_arrow(), split.split_id)


def test_a_split_that_fails_is_tried_again(tmp_path):
    job = make_job(tmp_path)
    job.stages[0].map(EverySecondTimeWrong(tmp_path / "marks"), workers=2).sink(sink(tmp_path))
    result = job.run()
    assert output_ids(tmp_path) == list(range(60))
    assert result.dead == 0


class SlowerThanTheLease(Operator):
    def process_split(self, split, payload):
        time.sleep(5)
        table = payload.to_arrow()
        return SplitPayload.from_arrow(table.append_column("attempt", [[split.attempt] * len(table)]), split.split_id)


def test_a_lease_is_extended_while_the_operator_runs(tmp_path):
    job = make_job(tmp_path, TableSource(splits=2), lease_s=3.0)
    job.stages[0].map(SlowerThanTheLease(), workers=2).sink(sink(tmp_path))
    job.run()
    files = list((tmp_path / "out").glob("*.parquet"))
    assert [pq.read_table(path)["attempt"].unique().to_pylist() for path in files] == [[1], [1]]


def poisoned(table):
    if table["id"][0].as_py() == 20:
        raise ValueError("twenty")
    return table


def test_a_split_that_always_fails_goes_to_the_dead_letters_and_the_job_goes_on(tmp_path):
    job = make_job(tmp_path)
    job.stages[0].map(poisoned, retries=2).sink(sink(tmp_path))
    result = job.run()
    assert output_ids(tmp_path) == [n for n in range(60) if not 20 <= n < 30]
    assert (result.dead, result.stage("poisoned").dead, result.stage("poisoned").settled) == (1, 1, 5)
    (letter,) = job.dead_letters()
    assert (letter.message.split_id, letter.attempt, letter.error) == ("source-b0-p2-s0", 3, "ValueError: twenty")
    assert "in poisoned" in letter.traceback
    assert left_over(job) == {letter.message.payload_key}


def test_a_job_can_fail_at_the_first_dead_letter(tmp_path):
    job = make_job(tmp_path, on_error="fail")
    job.stages[0].map(poisoned, retries=0).sink(sink(tmp_path))
    with pytest.raises(JobFailedError, match="'poisoned': ValueError: twenty"):
        job.run()
    assert job.worker_pids() == {}


def suicidal(table):
    if table["id"][0].as_py() == 20:
        os.kill(os.getpid(), signal.SIGKILL)
    return table


def test_a_split_that_kills_its_workers_ends_in_the_dead_letters(tmp_path):
    job = make_job(tmp_path)
    job.stages[0].map(suicidal, retries=1).sink(sink(tmp_path))
    result = job.run()
    assert output_ids(tmp_path) == [n for n in range(60) if not 20 <= n < 30]
    assert "worker died" in job.dead_letters()[0].error
    assert result.dead == 1
    (told,) = [event for event in read_events(job.state) if event["event"] == "dead letter"]
    assert (told["stage"], told["split"]) == ("suicidal", "source-b0-p2-s0")
    job.run()
    assert len([event for event in read_events(job.state) if event["event"] == "dead letter"]) == 1, "told twice"


def test_a_wrong_result_is_the_splits_failure(tmp_path):
    job = make_job(tmp_path, TableSource(splits=1))
    job.stages[0].map(lambda table: 42, retries=0)
    job.run()
    assert "returned a int" in job.dead_letters()[0].error


def test_a_missing_payload_is_the_splits_failure(tmp_path):
    job = make_job(tmp_path, TableSource(splits=2))
    job.stages[0].sink(sink(tmp_path), retries=0)
    queue = open_queue(job.queue)
    read_source(job)
    open_store(job.payloads).clear("source")
    job.run()
    assert [letter.error.partition(":")[0] for letter in queue.dead_letters()] == ["PayloadMissingError"] * 2
    queue.close()


def test_a_function_that_drops_all_rows_ends_its_splits(tmp_path):
    job = make_job(tmp_path)
    job.stages[0].map(lambda table: table.slice(0, 0)).sink(sink(tmp_path))
    result = job.run()
    assert (result.stage("map").produced, result.stage("sink").settled) == (0, 0)
    assert left_over(job) == set()


def test_two_stages_after_one_get_all_splits_each(tmp_path):
    job = make_job(tmp_path, TableSource(splits=3))
    job.stages[0].sink(sink(tmp_path / "a"))
    job.stages[0].sink(sink(tmp_path / "b"))
    job.run()
    assert output_ids(tmp_path / "a") == output_ids(tmp_path / "b") == list(range(30))
    assert left_over(job) == set()


def test_an_endless_job_drains_when_it_is_stopped_and_resumes(tmp_path):
    def job():
        job = make_job(tmp_path, TableSource(endless=True))
        job.stages[0].map(lambda table: table).sink(sink(tmp_path))
        return job

    counts = []
    for _ in range(2):
        running = job()
        base = counts[-1] if counts else 0
        thread = threading.Thread(
            target=lambda running=running, base=base: (
                wait_until(lambda: running.progress()[-1].settled > base + 5, "splits in the sink"),
                running.stop(),
            )
        )
        thread.start()
        result = running.run()
        thread.join()
        assert result.stopped
        assert result.stage("sink").settled == result.stage("source").produced
        counts.append(result.stage("sink").settled)
    assert counts[1] > counts[0]
    assert output_ids(tmp_path) == list(range(counts[1] * 10))


def test_a_stop_without_drain_leaves_the_rest_for_the_next_run(tmp_path):
    def job(delay_s: float):
        def slow(table):
            time.sleep(delay_s)
            return table

        job = make_job(tmp_path, TableSource(splits=8))
        job.stages[0].map(slow).sink(sink(tmp_path))
        return job

    running = job(0.5)
    thread = threading.Thread(
        target=lambda: (
            wait_until(lambda: running.progress()[1].in_flight > 0, "a split in flight"),
            running.stop(drain=False),
        )
    )
    thread.start()
    result = running.run()
    thread.join()
    assert result.stage("slow").settled < 8
    assert job(0.0).run().stage("sink").settled == 8
    assert output_ids(tmp_path) == list(range(80))


def test_a_killed_worker_is_replaced_and_no_row_is_lost_or_doubled(tmp_path):
    job = make_job(tmp_path, TableSource(endless=True))

    def slow(table):
        time.sleep(0.05)
        return table

    job.stages[0].map(slow, workers=2).sink(sink(tmp_path))
    killed = []

    def kill() -> None:
        for stage in ("slow", "sink", "slow"):
            before = {part.stage: part.settled for part in job.progress()}[stage]
            wait_until(lambda s=stage, b=before: {p.stage: p.settled for p in job.progress()}[s] > b, "progress")
            wait_until(lambda s=stage: bool(job.worker_pids().get(s)), "a worker")
            pid = job.worker_pids()[stage][0]
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)
        job.stop()

    thread = threading.Thread(target=kill)
    thread.start()
    result = job.run()
    thread.join()
    assert len(killed) == 3
    assert output_ids(tmp_path) == list(range(result.stage("source").produced_records))
    assert result.dead == 0
    assert left_over(job) == set()


def test_the_error_of_a_source_ends_the_job(tmp_path):
    job = make_job(tmp_path, TableSource(error=RuntimeError("no more")))
    job.stages[0].sink(sink(tmp_path))
    with pytest.raises(RuntimeError, match="no more"):
        job.run()


def test_a_file_that_is_there_already_is_an_error_of_the_job_not_of_its_splits(tmp_path):
    job = make_job(tmp_path, TableSource(splits=1))
    work = job.stages[0].sink(sink(tmp_path)).work
    (tmp_path / "out").mkdir()
    final = Path(work.write(Split("source-b0-p0-s0", "sink"), SplitPayload.from_arrow(pa.table({"a": [1]}), "s")).final)
    final.write_text("somebody else's")
    with pytest.raises(SinkError, match="choose another directory"):
        job.run()
    assert job.dead_letters() == []


def test_changed_stages_are_refused(tmp_path):
    make_job(tmp_path).stages[0].sink(sink(tmp_path)).job.run()
    with pytest.raises(PlanChangedError, match="fresh=True"):
        make_job(tmp_path).stages[0].map(len).sink(sink(tmp_path)).job.run()


def test_one_state_is_run_once_at_a_time(tmp_path):
    job = make_job(tmp_path, TableSource(endless=True))
    job.stages[0].sink(sink(tmp_path))
    thread = threading.Thread(target=job.run)
    thread.start()
    try:
        wait_until(lambda: bool(job.worker_pids().get("sink")), "the first run")
        with pytest.raises(PipelineError, match="running already"):
            job.run()
        other = make_job(tmp_path)
        other.stages[0].sink(sink(tmp_path))
        with pytest.raises(PipelineError, match=f"in process {os.getpid()}"):
            other.run()
    finally:
        job.stop(drain=False)
        thread.join()


SCRIPT = """
import sys, time
sys.path.insert(0, {support!r})
from pathlib import Path
from pipeline_support import TableSource, make_job, sink
root = Path({root!r})
job = make_job(root, TableSource(splits=40))
def slow(table):
    time.sleep(0.1)
    return table
job.stages[0].map(slow, workers=2).sink(sink(root))
def tell(stages):
    (root / "pids").write_text(" ".join(str(pid) for pids in job.worker_pids().values() for pid in pids))
    (root / "settled").write_text(str(stages[-1].settled))
result = job.run(on_progress=tell)
print("stopped" if result.stopped else "finished", result.stage("sink").settled)
"""


def script(tmp_path) -> subprocess.Popen:
    code = SCRIPT.format(support=str(Path(__file__).parent), root=str(tmp_path))
    (tmp_path / "main.py").write_text(code)
    return subprocess.Popen([sys.executable, str(tmp_path / "main.py")], stdout=subprocess.PIPE, text=True)


def settled(tmp_path) -> int:
    try:
        return int((tmp_path / "settled").read_text() or 0)
    except FileNotFoundError:
        return 0


def test_a_killed_driver_leaves_no_process_behind_and_its_job_resumes(tmp_path):
    driver = script(tmp_path)
    wait_until(lambda: settled(tmp_path) > 0, "splits in the sink")
    workers = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    driver.kill()
    driver.communicate()
    assert len(workers) == 3
    wait_until(lambda: not any(psutil.pid_exists(pid) for pid in workers), "workers gone")
    with script(tmp_path) as again:
        assert again.communicate(timeout=60)[0].split() == ["finished", "40"]
    assert output_ids(tmp_path) == list(range(400))
    assert temporary_files(tmp_path) == []


def test_ctrl_c_drains_what_is_visible(tmp_path):
    with script(tmp_path) as driver:
        wait_until(lambda: settled(tmp_path) > 0, "splits in the sink")
        driver.send_signal(signal.SIGINT)
        state, count = driver.communicate(timeout=60)[0].split()
    assert driver.returncode == 0
    assert state == "stopped"
    assert output_ids(tmp_path) == list(range(int(count) * 10))
