"""`solstice run`, `status`, `dlq` and `gc`."""

import contextlib
import json
import linecache
import os
import pty
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from solstice.cli._app import build_app, run
from solstice.pipeline import ExternalSource, Job, ParquetSink, SourceMaster
from solstice.pipeline._message import QueueMessage
from solstice.pipeline._paths import local_path
from solstice.pipeline._queue import open_queue
from solstice.pipeline._source_master import SourceConfig
from solstice.pipeline._spark_source import SparkSource
from solstice.pipeline._split_writer import BATCH_COMMIT_S, SplitWriter
from solstice.pipeline._store import open_store
from waiting import wait_until

JOB = """
from pathlib import Path
import pyarrow as pa
from solstice.pipeline import IterableSource, Job, ParquetSink

job = Job("numbers")
numbers = job.source(IterableSource(lambda: [pa.table({"id": range(n, n + 10)}) for n in range(0, 50, 10)]))

def score(table, ctx):
    if not Path("mended").exists() and table["id"][0].as_py() == 20:
        raise ValueError("twenty")
    return table

numbers.map(score, retries=0).sink(ParquetSink("out"))
if ENDS:
    result = job.run()
"""


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_job(folder: Path, *, ends: bool = False) -> str:
    (folder / "job.py").write_text(JOB.replace("ENDS", str(ends)))
    return "job.py"


def cli(capsys, *arguments: str, code: int = 0) -> str:
    ended = run(build_app(rich_help=False), arguments)
    captured = capsys.readouterr()
    assert ended == code, captured.err
    return captured.out + captured.err


def ids(folder: Path) -> list[int]:
    return sorted(n for path in (folder / "out").glob("*.parquet") for n in pq.read_table(path)["id"].to_pylist())


THREADS = ("--set", "runner=inprocess")


@pytest.mark.parametrize("ends", [True, False])
def test_a_file_is_run_whether_it_runs_its_job_or_not_and_ends_with_a_table(folder, capsys, ends):
    output = cli(capsys, "run", write_job(folder, ends=ends), *THREADS)
    assert len(ids(folder)) == 40
    for word in ("numbers: done", "score", "sink", "dead"):
        assert word in output


def test_functions_of_the_file_reach_worker_processes(folder, capsys):
    cli(capsys, "run", write_job(folder), "-q")
    assert len(ids(folder)) == 40


def test_dead_letters_are_listed_shown_and_replayed_once(folder, capsys):
    file = write_job(folder)
    cli(capsys, "run", file, *THREADS)
    (line,) = cli(capsys, "dlq", "list", "numbers").splitlines()
    assert line.startswith("source-b0-p2-s0  score")
    assert line.endswith("attempt 1  ValueError: twenty")
    (letter,) = json.loads(cli(capsys, "dlq", "list", "numbers", "--json"))
    assert (letter["stage"], letter["records"]) == ("score", 10)
    shown = cli(capsys, "dlq", "show", "numbers", "source-b0-p2-s0", "--rows", "2")
    assert "Traceback" in shown
    assert "{'id': 21}" in shown
    assert "{'id': 22}" not in shown
    assert "is no dead letter" in cli(capsys, "dlq", "replay", "numbers", "nothing", code=1)

    assert "gave 0 splits back" in cli(capsys, "dlq", "replay", "numbers", "--stage", "sink")
    assert "gave 1 splits back" in cli(capsys, "dlq", "replay", "numbers")
    assert "gave 0 splits back" in cli(capsys, "dlq", "replay", "numbers")
    (folder / "mended").touch()
    cli(capsys, "run", file, *THREADS)
    assert ids(folder) == list(range(50))
    assert cli(capsys, "dlq", "list", "numbers") == ""
    assert not list(Path(".solstice/numbers/payloads").rglob("*.arrow"))


def test_status_tells_how_far_jobs_are(folder, capsys):
    assert "no job here" in cli(capsys, "status")
    cli(capsys, "run", write_job(folder), *THREADS)
    text = cli(capsys, "status")
    assert "numbers  does not run" in text
    assert "settled 4 splits, 40 rows" in text
    report = json.loads(cli(capsys, "status", "numbers", "--json"))
    assert report["pid"] is None
    assert [(stage["stage"], stage["dead"], stage["done"]) for stage in report["stages"]] == [
        ("source", 0, True),
        ("score", 1, True),
        ("sink", 0, True),
    ]
    assert "there is no job in" in cli(capsys, "status", "other", code=1)
    path = folder / ".solstice" / "numbers" / "progress.json"  # as a process leaves it that is killed
    path.write_text(path.read_text().replace('"workers": 0', '"workers": 7'))
    assert '"workers": 7' in path.read_text()
    assert "; 7 workers" not in cli(capsys, "status")


def test_status_names_the_process_of_a_job_that_runs(folder, capsys):
    job = Job("numbers", runner="inprocess")
    numbers = job.source(ExternalSource())
    numbers.sink(ParquetSink("out"))
    runner = threading.Thread(target=job.run)
    runner.start()
    try:
        wait_until(lambda: Path(".solstice/numbers/progress.json").exists(), "counters")
        assert json.loads(cli(capsys, "status", "numbers", "--json"))["pid"] == os.getpid()
        assert f"numbers  runs in process {os.getpid()}" in cli(capsys, "status")
        # What handed over has not made visible it still may.
        open_queue(job.queue).register_writer("waits", "sink", 60.0)
        payload = local_path(job.payloads) / "sink" / "waits" / "x.arrow"
        payload.parent.mkdir(parents=True)
        payload.touch()
        assert "removed 0 payloads" in cli(capsys, "gc", "numbers")
    finally:
        job.stop()
        runner.join()


def test_gc_removes_what_a_killed_driver_was_to_make_visible(folder, capsys):
    """``visibility="job"``: the leases of what tasks have handed over outlast the driver by far."""
    cli(capsys, "run", write_job(folder), *THREADS)
    job = Job("numbers")
    queue, store = open_queue(job.queue), open_store(job.payloads)
    with SplitWriter(
        queue, store, stage="source", batch_id="1", partition=0, attempt=1, target_split_bytes=1000
    ) as writer:
        writer.write(pa.table({"id": [1]}).to_batches())
        writer.hand_over(BATCH_COMMIT_S)
    assert "removed 1 payloads" in cli(capsys, "gc", "numbers")
    assert queue.live_writers() == set()
    queue.close()


def test_gc_leaves_what_others_may_still_make_visible(folder, capsys):
    job = Job("numbers", runner="inprocess")
    job.source(ExternalSource()).sink(ParquetSink("out"))
    threading.Timer(1.0, job.stop).start()
    job.run()
    queue = open_queue(job.queue)
    queue.register_writer("others", "source", 60.0)
    cli(capsys, "gc", "numbers")
    assert queue.live_writers() == {"others"}
    queue.close()


class References(SourceConfig):
    """Splits as the first Spark source announces them: the message has no payload, its metadata lead to one."""

    def master(self, context):
        return ReferencesMaster(context)

    def source(self, payloads):
        return SparkSource(payloads)


class ReferencesMaster(SourceMaster):
    def read(self) -> None:
        ref = open_store(self.context.payloads).store("source/w/s0", pa.table({"id": [42]}))
        metadata = {"stored_key": ref.key, "uri": ref.uri, "bytes": ref.bytes, "checksum": ref.checksum}
        with contextlib.closing(open_queue(self.context.queue)) as queue:
            queue.produce("source", [QueueMessage("source_0", "source-b0-p0-s0", "", metadata | {"num_records": 1})])
            queue.end("source")


def test_the_rows_of_a_letter_that_was_announced_by_reference_are_shown(folder, capsys):
    def refuse(table):
        raise ValueError("no")

    job = Job("numbers", runner="inprocess")
    job.source(References()).map(refuse, retries=0)
    assert job.run().dead == 1
    shown = cli(capsys, "dlq", "show", "numbers", "source-b0-p0-s0")
    assert "{'id': 42}" in shown
    assert "payload: source/w/s0" in shown


def test_gc_removes_what_nobody_will_ask_for(folder, capsys):
    cli(capsys, "run", write_job(folder), *THREADS)
    payloads = local_path(Job("numbers").payloads)
    (kept,) = payloads.rglob("*.arrow")
    orphan = payloads / "score" / "gone" / "x.arrow"
    orphan.parent.mkdir(parents=True)
    orphan.write_bytes(b"")
    assert "removed 1 payloads" in cli(capsys, "gc", "numbers")
    assert kept.exists()
    assert not orphan.exists()


def test_fresh_starts_over_and_leaves_foreign_files_alone(folder, capsys):
    file = write_job(folder)
    cli(capsys, "run", file, *THREADS)
    (folder / "out" / "foreign.parquet").write_text("mine")
    before = {path.name: path.stat().st_ino for path in (folder / "out").glob("source*")}
    cli(capsys, "run", file, *THREADS, "--fresh")
    after = {path.name: path.stat().st_ino for path in (folder / "out").glob("source*")}
    assert before.keys() == after.keys()
    assert (folder / "out" / "foreign.parquet").read_text() == "mine"
    (folder / "out" / "foreign.parquet").unlink()
    assert len(ids(folder)) == 40
    assert len(cli(capsys, "dlq", "list", "numbers").splitlines()) == 1


def test_what_is_set_beats_what_the_file_says(folder, capsys):
    file = write_job(folder)
    settings = ("--set", "state=elsewhere", "--set", "score.retries=2", "--set", "sink.workers=1,2")
    cli(capsys, "run", file, *THREADS, *settings)
    assert not (folder / ".solstice").exists()
    (line,) = cli(capsys, "dlq", "list", "numbers", "--state", "elsewhere").splitlines()
    assert "attempt 3" in line
    assert "stopped: 1 splits failed" in cli(
        capsys, "run", file, *THREADS, "--set", "on_error=fail", "--set", "state=third", code=1
    )


def test_a_terminal_shows_a_bar_per_stage_with_rate_lag_workers_and_time_left(folder):
    write_job(folder)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", "import sys; from solstice.cli import main; sys.exit(main())", "run", "job.py"]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "160"}
    with subprocess.Popen([*command, *THREADS], stdin=theirs, stdout=theirs, stderr=theirs, env=environment):
        os.close(theirs)
        seen = b""
        while True:
            try:
                seen += os.read(ours, 65536)
            except OSError:  # how Linux tells that the other side is closed
                break
    os.close(ours)
    for word in (b"score", b"rows/s", b"waiting", b"workers", b"4/4", b"0:00:00", b"numbers: done"):
        assert word in seen


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("runner", "Write it as key=value"),
        ("colour=red", "a job has no option 'colour'"),
        ("score.colour=red", "a stage has no option 'colour'"),
        ("score.workers=many", "is no number"),
        ("lease_s=long", "is no number"),
        ("runner=cloud", "'local', 'inprocess' or 'ray'"),
        ("scroe.workers=2", "has no stage 'scroe'"),
    ],
)
def test_a_wrong_setting_is_one_clear_line(folder, capsys, setting, message):
    assert message in cli(capsys, "run", write_job(folder), "--set", setting, code=1)


def test_a_wrong_file_is_one_clear_line(folder, capsys):
    assert "there is no file" in cli(capsys, "run", "missing.py", code=1)
    (folder / "empty.py").write_text("")
    assert "makes no Job" in cli(capsys, "run", "empty.py", code=1)


CLASS_JOB = """
import pyarrow as pa
from solstice.pipeline import FunctionSink, IterableSource, Job, Operator

class Score(Operator):
    def process_split(self, split, payload):
        return payload  # VERSION

Job("numbers").source(IterableSource([pa.table({"id": [1]})])).map(Score()).sink(FunctionSink(len))
"""


def test_changed_code_of_a_class_is_said_also_when_the_file_leaves_the_running_to_the_command(folder, capsys, caplog):
    for version, told in (("1", False), ("1", False), ("2", True)):
        (folder / "job.py").write_text(CLASS_JOB.replace("VERSION", version))
        linecache.checkcache()
        caplog.clear()
        cli(capsys, "run", "job.py", *THREADS)
        assert ("the code of stage Score has changed" in caplog.text) is told
