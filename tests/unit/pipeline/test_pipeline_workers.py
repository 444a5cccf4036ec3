"""Worker processes that go wrong, and jobs that have to end all the same."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from pipeline_support import Stuck, StuckMaster, TableSource, make_job, output_ids, read_source, sink

from solstice.errors import LeaseLostError, PipelineError, QueueError
from solstice.pipeline import FunctionSink, IterableSource, Operator, ParquetSink, SplitPayload
from solstice.pipeline._queue import open_consumer, open_queue
from solstice.pipeline._source_master import SourceContext
from solstice.pipeline._split_writer import BATCH_COMMIT_S, SplitWriter
from solstice.pipeline._sqlite_queue import SqliteQueue
from solstice.pipeline._store import open_store
from solstice.pipeline._worker_process import EXIT_GAVE_UP
from waiting import wait_until

HANGS_S = 120.0


def run_bounded(job) -> list:
    """Run a job in a thread, so that one that hangs fails its test; returns its result or error."""
    ended = []

    def run() -> None:
        try:
            ended.append(job.run())
        except Exception as error:  # noqa: BLE001 - the test looks at it
            ended.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(HANGS_S)
    if thread.is_alive():
        job.stop(drain=False)
        pytest.fail(f"the job has not ended within {HANGS_S} s")
    return ended


def running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_broken_output_place_is_no_failure_of_the_splits(tmp_path):
    def job():
        job = make_job(tmp_path, TableSource(splits=3))
        job.stages[0].sink(sink(tmp_path), retries=0)
        return job

    (tmp_path / "out").write_text("in the way")
    with pytest.raises(PipelineError, match=r"cannot write .* NotADirectoryError: .* run the job again"):
        job().run()
    (tmp_path / "out").unlink()
    result = job().run()
    assert (result.dead, job().dead_letters()) == (0, [])
    assert output_ids(tmp_path) == list(range(30))


def test_what_an_operator_forked_ends_with_its_worker_and_holds_up_nobody(tmp_path):
    mark = tmp_path / "forked"

    def forking(table):
        if not mark.exists():
            pid = os.fork()
            if pid == 0:
                time.sleep(600)
                os._exit(0)
            mark.write_text(str(pid))
            os.kill(os.getpid(), signal.SIGKILL)
        return table

    job = make_job(tmp_path, TableSource(splits=2))
    job.stages[0].map(forking).sink(sink(tmp_path))
    (result,) = run_bounded(job)
    assert result.stage("sink").settled == 2
    wait_until(lambda: not running(int(mark.read_text())), "the forked process gone")


def test_a_forked_process_that_left_the_group_does_not_hold_up_the_end(tmp_path):
    mark = tmp_path / "forked"

    def forking(table):
        if not mark.exists():
            pid = os.fork()
            if pid == 0:
                os.setsid()
                time.sleep(2 * HANGS_S)
                os._exit(0)
            mark.write_text(str(pid))
            time.sleep(0.5)
            os.kill(os.getpid(), signal.SIGKILL)
        return table

    job = make_job(tmp_path, TableSource(splits=2))
    job.stages[0].map(forking).sink(sink(tmp_path))
    try:
        (result,) = run_bounded(job)
    finally:
        os.kill(int(mark.read_text()), signal.SIGKILL)
    assert result.stage("sink").settled == 2


class FailsToLoad:
    """What unpickling does, instead of giving an object."""

    def __init__(self, expression: str) -> None:
        self.expression = expression

    def __reduce__(self):
        return (eval, (self.expression,))


def test_an_error_of_any_size_reaches_the_driver(tmp_path):
    load = FailsToLoad("int('x' * 200_000)")
    huge = FailsToLoad("(_ for _ in ()).throw(ValueError('x' * 200_000))")
    for bad in (load, huge):
        job = make_job(tmp_path / str(id(bad)), TableSource(splits=1))
        job.stages[0].map(lambda table, bad=bad: (bad, table)[1], name="m").sink(sink(tmp_path))
        (error,) = run_bounded(job)
        assert type(error) is ValueError
    assert len(str(error)) == 200_000


@pytest.mark.parametrize(
    ("expression", "ending"),
    [("__import__('os').kill(__import__('os').getpid(), 9)", "signal 9"), ("exit(0)", "status 0")],
)
def test_workers_that_die_while_they_load_their_function_end_the_job(tmp_path, expression, ending):
    bad = FailsToLoad(expression)
    job = make_job(tmp_path, TableSource(splits=1))
    job.stages[0].map(lambda table: (bad, table)[1], name="loads").sink(sink(tmp_path))
    (error,) = run_bounded(job)
    assert isinstance(error, PipelineError)
    assert "stage 'loads'" in str(error)
    assert ending in str(error)


def test_a_program_of_the_operator_finds_its_standard_input_empty(tmp_path):
    def reads(table):
        assert subprocess.run(["cat"], stdout=subprocess.PIPE, check=True).stdout == b""
        return table

    job = make_job(tmp_path, TableSource(splits=2))
    job.stages[0].map(reads, retries=0).sink(sink(tmp_path))
    (result,) = run_bounded(job)
    assert (result.stage("sink").settled, result.dead) == (2, 0)


def test_no_worker_is_left_when_the_queue_fails(tmp_path, monkeypatch):
    def slow(table):
        time.sleep(100)
        return table

    job = make_job(tmp_path, TableSource(splits=4))
    job.stages[0].map(slow, workers=3)
    pids = []

    def broken(*ignored, **options):
        raise QueueError("disk full")

    def break_it() -> None:
        wait_until(lambda: job.progress()[1].in_flight == 3, "three splits in flight")
        pids.extend(job.worker_pids()["slow"])
        monkeypatch.setattr(SqliteQueue, "withdraw_writer", broken)
        os.kill(pids[0], signal.SIGKILL)

    thread = threading.Thread(target=break_it)
    thread.start()
    with pytest.raises(QueueError, match="disk full"):
        job.run()
    thread.join()
    assert len(pids) == 3
    assert not any(running(pid) for pid in pids)


class ReturnsATable(Operator):
    def process_split(self, split, payload):
        return payload.to_arrow()


class WrapsSomethingElse(Operator):
    def process_split(self, split, payload):
        return SplitPayload.from_arrow(payload.to_arrow().to_pylist(), split.split_id)


@pytest.mark.parametrize(("operator", "returned"), [(ReturnsATable(), "a Table"), (WrapsSomethingElse(), "a list")])
def test_a_class_operator_that_returns_something_else_fails_its_splits(tmp_path, operator, returned):
    job = make_job(tmp_path, TableSource(splits=2))
    job.stages[0].map(operator, retries=0).sink(sink(tmp_path))
    assert job.run().dead == 2
    error = job.dead_letters()[0].error
    assert error.startswith("OperatorError")
    assert f"{type(operator).__name__}.process_split returned {returned}" in error


def test_rows_that_parquet_cannot_hold_are_the_splits_failure(tmp_path):
    tables = [pa.table({"id": range(n, n + 10)}) for n in (0, 10, 20)]
    tables[1] = tables[1].append_column("x", pa.array([{}] * 10, pa.struct([])))
    job = make_job(tmp_path, IterableSource(tables))
    job.stages[0].sink(sink(tmp_path), retries=1)
    assert job.run().dead == 1
    (letter,) = job.dead_letters()
    assert (letter.group, letter.attempt) == ("sink", 2)
    assert letter.error.startswith("ArrowNotImplementedError")
    assert output_ids(tmp_path) == [*range(10), *range(20, 30)]


class StandsStill(ParquetSink):
    """Its first attempt at the first split stops its process, as a suspended machine would."""

    def write(self, split, payload):
        if split.attempt == 1 and split.split_id == "source-b0-p0-s0":
            (self.path.parent / "stopped").write_text(f"{os.getpid()}.")
            os.kill(os.getpid(), signal.SIGSTOP)
        return super().write(split, payload)


def test_a_sink_worker_that_wakes_up_after_another_did_its_split_goes_on(tmp_path):
    stopped = tmp_path / "stopped"
    job = make_job(tmp_path, TableSource(endless=True), lease_s=1.0)
    job.stages[0].sink(StandsStill(tmp_path / "out"), workers=2)
    pids = []

    def wake() -> None:
        wait_until(lambda: stopped.exists() and stopped.read_text().endswith("."), "a worker that stands still")
        pid = int(stopped.read_text()[:-1])
        wait_until(lambda: bool(list((tmp_path / "out").glob("source-b0-p0-s0-*"))), "its split done by another")
        os.kill(pid, signal.SIGCONT)
        before = job.progress()[1].settled
        wait_until(lambda: job.progress()[1].settled > before + 5, "progress after it")
        pids.extend([pid, *job.worker_pids()["sink"]])
        job.stop()

    thread = threading.Thread(target=wake)
    thread.start()
    result = job.run()
    thread.join()
    assert pids[0] in pids[1:]
    assert (result.dead, output_ids(tmp_path)) == (0, list(range(result.stage("sink").settled * 10)))


def test_a_source_that_does_not_stop_is_an_error_that_names_it(tmp_path):
    source = StuckMaster(SourceContext("numbers", "tap", "", "", tmp_path))
    source.start()
    source.stop()
    with pytest.raises(PipelineError, match=r"source 'tap' .* still runs after 0\.1 s"):
        source.join(0.1)


def test_what_fails_while_a_job_ends_does_not_hide_why_it_failed(tmp_path, monkeypatch):
    monkeypatch.setattr("solstice.pipeline._run._JOIN_S", 0.1)
    job = make_job(tmp_path, Stuck())
    job.stages[0].sink(sink(tmp_path))

    def fail(stages):
        raise RuntimeError("the reason")

    with pytest.raises(RuntimeError, match="the reason") as caught:
        job.run(on_progress=fail)
    assert "source 'source' was stopped and still runs" in caught.value.__notes__[0]


STUCK = """
import sys
sys.path.insert(0, {support!r})
from pathlib import Path
from pipeline_support import Stuck, make_job, sink
root = Path({root!r})
job = make_job(root, Stuck())
job.stages[0].sink(sink(root))
job.run(on_progress=lambda stages: (root / "pids").write_text(" ".join(map(str, job.worker_pids()["sink"]))))
"""


def test_ctrl_c_ends_the_waiting_for_a_source_that_does_not_stop(tmp_path):
    code = STUCK.format(support=str(Path(__file__).parent), root=str(tmp_path))
    driver = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    wait_until(lambda: (tmp_path / "pids").exists() and bool((tmp_path / "pids").read_text()), "a worker")
    workers = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    try:
        deadline = time.monotonic() + HANGS_S
        while driver.poll() is None and time.monotonic() < deadline:
            driver.send_signal(signal.SIGINT)
            time.sleep(0.5)
        assert driver.poll() is not None, "it still waits"
    finally:
        driver.kill()
        trace = driver.communicate()[1]
    assert "KeyboardInterrupt" in trace
    assert not any(running(pid) for pid in workers)


def test_a_stop_may_interrupt_the_run_wherever_it_is(tmp_path):
    """As a signal handler does: in the thread of the run, also while that holds a lock of the threading module."""
    job = make_job(tmp_path, TableSource(endless=True))
    job.stages[0].sink(sink(tmp_path))
    watching, interrupted = [], []

    def at_each_line(frame, event, argument):
        job.stop(drain=False)
        interrupted.append(frame.f_lineno)
        return at_each_line

    def trace(frame, event, argument):
        return at_each_line if watching and frame.f_code.co_filename == threading.__file__ else None

    def run() -> None:
        sys.settrace(trace)
        job.run(on_progress=watching.append)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(HANGS_S)
    assert not thread.is_alive()
    assert interrupted


@pytest.mark.parametrize("runner", ["local", "inprocess"])
def test_what_is_raised_and_no_exception_is_the_splits_failure_with_its_traceback(tmp_path, runner):
    """As a panic of Polars is, and ``sys.exit``: a worker that died of it could not tell."""

    class Panic(BaseException):
        pass

    def panic_at_10(table):
        if table["id"][0].as_py() == 10:
            raise Panic("index out of bounds")
        return table

    def exit_at_20(table):
        if table["id"][0].as_py() == 20:
            sys.exit(EXIT_GAVE_UP)

    job = make_job(tmp_path, TableSource(splits=3), runner=runner)
    job.stages[0].map(panic_at_10, retries=1).sink(FunctionSink(exit_at_20), retries=1)
    assert run_bounded(job)[0].dead == 2
    first, second = sorted(job.dead_letters(), key=lambda letter: letter.group)
    assert (first.group, first.error, first.attempt) == ("panic_at_10", "Panic: index out of bounds", 2)
    assert "in panic_at_10" in first.traceback
    assert (second.group, second.error, second.attempt) == ("sink", f"SystemExit: {EXIT_GAVE_UP}", 2)


def test_a_run_waits_for_nobody_of_an_earlier_one_and_lets_none_of_them_commit(tmp_path):
    job = make_job(tmp_path, TableSource(splits=3), runner="inprocess")
    job.stages[0].sink(sink(tmp_path))
    read_source(job)
    queue, store = open_queue(job.queue), open_store(job.payloads)
    queue.subscribe("source", "sink")
    queue.register_writer("before", "sink", 3600.0)
    before = open_consumer(job.queue, "source", "sink", "before", retries=3, lease_s=3600.0)
    held = before.take()
    options = {"stage": "source", "batch_id": "1", "partition": 0, "attempt": 1, "target_split_bytes": 1 << 20}
    with SplitWriter(queue, store, **options) as writer:
        writer.write(pa.table({"id": [1]}).to_batches())
        writer.hand_over(BATCH_COMMIT_S)
    (result,) = run_bounded(job)
    assert (result.dead, output_ids(tmp_path)) == (0, list(range(30)))
    assert (queue.live_writers(), list(store.keys())) == (set(), [])
    with pytest.raises(LeaseLostError):
        before.settle(held)
    with pytest.raises(LeaseLostError):
        queue.publish_partition("source", "1", 0, writer.writer, writer.messages)
    before.close()
    queue.close()
