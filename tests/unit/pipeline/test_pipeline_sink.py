"""Several sinks, of one job and of others, and the directories that they write to."""

import errno
import os
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pipeline_support import TableSource, make_job, sink, temporary_files

from solstice.errors import ConfigError, SinkError
from solstice.pipeline import Job, ParquetSink, Split, SplitPayload
from solstice.pipeline._queue import Prepared, open_queue
from solstice.pipeline._source_master import SourceContext
from solstice.pipeline._worker import StageWorker, WorkerSpec

TABLE = pa.table({"id": [1, 2, 3]})


class Interrupted(Exception):
    """Ends a worker between two steps."""


class NeverRenames(ParquetSink):
    """Its worker ends after the commit and before the rename."""

    @property
    def directory(self):
        directory = super().directory

        def finish(prepared: Prepared) -> None:
            raise Interrupted

        directory.finish = finish
        return directory


def owned(path: Path, queue: str = "sqlite:///a/queue.db", stage: str = "sink") -> ParquetSink:
    return ParquetSink(path).owned_by(queue, stage)


def written(sink: ParquetSink, split_id: str = "source-b0-p0-s0", attempt: int = 1) -> Prepared:
    return sink.write(Split(split_id, "sink", attempt), SplitPayload.from_arrow(TABLE, split_id))


@pytest.mark.parametrize("path", ["out", "out/", "other/../out", "link"])
def test_two_sinks_of_a_job_with_one_directory_are_refused(tmp_path, path):
    (tmp_path / "other").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "out")
    job = make_job(tmp_path)
    job.stages[0].sink(sink(tmp_path), name="raw")
    with pytest.raises(ConfigError, match=r"'raw' and 'cooked' both write to .*directory of its own"):
        job.stages[0].map(lambda table: table).sink(ParquetSink(f"{tmp_path}/{path}"), name="cooked")
    assert [stage.name for stage in job.stages] == ["source", "raw", "map"]


@pytest.mark.parametrize(
    "other",
    [("sqlite:///b/queue.db", "sink"), ("sqlite:///a/queue.db", "another")],
    ids=["another job", "another stage"],
)
def test_a_sweep_spares_what_another_sink_has_prepared(tmp_path, other):
    ours, theirs = owned(tmp_path / "out"), owned(tmp_path / "out", *other)
    prepared = written(theirs)
    written(ours)
    ours.directory.sweep()
    assert temporary_files(tmp_path) == [Path(prepared.temporary)]
    theirs.directory.finish(prepared)
    assert pq.read_table(prepared.final).equals(TABLE)


def test_a_sweep_leaves_nothing_of_its_own(tmp_path):
    ours = owned(tmp_path / "out")
    written(ours)
    ours.directory.sweep()
    assert list((tmp_path / "out" / "_tmp").iterdir()) == []


def test_a_job_that_runs_in_the_directory_of_a_crashed_one_keeps_its_committed_rows(tmp_path):
    def crashed(kind: type[ParquetSink]) -> Job:
        job = make_job(tmp_path, TableSource(splits=1))
        job.stages[0].sink(kind(tmp_path / "out"))
        return job

    job = crashed(NeverRenames)
    queue = open_queue(job.queue)
    queue.subscribe("source", "sink")
    job.stages[0].work.master(SourceContext(job.name, "source", job.queue, job.payloads, job.state)).read()
    queue.register_writer("w", "sink", 60.0)
    work = job.stages[1].work
    spec = WorkerSpec("sink", "w", ("source",), job.queue, job.payloads, work, lease_s=60.0)
    with pytest.raises(Interrupted):
        StageWorker(spec, threading.Event()).run()
    assert len(queue.prepared("sink")) == 1
    queue.close()

    other = Job("numbers", state=tmp_path / "other")  # even under the same name
    other.source(TableSource(splits=1), name="others").sink(sink(tmp_path))
    other.run()
    crashed(ParquetSink).run()
    names = sorted(path.name.rpartition("-")[0] for path in (tmp_path / "out").glob("*.parquet"))
    assert names == ["others-b0-p0-s0", "source-b0-p0-s0"]


def test_two_jobs_with_splits_of_the_same_names_do_not_touch_each_others_files(tmp_path):
    ours, theirs = owned(tmp_path / "out"), owned(tmp_path / "out", "sqlite:///b/queue.db")
    for each in (ours, theirs):
        each.directory.finish(written(each))
    assert len(list((tmp_path / "out").glob("*.parquet"))) == 2
    ours.remove_output()
    (left,) = (tmp_path / "out").glob("*.parquet")
    theirs.remove_output()
    assert not left.exists()


def test_a_file_of_somebody_else_is_never_replaced(tmp_path):
    ours = owned(tmp_path / "out")
    mine = written(ours)
    other = Path(mine.final)
    other.write_text("theirs")
    with pytest.raises(SinkError, match=r"cannot become .* somebody else .* Move that file away"):
        ours.directory.finish(mine)
    assert other.read_text() == "theirs"
    assert temporary_files(tmp_path) == [Path(mine.temporary)]
    other.rename(tmp_path / "moved")
    ours.directory.finish(mine)
    assert pq.read_table(mine.final).equals(TABLE)


def test_a_crash_in_the_middle_of_the_rename_is_finished(tmp_path):
    ours = owned(tmp_path / "out")
    prepared = written(ours)
    Path(prepared.final).hardlink_to(prepared.temporary)
    for _ in range(2):
        ours.directory.finish(prepared)
        assert temporary_files(tmp_path) == []
        assert pq.read_table(prepared.final).equals(TABLE)


def test_a_file_system_without_hard_links_will_do(tmp_path, monkeypatch):
    real_link = os.link

    def link(source, target):
        real_link(source, target)  # Linux looks for both names before it asks the file system
        os.unlink(target)
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr("os.link", link)
    ours = owned(tmp_path / "out")
    mine, taken = written(ours), written(ours, "source-b0-p1-s0")
    ours.directory.finish(mine)
    ours.directory.finish(mine)
    assert temporary_files(tmp_path) == [Path(taken.temporary)]
    Path(taken.final).write_text("theirs")
    with pytest.raises(SinkError, match="somebody else"):
        ours.directory.finish(taken)


def test_a_file_is_durable_before_it_is_committed_and_its_name_before_the_temporary_one_goes(tmp_path, monkeypatch):
    synced, fsync = [], os.fsync

    def watched(descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        synced.append((path, sorted(os.listdir(path)) if os.path.isdir(path) else os.path.getsize(path)))
        fsync(descriptor)

    sink = owned(tmp_path / "out")
    monkeypatch.setattr(os, "fsync", watched)
    prepared = sink.write(Split("s0", "sink"), SplitPayload.from_arrow(TABLE, "s0"))
    temporary, final = Path(prepared.temporary), Path(prepared.final)
    assert synced[-2:] == [(str(temporary), temporary.stat().st_size), (str(temporary.parent), [temporary.name])]
    synced.clear()
    unlink, gone = Path.unlink, []
    monkeypatch.setattr(
        Path, "unlink", lambda path, **given: (gone.append((path, list(synced))), unlink(path, **given))
    )
    sink.finish(prepared)
    assert gone == [(temporary, [(str(final.parent), sorted([final.name, "_tmp"]))])]
