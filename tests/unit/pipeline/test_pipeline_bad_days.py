"""Full disks, wrong places, changed code, starting over: a clear error or the promised recovery, nothing lost."""

import errno
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from pipeline_support import TableSource, make_job, output_ids, sink, temporary_files

from object_store import s3_bucket
from solstice.errors import ConfigError, JobFailedError, PipelineError, SolsticeError, StoreError
from solstice.pipeline import FunctionSink, IterableSource, Job, ParquetSink
from solstice.pipeline._events import read_events, read_progress
from solstice.pipeline._file_store import FileSplitPayloadStore
from solstice.pipeline._queue import open_queue
from solstice.pipeline._source_master import SourceContext
from solstice.pipeline._store import open_store


def threaded(root: Path, source=None, **options):
    return make_job(root, source, runner="inprocess", **options)


# --- full disks


class FullDisk(ParquetSink):
    def _write_file(self, table, file):
        file.write(b"half of it")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_ends_the_job_with_the_reason_and_leaves_nothing_half_done(tmp_path):
    def job(kind):
        job = threaded(tmp_path, TableSource(splits=3))
        job.stages[0].sink(kind(tmp_path / "out"), retries=0)
        return job

    with pytest.raises(PipelineError, match=r"cannot write .* No space left on device.*run the job again"):
        job(FullDisk).run()
    assert temporary_files(tmp_path) == []
    result = job(ParquetSink).run()
    assert (result.dead, output_ids(tmp_path)) == (0, list(range(30)))


LIMITED = """
import resource, sys
sys.path.insert(0, {support!r})
from pathlib import Path
from pipeline_support import TableSource, make_job, sink
root, limit = Path({root!r}), int(sys.argv[1])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
def grow(table):
    import pyarrow as pa
    return table.append_column("x", pa.array(["x" * 100_000] * len(table)))
job = make_job(root, TableSource(splits=3))
job.stages[0].map(grow, retries=0).sink(sink(root))
try:
    print("dead", job.run().dead)
except Exception as error:
    print(type(error).__name__, error)
"""


def test_a_payload_that_does_not_fit_ends_the_job_and_the_next_run_goes_on(tmp_path):
    code = LIMITED.format(support=str(Path(__file__).parent), root=str(tmp_path))

    def run(limit: int) -> str:
        command = [sys.executable, "-c", code, str(limit)]
        return subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60, check=True).stdout

    told = run(500_000)
    assert told.startswith("PipelineError stage 'grow' cannot write what it made of split")
    assert "File too large" in told
    assert "Nothing is lost" in told
    assert run(0) == "dead 0\n"
    assert output_ids(tmp_path) == list(range(30))
    assert not list((tmp_path / "state" / "payloads").rglob("*.arrow*"))


# --- wrong places


def test_a_bucket_that_is_not_there_is_said_before_anything_runs_and_no_split_is_blamed(tmp_path):
    with s3_bucket() as location:
        job = threaded(tmp_path, TableSource(splits=2), payloads=location.replace("bucket", "gone", 1) % "payloads")
        job.stages[0].sink(sink(tmp_path), retries=0)
        with pytest.raises(StoreError, match=r"the bucket 'gone' of .* does not exist\. Create it"):
            job.run()
        with pytest.raises(StoreError, match="the bucket 'gone'"):
            open_store(job.payloads).get("source/w/s0")  # as a worker whose bucket went away
        assert open_store(location % "payloads").get("source/w/s0") is None


def test_a_store_that_cannot_be_read_ends_the_job_and_no_split_is_blamed(tmp_path, monkeypatch):
    def job():
        job = threaded(tmp_path, TableSource(splits=3))
        job.stages[0].map(lambda table: table, name="m", retries=0).sink(FunctionSink(len), retries=0)
        return job

    def refuse(*ignored):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    get = FileSplitPayloadStore.get
    for reader, written_by in (("m", "source"), ("sink", "m")):
        with monkeypatch.context() as broken:
            broken.setattr(
                FileSplitPayloadStore,
                "get",
                lambda self, ref, stage=written_by: refuse() if ref.key.startswith(f"{stage}/") else get(self, ref),
            )
            with pytest.raises(StoreError, match=rf"{reader!r} cannot read split .*PermissionError.*run the job again"):
                job().run()
    assert (job().run().dead, job().dead_letters()) == (0, [])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"queue": "amqp://host/x"}, "no queue is known"),
        ({"payloads": "ftp://host/x"}, "no payload store is known"),
        ({"payloads": "nowhere"}, "URL"),
        ({"runner": "cloud"}, "'local', 'inprocess' or 'ray'"),
        ({"state": "/proc/x"}, r"the state directory /proc/x of job 'numbers' cannot be used: No such file.*state="),
        (
            {"queue": "sqlite:///proc/x/queue.db"},
            r"the queue /proc/x/queue.db cannot be opened: No such file.*writable",
        ),
        (
            {"payloads": "file:///proc/x"},
            r"the payload store 'file:///proc/x/.*' cannot be written: No such.*payloads=",
        ),
    ],
)
def test_a_wrong_place_is_refused_before_anything_runs(tmp_path, options, message):
    def job():
        job = Job("numbers", **{"state": tmp_path} | options)
        job.source(TableSource()).sink(ParquetSink(tmp_path / "out"))
        return job

    with pytest.raises(SolsticeError, match=message):
        job().run()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("fresh", [False, True])
def test_the_queue_of_another_job_is_refused_and_left_as_it_is(tmp_path, fresh):
    def job(name, rows):
        job = Job(name, state=tmp_path / name, queue=f"sqlite://{tmp_path}/queue.db", runner="inprocess")
        job.source(TableSource(splits=rows)).sink(ParquetSink(tmp_path / name / "out"))
        return job

    job("first", 2).run()
    with pytest.raises(ConfigError, match=r"is that of job 'first', not of 'second'.*of its own"):
        job("second", 3).run(fresh=fresh)
    assert job("first", 2).run().stage("sink").settled == 2
    assert output_ids(tmp_path / "first") == list(range(20))


def test_a_function_that_cannot_be_sent_to_a_worker_is_told_with_its_stage_and_the_fix(tmp_path):
    lock = threading.Lock()

    def locked(table):
        with lock:
            return table

    job = make_job(tmp_path)
    job.stages[0].map(locked).sink(sink(tmp_path))
    with pytest.raises(ConfigError, match=r"function of stage 'locked' cannot be sent .*lock.*in setup\(\)"):
        job.run()


def test_a_payload_that_was_damaged_is_the_splits_failure(tmp_path):
    job = threaded(tmp_path, TableSource(splits=2))
    job.stages[0].sink(sink(tmp_path), retries=0)
    context = SourceContext(job.name, "source", job.queue, job.payloads, job.state)
    job.stages[0].work.master(context).read()
    (path,) = (job.state / "payloads").rglob("*p1-s0.arrow")
    with open(path, "r+b") as file:
        file.seek(-40, os.SEEK_END)
        file.write(b"\xff" * 8)
    assert job.run().dead == 1
    assert job.dead_letters()[0].error.startswith("PayloadCorruptError")
    assert output_ids(tmp_path) == list(range(10))


# --- resuming


def test_changed_code_is_said_and_what_is_done_stays(tmp_path, caplog):
    def job(function):
        job = threaded(tmp_path, TableSource(splits=2))
        job.stages[0].map(function, name="work").sink(sink(tmp_path))
        return job

    job(lambda table: table).run()
    with caplog.at_level(logging.WARNING):
        job(lambda table: table.slice(0, 1)).run()
    assert "the code of stage work has changed" in caplog.text
    assert output_ids(tmp_path) == list(range(20))
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        job(lambda table: table).run()
    assert "has changed" not in caplog.text


def test_a_fresh_start_that_crashed_in_the_middle_is_finished_by_the_next_run(tmp_path, monkeypatch):
    def job():
        job = threaded(tmp_path, TableSource(splits=3))
        job.stages[0].map(lambda table: table, name="m").sink(sink(tmp_path))
        return job

    job().run()
    with monkeypatch.context() as broken:

        def crash(*ignored):
            raise KeyboardInterrupt

        broken.setattr("solstice.pipeline._sqlite_queue.SqliteQueue.remove", crash)
        with pytest.raises(KeyboardInterrupt):
            job().run(fresh=True)
    assert output_ids(tmp_path) == []  # the output is gone, and the queue still says that all is done
    assert job().run().dead == 0
    assert output_ids(tmp_path) == list(range(30))


def test_fresh_accepts_another_plan_and_forgets_dead_letters(tmp_path):
    def bad(table):
        raise ValueError("bad")

    job = threaded(tmp_path, TableSource(splits=2))
    job.stages[0].map(bad, retries=0).sink(sink(tmp_path))
    assert job.run().dead == 2
    other = threaded(tmp_path, TableSource(splits=2))
    other.stages[0].sink(sink(tmp_path), name="end")
    assert other.run(fresh=True).dead == 0
    assert output_ids(tmp_path) == list(range(20))
    assert set(open_store(other.payloads).keys()) == set()


def test_letters_that_are_replayed_while_the_job_runs_are_processed(tmp_path):
    mended = tmp_path / "mended"

    def picky(table):
        if table["id"][0].as_py() == 20 and not mended.exists():
            raise ValueError("twenty")
        return table

    job = threaded(tmp_path, TableSource(splits=5))
    job.stages[0].map(picky, retries=0).sink(sink(tmp_path))

    def mend(stages):
        if stages[1].dead and not mended.exists():
            mended.touch()
            assert job.replay() == 1

    while job.run(on_progress=mend).stage("sink").settled < 5:  # a job that is about to end leaves it to the next run
        mend(job.progress())
    assert output_ids(tmp_path) == list(range(50))
    assert job.dead_letters() == []


# --- what others see


def test_events_and_counters_tell_what_happened(tmp_path):
    def picky(table):
        if table["id"][0].as_py() == 20:
            raise ValueError("twenty")
        return table

    job = threaded(tmp_path, TableSource(splits=3), on_error="fail")
    job.stages[0].map(picky, retries=1).sink(sink(tmp_path))
    with pytest.raises(JobFailedError):
        job.run()
    events = list(read_events(job.state))
    names = [event["event"] for event in events]
    assert names[0] == "job started"
    assert names[-1] == "job failed"
    assert names.count("worker started") == 2
    (retry,) = [event for event in events if event["event"] == "retry"]
    (letter,) = [event for event in events if event["event"] == "dead letter"]
    assert (retry["stage"], retry["split"], retry["attempt"]) == ("picky", "source-b0-p2-s0", 1)
    assert (letter["attempt"], letter["error"]) == (2, "ValueError: twenty")
    progress = read_progress(job.state)
    assert [stage["stage"] for stage in progress["stages"]] == ["source", "picky", "sink"]


def test_events_that_cannot_be_written_stop_nobody(tmp_path):
    job = threaded(tmp_path, IterableSource([pa.table({"id": [1]})]))
    job.stages[0].sink(sink(tmp_path))
    (tmp_path / "state" / "events.jsonl").mkdir(parents=True)
    (tmp_path / "state" / "progress.json").mkdir()
    assert job.run().dead == 0


def test_a_job_that_is_done_leaves_nothing_in_the_queue(tmp_path):
    job = threaded(tmp_path)
    job.stages[0].map(lambda table: table, rebatch_rows=25, name="m").sink(sink(tmp_path), rebatch_rows=40)
    job.run()
    queue = open_queue(job.queue)
    assert (queue.prepared("sink"), queue.live_writers(), queue.backlog().visible_bytes) == ([], set(), 0)
    queue.close()
