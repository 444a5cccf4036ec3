"""The sources and sinks that need no Spark."""

import json
import threading
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from pipeline_support import TableSource, make_job, output_ids, sink
from pyarrow import fs

from object_store import s3_bucket
from solstice.errors import ConfigError, PlanChangedError, SinkError
from solstice.pipeline import (
    ArrowSink,
    FileSource,
    FunctionSink,
    IterableSource,
    JsonSink,
    ParquetSink,
    PrintSink,
    PubSubSink,
    PubSubSource,
    Sink,
    Split,
    SplitPayload,
    committed_files,
)
from solstice.pipeline._iterable_source import PartitionedSourceMaster
from solstice.pipeline._object_output import CommittingBucket
from solstice.pipeline._store import open_store
from solstice.testing import PubSubEmulator
from waiting import wait_until


def threaded(root: Path, source=None, **options):
    return make_job(root, source, runner="inprocess", **options)


# --- files


def test_arrow_files_hold_every_row_once(tmp_path):
    job = threaded(tmp_path)
    job.stages[0].sink(ArrowSink(tmp_path / "out", compression="zstd"))
    job.run()
    files = list((tmp_path / "out").glob("*.arrow"))
    assert sorted(n for path in files for n in pa.ipc.open_file(path).read_all()["id"].to_pylist()) == list(range(60))


def test_json_files_have_an_object_a_line(tmp_path):
    from datetime import datetime, timedelta
    from decimal import Decimal

    row = {
        "text": "ä\n",
        "number": 1.5,
        "at": datetime(2026, 1, 2, 3, 4, 5),
        "raw": b"\x00\xff",
        "price": Decimal("1.10"),
        "took": timedelta(seconds=1.5),
        "list": [1, None],
        "nothing": None,
        "inner": {"none": [float("nan")], "most": float("inf"), "least": -float("inf")},
    }
    job = threaded(tmp_path, IterableSource([row]))
    job.stages[0].sink(JsonSink(tmp_path / "out"))
    assert job.run().dead == 0
    (path,) = (tmp_path / "out").glob("*.jsonl")
    (line,) = path.read_text().splitlines()
    assert json.loads(line, parse_constant=pytest.fail) == row | {
        "at": "2026-01-02T03:04:05",
        "raw": "AP8=",
        "price": "1.10",
        "took": 1.5,
        "inner": {"none": ["NaN"], "most": "Infinity", "least": "-Infinity"},
    }


@pytest.fixture
def bucket():
    with s3_bucket() as location:
        url = location % "out"
        yield url, fs.FileSystem.from_uri(url)[0]


def test_an_object_store_has_every_row_once_in_what_the_manifest_names(tmp_path, bucket, monkeypatch):
    url, files = bucket

    def job(**options):
        job = threaded(tmp_path, **options)
        job.stages[0].sink(ParquetSink(url), retries=5)
        return job

    with monkeypatch.context() as broken:

        def die(self, prepared):
            raise OSError("the worker dies between the commit and the manifest")

        broken.setattr(CommittingBucket, "finish", die)
        with pytest.raises(OSError, match="the worker dies"):
            job().run()
    assert committed_files(url) == []
    with files.open_output_stream("bucket/out/foreign.parquet") as stream:
        stream.write(b"not ours")
    orphan = (
        job()
        .stages[1]
        .work.write(Split("source-b0-p0-s0", "sink", 99), SplitPayload.from_arrow(pa.table({"id": [1]}), "s"))
    )
    assert job().run().dead == 0
    names = committed_files(url)
    tables = [pq.read_table(name, filesystem=files) for name in names]
    assert sorted(pa.concat_tables(tables)["id"].to_pylist()) == list(range(60))
    objects = {info.path for info in files.get_file_info(fs.FileSelector("bucket/out")) if info.is_file}
    assert objects == {*names, "bucket/out/foreign.parquet"}
    assert orphan.temporary not in objects

    job().run(fresh=True)
    assert len(committed_files(url)) == 6
    job().stages[1].work.remove_output()
    assert [info.path for info in files.get_file_info(fs.FileSelector("bucket/out")) if info.is_file] == [
        "bucket/out/foreign.parquet"
    ]


def test_an_object_that_was_deleted_before_it_was_finished_is_said_loudly(tmp_path, bucket):
    url, files = bucket
    work = ParquetSink(url).owned_by("queue", "sink")
    prepared = work.write(Split("s0", "sink"), SplitPayload.from_arrow(pa.table({"id": [1]}), "s0"))
    files.delete_file(prepared.temporary)
    with pytest.raises(SinkError, match="its rows are nowhere else"):
        work.finish(prepared)


def test_a_url_that_nobody_knows_is_said(tmp_path):
    job = threaded(tmp_path, TableSource(splits=1))
    job.stages[0].sink(ParquetSink("s3:///"))
    with pytest.raises(SinkError, match="s3://bucket/prefix"):
        job.run()


# --- functions


def test_a_function_gets_every_split(tmp_path):
    seen = []

    async def collect(row: dict, ctx) -> None:
        seen.append((ctx.split_id, ctx.row, row["id"]))

    job = threaded(tmp_path, TableSource(splits=2, rows=3))
    job.stages[0].sink(FunctionSink(collect))
    job.run()
    assert sorted(seen) == [(f"source-b0-p{n // 3}-s0", n % 3, n) for n in range(6)]


def test_a_function_that_raises_fails_its_split(tmp_path):
    def refuse(table):
        raise OSError("no")

    job = threaded(tmp_path, TableSource(splits=2))
    job.stages[0].sink(FunctionSink(refuse), retries=1)
    assert job.run().dead == 2
    assert job.dead_letters()[0].error == "OSError: no"


def test_the_first_rows_are_printed(tmp_path, capsys):
    job = threaded(tmp_path, TableSource(splits=1, rows=5))
    job.stages[0].sink(PrintSink(rows=2))
    job.run()
    assert capsys.readouterr().out == "source-b0-p0-s0: 5 rows\n  {'id': 0}\n  {'id': 1}\n"


def test_what_is_no_sink_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="is not a sink"):
        make_job(tmp_path).stages[0].sink("out/")
    assert issubclass(ParquetSink, Sink)


# --- iterables and files as sources


def test_rows_and_tables_of_an_iterable_are_processed_and_only_the_missing_ones_again(tmp_path):
    given = []

    def items():
        for n in range(0, 40, 10):
            given.append(n)
            yield pa.table({"id": range(n, n + 10)})

    def job(stop_at=None):
        def work(table):
            if table["id"][0].as_py() == stop_at:
                raise ValueError("stop")
            return table

        job = threaded(tmp_path, IterableSource(items))
        job.stages[0].map(work, retries=0, on_error="fail").sink(sink(tmp_path))
        return job

    with pytest.raises(Exception, match="stop"):
        job(stop_at=20).run()
    again = job()
    again.replay()
    result = again.run()
    assert output_ids(tmp_path) == list(range(40))
    assert result.stage("source").produced == 4
    assert len(given) > 4  # it was iterated again, and what was visible skipped


@pytest.mark.parametrize("kind", [IterableSource, FileSource])
def test_a_source_that_was_interrupted_writes_only_what_is_missing(tmp_path, monkeypatch, kind):
    tables = [pa.table({"id": range(n, n + 10)}) for n in range(0, 40, 10)]
    pq.write_table(pa.concat_tables(tables), tmp_path / "in.parquet", row_group_size=10)
    write, written = PartitionedSourceMaster.write_partition, []

    def interrupted(self, partition, batches):
        if len(written) == 2:
            raise OSError("interrupted")
        written.append(partition)
        write(self, partition, batches)

    def job():
        job = threaded(tmp_path, kind(tables if kind is IterableSource else tmp_path / "in.parquet"))
        job.stages[0].sink(sink(tmp_path))
        return job

    with monkeypatch.context() as patch:
        patch.setattr(PartitionedSourceMaster, "write_partition", interrupted)
        with pytest.raises(OSError, match="interrupted"):
            job().run()
        assert written == [0, 1]
        written.clear()
        assert job().run().dead == 0
        assert written == [2, 3]
    assert output_ids(tmp_path) == list(range(40))


def rows(count: int):
    return [{"id": n} for n in range(count)]


def test_rows_that_are_cut_in_another_way_are_refused_when_a_job_resumes(tmp_path):
    """Partitions are skipped by their number: those of another size would be other rows."""

    def some():
        yield from rows(30)
        raise OSError("the source breaks")

    def run(items, rows_per_split: int):
        job = threaded(tmp_path, IterableSource(items, rows_per_split=rows_per_split))
        job.stages[0].sink(sink(tmp_path))
        return job.run()

    with pytest.raises(OSError, match="the source breaks"):
        run(some, 10)
    with pytest.raises(PlanChangedError, match=r"'20 rows a split'.* Restore the rows; or start over with fresh=True"):
        run(rows(60), 20)
    assert run(rows(60), 10).dead == 0
    assert output_ids(tmp_path) == list(range(60))


@pytest.mark.parametrize("rows_per_split", [10, 1000], ids=["some visible", "nothing visible"])
def test_an_iterator_that_was_begun_is_refused(tmp_path, rows_per_split):
    def some():
        yield from rows(30)
        raise OSError("the source breaks")

    half_read = IterableSource(some(), rows_per_split=rows_per_split)

    def job(source):
        job = threaded(tmp_path, source)
        job.stages[0].sink(sink(tmp_path))
        return job

    with pytest.raises(OSError, match="the source breaks"):
        job(half_read).run()
    for fresh in (False, True):
        with pytest.raises(PlanChangedError, match=r"generator .* cannot be read again.* Pass a function"):
            job(half_read).run(fresh=fresh)
    assert job(IterableSource(lambda: iter(rows(60)), rows_per_split=rows_per_split)).run().dead == 0
    assert output_ids(tmp_path) == list(range(60))


def test_a_finished_job_of_an_iterator_may_run_again(tmp_path):
    for _ in range(2):
        job = threaded(tmp_path, IterableSource(iter(rows(20)), rows_per_split=10))
        job.stages[0].sink(sink(tmp_path))
        assert job.run().stage("sink").settled == 2
    assert output_ids(tmp_path) == list(range(20))


def test_an_iterable_of_something_else_is_refused(tmp_path):
    job = threaded(tmp_path, IterableSource([1, 2]))
    job.stages[0].sink(sink(tmp_path))
    with pytest.raises(ConfigError, match="gave a int"):
        job.run()


@pytest.mark.parametrize("kind", ["parquet", "arrow", "csv", "json"])
def test_files_are_read_and_cut_by_size(tmp_path, kind):
    folder = tmp_path / "in"
    folder.mkdir()
    for n in range(3):
        table = pa.table({"id": range(n * 1000, (n + 1) * 1000), "x": ["text"] * 1000})
        path = folder / f"{n}.{kind}"
        match kind:
            case "parquet":
                pq.write_table(table, path, row_group_size=400)
            case "arrow":
                pa.feather.write_feather(table, path)
            case "csv":
                pa.csv.write_csv(table, path)
            case "json":
                path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    job = threaded(tmp_path, FileSource(folder, format=kind, columns=["id"], target_split_bytes=4000))
    job.stages[0].sink(sink(tmp_path))
    result = job.run()
    assert output_ids(tmp_path) == list(range(3000))
    assert result.stage("source").produced >= 6
    assert set(open_store(job.payloads).keys()) == set()


def test_files_that_changed_are_refused_when_a_job_resumes(tmp_path):
    pq.write_table(pa.table({"id": range(10)}), tmp_path / "a.parquet")

    def job():
        job = threaded(tmp_path, FileSource([tmp_path / "a.parquet"]))
        job.stages[0].sink(sink(tmp_path))
        return job

    job().run()
    assert job().run().stage("sink").settled == 1
    pq.write_table(pa.table({"id": range(20)}), tmp_path / "a.parquet")
    with pytest.raises(PlanChangedError, match="fresh=True"):
        job().run()
    assert job().run(fresh=True).stage("sink").settled_records == 20
    assert output_ids(tmp_path) == list(range(20))


@pytest.mark.parametrize(("path", "message"), [("missing", "cannot be read as parquet"), ("empty", "no files")])
def test_files_that_are_not_there_are_said(tmp_path, path, message):
    (tmp_path / "empty").mkdir()
    job = threaded(tmp_path, FileSource(tmp_path / path))
    job.stages[0].sink(sink(tmp_path))
    with pytest.raises(ConfigError, match=message):
        job.run()


# --- Pub/Sub


@pytest.fixture
def emulator(monkeypatch):
    with PubSubEmulator() as emulator:
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", emulator.address)
        for name in ("events", "results"):
            emulator.create_topic(f"projects/p/topics/{name}")
            emulator.create_subscription(f"projects/p/subscriptions/{name}", f"projects/p/topics/{name}")
        yield emulator


def pulled(count: int) -> list[dict]:
    from solstice.pubsub import pull

    rows = []
    with pull("projects/p/subscriptions/results", idle_s=10) as puller:
        for batch in puller:
            rows += batch.rows.to_pylist()
            batch.ack()
            if len(rows) >= count:
                break
    return rows


def test_messages_go_from_a_subscription_to_a_topic_and_each_is_acknowledged(tmp_path, emulator):
    from solstice.pubsub import publish

    publish("projects/p/topics/events", pa.table({"data": [f"m{n}" for n in range(500)]}))
    job = threaded(tmp_path, PubSubSource("projects/p/subscriptions/events", linger_s=0.1))
    job.stages[0].map(lambda table: table.select(["data", "attributes"]), name="m").sink(
        PubSubSink("projects/p/topics/results")
    )
    runner = threading.Thread(target=job.run)
    runner.start()
    try:
        wait_until(lambda: job.progress()[-1].settled_records >= 500, "messages in the topic")
    finally:
        job.stop()
        runner.join()
    rows = pulled(500)
    assert sorted(row["data"].decode() for row in rows) == sorted(f"m{n}" for n in range(500))
    ids = [dict(row["attributes"])["solstice-id"] for row in rows]
    assert len(set(ids)) == 500
    job = threaded(tmp_path / "again", PubSubSource("projects/p/subscriptions/events", idle_s=0.5))
    job.stages[0].sink(sink(tmp_path))
    assert job.run().stage("source").produced_records == 0  # all were acknowledged


def test_a_split_that_is_published_again_has_the_same_ids(tmp_path, emulator):
    attributes = pa.array([[("k", "v")], None], pa.map_(pa.string(), pa.string()))
    table = pa.table({"data": ["a", "b"], "attributes": attributes})
    work = PubSubSink("projects/p/topics/results")
    work.setup()
    for _ in range(2):
        work.write(Split("s0", "sink"), SplitPayload.from_arrow(table, "s0"))
    work.teardown()
    rows = pulled(4)
    assert Counter(dict(row["attributes"])["solstice-id"] for row in rows) == {"s0/0": 2, "s0/1": 2}
    assert {dict(row["attributes"]).get("k") for row in rows if row["data"] == b"a"} == {"v"}


def test_a_refused_split_does_not_spoil_the_next(tmp_path, emulator):
    work = PubSubSink("projects/p/topics/results")
    good, bad = pa.table({"data": ["a"]}), pa.table({"other": [1]})
    for table, fails in ((bad, True), (good, False)):
        payload = SplitPayload.from_arrow(table, "s0")
        if fails:
            with pytest.raises(Exception, match="other"):
                work.write(Split("s0", "sink"), payload)
        else:
            work.write(Split("s0", "sink"), payload)
    assert len(pulled(1)) == 1


def test_what_is_not_visible_is_not_acknowledged(tmp_path, emulator, monkeypatch):
    from solstice.pipeline._sqlite_queue import SqliteQueue
    from solstice.pubsub import publish

    publish("projects/p/topics/events", pa.table({"data": ["a", "b"]}))

    def job():
        job = threaded(tmp_path, PubSubSource("projects/p/subscriptions/events", linger_s=0.0, idle_s=3.0))
        job.stages[0].sink(sink(tmp_path))
        return job

    with monkeypatch.context() as broken:

        def fail(*ignored):
            raise OSError("disk full")

        broken.setattr(SqliteQueue, "publish_stream_batch", fail)
        with pytest.raises(OSError, match="disk full"):
            job().run()
    assert job().run().stage("sink").settled_records == 2
