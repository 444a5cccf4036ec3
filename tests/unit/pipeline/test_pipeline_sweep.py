import os
import shutil
import tracemalloc

import pyarrow as pa
import pytest
from pipeline_support import make_job, output_ids, read_source

from solstice.pipeline import Job, ParquetSink
from solstice.pipeline._message import QueueMessage
from solstice.pipeline._queue import open_queue
from solstice.pipeline._spark_format import OPTIONS, _target
from solstice.pipeline._split_writer import SplitWriter
from solstice.pipeline._store import open_store
from solstice.pipeline._sweep import Deletions, sweep

TABLE = pa.table({"id": range(10)})


@pytest.fixture
def queue(tmp_path):
    queue = open_queue(f"sqlite://{tmp_path}/queue.db")
    yield queue
    queue.close()


@pytest.fixture
def store(tmp_path):
    return open_store(f"file://{tmp_path}/payloads")


def writer(queue, store, partition: int = 0, target_split_bytes: int = 1 << 20) -> SplitWriter:
    return SplitWriter(
        queue,
        store,
        stage="source",
        batch_id="0",
        partition=partition,
        attempt=1,
        target_split_bytes=target_split_bytes,
    )


def test_rows_are_cut_into_splits_of_the_target_size(queue, store):
    with writer(queue, store, partition=4, target_split_bytes=TABLE.nbytes * 2) as attempt:
        attempt.write([TABLE.to_batches()[0]] * 5)
        assert attempt.publish()
    assert [message.num_records for message in attempt.messages] == [20, 20, 10]
    assert [message.split_id for message in attempt.messages] == [f"source-b0-p4-s{n}" for n in range(3)]
    assert [store.get(message.ref).num_records for message in attempt.messages] == [20, 20, 10]
    assert queue.topic_progress("source").produced_records == 50


def test_a_batch_that_is_larger_than_a_split_is_cut(queue, store):
    with writer(queue, store, target_split_bytes=TABLE.nbytes // 2) as attempt:
        attempt.write(TABLE.to_batches())
        attempt.publish()
    assert [message.num_records for message in attempt.messages] == [5, 5]


def test_an_attempt_that_raises_leaves_nothing(queue, store):
    def rows():
        yield TABLE.to_batches()[0]
        raise ValueError("in the middle")

    with pytest.raises(ValueError, match="in the middle"), writer(queue, store, target_split_bytes=1) as attempt:
        attempt.write(rows())
    assert list(store.keys()) == []
    assert queue.live_writers() == set()
    assert queue.topic_progress("source").produced == 0


def test_the_second_attempt_at_a_partition_deletes_its_own_files(queue, store):
    with writer(queue, store) as first:
        first.write(TABLE.to_batches())
        assert first.publish()
    with writer(queue, store) as second:
        second.write(TABLE.to_batches())
        assert not second.publish()
    assert set(store.keys()) == {message.payload_key for message in first.messages}


def test_a_sweep_deletes_orphans_and_nothing_else(queue, store, tmp_path):
    with writer(queue, store, 0) as published:
        published.write(TABLE.to_batches())
        published.publish()
    waiting = writer(queue, store, 1)
    with waiting:
        waiting.write(TABLE.to_batches())
        waiting.hand_over(60.0)
    dead = writer(queue, store, 2)
    queue.register_writer(dead.writer, "source", 0.0)
    dead.write(TABLE.to_batches())
    queue.extend_writer(dead.writer, 0.0)  # its lease has ended
    half = tmp_path / "payloads" / "source" / "unknown" / "x.arrow.tmp"
    half.parent.mkdir()
    half.write_text("half")
    assert sweep(queue, store) == 1
    kept = {message.payload_key for message in published.messages + waiting.messages}
    assert set(store.keys()) == kept
    assert not half.exists()
    assert queue.live_writers() == {waiting.writer}


def test_what_a_killed_spark_was_in_the_middle_of_writing_goes(queue, store, tmp_path):
    """``writer="parquet"``: Spark's own directories lie deeper than payloads do."""
    with writer(queue, store) as published:
        published.write(TABLE.to_batches())
        published.publish()
    for folder in (f"{published.writer}", "killed"):
        half = (
            tmp_path
            / "payloads/source"
            / folder
            / "written/_temporary/0/_temporary/attempt_0/part-00000-x-c000.parquet"
        )
        half.parent.mkdir(parents=True)
        half.write_bytes(b"PAR1")
    assert sweep(queue, store) == 2
    assert set(store.keys()) == {message.payload_key for message in published.messages}
    assert not (tmp_path / "payloads/source/killed").exists()


def test_a_settled_payload_that_cannot_be_deleted_is_left_to_the_sweep(queue, store, monkeypatch, caplog):
    for key in ("source/w/s0", "source/w/s1"):
        store.store(key, TABLE)
    delete = store.delete

    def fails_once(key):
        monkeypatch.setattr(store, "delete", delete)
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(store, "delete", fails_once)
    deletions = Deletions(store, lease_s=30.0)
    deletions.add("source/w/s0")
    deletions.add("source/w/s1")
    deletions.work()
    assert list(store.keys()) == ["source/w/s0"]
    assert "source/w/s0 cannot be deleted" in caplog.text
    sweep(queue, store)
    assert list(store.keys()) == []


def test_a_file_and_its_directory_are_synced_before_the_message_exists(store, monkeypatch):
    synced = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(os.readlink(f"/proc/self/fd/{fd}")), fsync(fd)))
    store.store("source/w/s0", TABLE)
    directory = str(store._root / "source" / "w")
    assert f"{directory}/s0.arrow.tmp" in synced
    assert synced[-1] == directory
    assert str(store._root / "source") in synced


def test_a_publish_that_raises_after_it_has_happened_keeps_its_payloads(queue, store, monkeypatch):
    publish = queue.publish_partition

    def interrupted(*given):
        publish(*given)
        raise KeyboardInterrupt

    def run() -> None:
        with attempt:
            attempt.write(TABLE.to_batches())
            attempt.publish()

    attempt = writer(queue, store)
    monkeypatch.setattr(queue, "publish_partition", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run()
    assert queue.topic_progress("source").produced == 1
    assert set(store.keys()) == {message.payload_key for message in attempt.messages}


@pytest.mark.parametrize("gone", ["source", "source/w"])
def test_a_sweep_goes_on_when_a_writer_discards_its_files_beside_it(queue, store, monkeypatch, tmp_path, gone):
    store.store("source/w/s0", TABLE)
    store.store("other/w/s0", TABLE)
    scandir = os.scandir

    def late(path):
        if str(path) == f"{tmp_path}/payloads/{gone}":
            shutil.rmtree(path, ignore_errors=True)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", late)
    assert sweep(queue, store) == 1
    assert list(store.keys()) == []


def test_a_directory_that_cannot_be_read_is_not_taken_for_garbage(queue, store, monkeypatch):
    with writer(queue, store) as published:
        published.write(TABLE.to_batches())
        published.publish()
    scandir = os.scandir

    def failing(path):
        if str(path).endswith(published.writer):
            raise OSError(5, "Input/output error")
        return scandir(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", failing)
        with pytest.raises(OSError, match="Input/output"):
            sweep(queue, store)
    assert len(list(store.keys())) == 1


def test_a_half_written_payload_goes_although_its_writer_has_others_that_are_needed(queue, store, tmp_path):
    with writer(queue, store) as attempt:
        attempt.write(TABLE.to_batches())
        attempt.publish()
    (needed,) = attempt.messages
    folder = tmp_path / "payloads" / "source" / attempt.writer
    (folder / "another.arrow.tmp").write_bytes(b"half")
    sweep(queue, store)
    assert [path.name for path in folder.iterdir()] == [f"{needed.split_id}.arrow"]


class ManyPayloads:
    """10,000 payloads of 100 writers, and one that nobody announced."""

    survives_deletion = True

    def __init__(self) -> None:
        self.deleted: list[str] = []

    def writers(self):
        return [("source", f"w{number}") for number in range(100)]

    def keys(self, prefix):
        yield from (f"{prefix}/s{number}" for number in range(100))
        if prefix == "source/w7":
            yield f"{prefix}/orphan"

    def delete(self, key):
        self.deleted.append(key)

    def discard_unfinished(self, prefix):
        pass


def test_a_sweep_needs_no_memory_for_the_splits_that_wait(queue):
    payloads = ManyPayloads()
    for stage, name in payloads.writers():
        queue.produce("source", [QueueMessage("m", "s", f"{stage}/{name}/s{n}", {}) for n in range(100)])
    tracemalloc.start()
    try:
        assert sweep(queue, payloads) == 1
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert payloads.deleted == ["source/w7/orphan"]
    assert peak_bytes < 300_000


# --- places that others use too


def test_a_job_touches_nothing_at_its_place_but_its_own_folder(tmp_path):
    place = tmp_path / "data"
    foreign = place / "events" / "2026" / "clicks.csv"
    foreign.parent.mkdir(parents=True)
    foreign.write_text("mine")

    def job(root: str) -> Job:
        job = make_job(tmp_path / root, runner="inprocess", payloads=f"file://{place}?compression=lz4")
        job.stages[0].sink(ParquetSink(tmp_path / root / "out"), retries=0)
        return job

    read_source(job("first"))  # what a job that was stopped has left: it is of the same name, in another queue
    assert job("second").run(fresh=True).dead == 0
    assert job("first").run().dead == 0
    assert output_ids(tmp_path / "first") == output_ids(tmp_path / "second") == list(range(60))
    assert foreign.read_text() == "mine"


def test_a_spark_job_of_somebody_finds_the_folder_of_the_job_it_writes_to(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for queue in (None, "sqlite://queues/one.db", "kafka://host:9092", "kafka://other:9092/corner?partitions=3"):
        for payloads in (None, "file://p", "shm://p", "s3://bucket?region=eu", "ray://host:6379/name"):
            job = Job("clicks", queue=queue, payloads=payloads)
            for given in (payloads, job.payloads):
                options = {"job": "clicks", "stage": "source", "queue": queue, "payloads": given, "payloadBudget": "1"}
                target = _target(OPTIONS.parse({name: value for name, value in options.items() if value is not None}))
                assert (target.queue, target.payloads) == (job.queue, job.payloads)
