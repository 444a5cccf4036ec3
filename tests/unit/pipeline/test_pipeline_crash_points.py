"""A worker that dies, as by kill -9, at each point of the protocol; then the job runs again on the same state."""

import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pipeline_support import TableSource, make_job, output_ids, sink, temporary_files

from solstice.errors import SinkError
from solstice.pipeline import IterableSource
from solstice.pipeline._faults import POINTS
from solstice.pipeline._queue import open_queue

# A sink's worker without a master, so that nobody is there to clean up after it.
ALONE = """
import os, sys, threading
sys.path.insert(0, {support!r})
from pathlib import Path
from pipeline_support import TableSource, make_job, sink
from solstice.pipeline._queue import open_queue
from solstice.pipeline._source_master import SourceContext
from solstice.pipeline._worker import StageWorker, WorkerSpec
root = Path({root!r})
job = make_job(root, TableSource(splits=3))
work = job.stages[0].sink(sink(root)).work
queue = open_queue(job.queue)
queue.subscribe("source", "sink")
job.stages[0].work.master(SourceContext(job.name, "source", job.queue, job.payloads, job.state)).read()
queue.register_writer("lonely", "sink", 600.0)
spec = WorkerSpec("sink", "lonely", ("source",), job.queue, job.payloads, work, lease_s=600.0)
StageWorker(spec, threading.Event()).run()
"""


def crash_at(point: str, root: Path) -> None:
    marker = root / "crashed"
    result = subprocess.run(
        [sys.executable, "-c", ALONE.format(support=str(Path(__file__).parent), root=str(root))],
        env={"SOLSTICE_FAULTS": f"{point}={marker}", "PYTHONPATH": ":".join(filter(None, sys.path))},
        timeout=60,
    )
    assert result.returncode == -signal.SIGKILL
    assert marker.exists()


def resume(root: Path):
    job = make_job(root, TableSource(splits=3))
    job.stages[0].sink(sink(root))
    return job


@pytest.mark.parametrize("point", POINTS)
def test_a_sink_recovers_from_a_crash_at_each_point(tmp_path, point):
    crash_at(point, tmp_path)
    job = resume(tmp_path)
    result = job.run()
    assert output_ids(tmp_path) == list(range(30))
    assert (result.stage("sink").settled, result.dead) == (3, 0)
    assert temporary_files(tmp_path) == []
    queue = open_queue(job.queue)
    assert queue.prepared("sink") == []
    queue.close()


def test_the_master_recovers_from_crashes_at_all_points_while_the_job_goes_on(tmp_path, monkeypatch):
    monkeypatch.setenv("SOLSTICE_FAULTS", ",".join(f"{point}={tmp_path}/{point}" for point in POINTS))
    job = resume(tmp_path)
    result = job.run()
    assert all((tmp_path / point).exists() for point in POINTS)
    assert output_ids(tmp_path) == list(range(30))
    assert (result.stage("sink").settled, result.dead) == (3, 0)
    assert temporary_files(tmp_path) == []


def test_a_committed_file_that_was_deleted_stops_the_job_loudly(tmp_path):
    crash_at("sink.prepared", tmp_path)
    (temporary,) = temporary_files(tmp_path)
    temporary.unlink()
    with pytest.raises(SinkError, match="its rows are nowhere else"):
        resume(tmp_path).run()


def test_a_renamed_file_that_is_still_recorded_is_only_marked(tmp_path):
    crash_at("sink.renamed", tmp_path)
    (final,) = (tmp_path / "out").glob("*.parquet")
    before = final.stat().st_ino
    resume(tmp_path).run()
    assert final.stat().st_ino == before


def test_a_map_worker_that_dies_after_storing_leaves_no_orphan(tmp_path, monkeypatch):
    monkeypatch.setenv("SOLSTICE_FAULTS", f"worker.stored={tmp_path}/crashed")
    job = make_job(tmp_path)
    job.stages[0].map(lambda table: table).sink(sink(tmp_path))
    job.run()
    assert (tmp_path / "crashed").exists()
    assert output_ids(tmp_path) == list(range(60))
    assert not list((job.state / "payloads").rglob("*.arrow*"))


def test_crashes_at_all_points_lose_and_double_nothing_where_splits_are_united_and_put_together(tmp_path, monkeypatch):
    monkeypatch.setenv("SOLSTICE_FAULTS", ",".join(f"{point}={tmp_path}/{point}" for point in POINTS))
    job = make_job(tmp_path, TableSource(splits=8))
    more = [pa.table({"id": range(n, n + 10)}) for n in range(1000, 1080, 10)]
    other = job.source(IterableSource(more), name="other")
    both = job.stages[0].union(other).map(lambda table: table, name="both", rebatch_rows=25, workers=2)
    both.sink(sink(tmp_path), rebatch_rows=40)
    result = job.run()
    assert all((tmp_path / point).exists() for point in POINTS)
    assert output_ids(tmp_path) == [*range(80), *range(1000, 1080)]
    assert (result.stage("both").settled, result.dead) == (16, 0)
    assert temporary_files(tmp_path) == []
    assert not list((job.state / "payloads").rglob("*.arrow*"))
