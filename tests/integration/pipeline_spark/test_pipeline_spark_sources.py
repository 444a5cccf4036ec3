"""Both Spark sources and all their ways to write: the same rows, visible when they promise to be, computed once."""

import contextlib
import time
from pathlib import Path

import pyarrow as pa
import pytest

from solstice.errors import ConfigError, PlanChangedError, UnsupportedTypeError
from solstice.pipeline import Job, ParquetSink, SparkSourceConfig, SparkSourceV2Config, Split
from solstice.pipeline._queue import open_consumer, open_queue
from solstice.pipeline._source_master import SourceContext
from solstice.pipeline._store import open_store
from solstice.pipeline._sweep import sweep

pytestmark = pytest.mark.spark

WAYS = {
    "V1": (SparkSourceConfig, {}),
    "V2 task": (SparkSourceV2Config, {}),
    "V2 job": (SparkSourceV2Config, {"visibility": "job"}),
    "V2 parquet": (SparkSourceV2Config, {"writer": "parquet"}),
}

TYPES = """
    id,
    CAST(id % 2 AS BOOLEAN) AS yes,
    CAST(id AS TINYINT) AS tiny, CAST(id AS SMALLINT) AS small, CAST(id AS INT) AS whole,
    CAST(id AS FLOAT) / 3 AS float, CAST(id AS DOUBLE) / 3 AS double,
    CAST(id AS DECIMAL(9, 2)) AS dec9, CAST(id AS DECIMAL(18, 4)) AS dec18, CAST(id AS DECIMAL(38, 10)) AS dec38,
    IF(id % 3 = 0, NULL, concat('tekst ☃ ', id)) AS text, CAST('x' AS STRING COLLATE UNICODE_CI) AS collated,
    CAST(concat('b', id) AS BINARY) AS bytes,
    date'2024-02-29' + CAST(id AS INT) AS day, date'1500-01-01' AS old_day,
    timestamp'2024-02-29 12:30:15.123456' AS moment, timestamp'1500-01-01 00:00:00' AS old_moment,
    timestamp_ntz'2024-02-29 12:30:15.123456' AS local_moment,
    CAST(id AS CHAR(5)) AS char, CAST(id AS VARCHAR(9)) AS varchar,
    INTERVAL '5 04:03:02.000001' DAY TO SECOND AS span, INTERVAL '5' HOUR AS hours,
    array(1, NULL, id) AS list, array(array('x', NULL)) AS lists, map('k', id, 'n', NULL) AS map,
    named_struct('s', CAST(1 AS SMALLINT), 'at', timestamp'2024-02-29 12:30:15') AS struct,
    named_struct('deep', array(map(1, date'2024-01-01', 2, NULL))) AS deep
"""
# Spark has no parquet for these, or one that only Spark can read.
ARROW_ONLY = """
    id, time'12:30:15.123456' AS clock,
    make_interval(1, 2, 3, 4) AS calendar_interval, CAST(NULL AS VOID) AS nothing, array() AS no_elements,
    array(make_interval(CAST(id AS INT))) AS intervals, parse_json(concat('{"a": [', id, ', "x"]}')) AS json
"""


def context(root: Path, **fields) -> SourceContext:
    return SourceContext("numbers", "source", f"sqlite://{root}/queue.db", f"file://{root}/payloads", root, **fields)


def run_source(config, place: SourceContext) -> None:
    master = config.master(place)
    with contextlib.closing(open_queue(master.context.queue)) as queue:
        queue.subscribe("source", "workers")
    master.start()
    master.join(120.0)
    if master._error is not None:
        raise master._error
    assert master.over


def read_as_a_worker(root: Path, config) -> list[pa.Table]:
    """Every split, read as a worker would."""
    place, tables = context(root), []
    source, store = config.source(place.payloads), open_store(place.payloads)
    with contextlib.closing(open_queue(place.queue)) as queue:
        queue.register_writer("w", "workers", 60.0)
    with contextlib.closing(open_consumer(place.queue, "source", "workers", "w", retries=0, lease_s=60.0)) as consumer:
        delivery = consumer.take()
        while delivery is not None:
            message = delivery.message
            assert (message.payload_key == "") == (source is not None)
            split = Split(message.split_id, "workers", delivery.attempt, message.metadata)
            payload = store.get(message.ref) if source is None else source.read(split)
            assert payload.num_records == message.num_records > 0
            tables.append(payload.to_arrow())
            delivery = consumer.settle(delivery).next
    return tables


@pytest.fixture
def with_char_and_varchar(spark):
    """Else Spark makes strings of them when it reads the query."""
    spark.conf.set("spark.sql.preserveCharVarcharTypeInfo", "true")
    yield
    spark.conf.unset("spark.sql.preserveCharVarcharTypeInfo")


@pytest.mark.parametrize(
    ("columns", "ways"), [(TYPES, list(WAYS)), (ARROW_ONLY, [way for way in WAYS if way != "V2 parquet"])]
)
@pytest.mark.usefixtures("with_char_and_varchar")
def test_all_ways_give_the_same_rows_of_all_types(spark, tmp_path, columns, ways):
    found = {}
    for way in ways:
        kind, fields = WAYS[way]
        root = tmp_path / way.replace(" ", "-")
        root.mkdir()
        config = kind(
            dataframe_fn=lambda session: session.range(0, 40, 1, 2).selectExpr(*columns_of(columns)),
            target_split_bytes=300,
            **fields,
        )
        run_source(config, context(root))
        tables = read_as_a_worker(root, config)
        assert len(tables) > 2, way
        found[way] = pa.concat_tables(tables).sort_by("id")
    first = found.pop("V1")
    assert first["id"].to_pylist() == list(range(40))
    for way, table in found.items():
        assert table.schema.remove_metadata() == first.schema.remove_metadata(), way
        assert table.to_pylist() == first.to_pylist(), way


def columns_of(text: str) -> list[str]:
    """The expressions of a list, which have commas inside brackets and quotes too."""
    parts, depth, quoted = [""], 0, False
    for character in text:
        quoted ^= character == "'"
        depth += 0 if quoted else {"(": 1, ")": -1}.get(character, 0)
        if character == "," and depth == 0 and not quoted:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


@pytest.mark.parametrize("kind", [SparkSourceConfig, SparkSourceV2Config])
def test_a_type_that_arrow_has_not_is_refused_with_its_column(spark, tmp_path, kind):
    config = kind(dataframe_fn=lambda session: session.sql("SELECT INTERVAL '1' YEAR AS span"))
    with pytest.raises(UnsupportedTypeError, match=r"span.*interval year"):
        run_source(config, context(tmp_path))
    with pytest.raises(Exception, match=r"span.*interval year"):
        spark.sql("SELECT INTERVAL '1' YEAR AS span").write.format("solstice").mode("append").options(
            job="a", stage="b", queue=context(tmp_path).queue
        ).save()


def by_attempt(marks: Path, fail: bool):
    """4 partitions whose rows differ in each attempt; the first attempt at one fails after it has given them."""

    def compute(batches):
        from pyspark import TaskContext

        task = TaskContext.get()
        (marks / f"{task.partitionId()}-{task.attemptNumber()}-{time.monotonic_ns()}").touch()
        for batch in batches:
            yield pa.record_batch(
                {
                    "partition": pa.array([task.partitionId()] * batch.num_rows, pa.int64()),
                    "attempt": pa.array([time.monotonic_ns()] * batch.num_rows, pa.int64()),
                }
            )
        if fail and task.partitionId() == 2 and task.attemptNumber() == 0:
            raise ValueError("fails after it has written")

    return lambda session: session.range(0, 400, 1, 4).mapInArrow(compute, "partition long, attempt long")


@pytest.mark.parametrize("way", WAYS)
def test_a_query_that_gives_other_rows_when_it_runs_again_is_taken_once(spark, tmp_path, way):
    kind, fields = WAYS[way]
    marks = tmp_path / "marks"
    marks.mkdir()
    config = kind(dataframe_fn=by_attempt(marks, fail=True), target_split_bytes=400, **fields)
    run_source(config, context(tmp_path))
    computed = sorted(mark.name.rpartition("-")[0] for mark in marks.iterdir())
    assert computed == ["0-0", "1-0", "2-0", "2-1", "3-0"]
    with contextlib.closing(open_queue(context(tmp_path).queue)) as queue:
        assert queue.live_writers() == set()
        assert queue.backlog().hidden_bytes == 0
        stored = set(open_store(context(tmp_path).payloads).keys())
        sweep(queue, open_store(context(tmp_path).payloads))
    assert set(open_store(context(tmp_path).payloads).keys()) == stored, "the failed attempt left something"
    rows = pa.concat_tables(read_as_a_worker(tmp_path, config)).to_pylist()
    assert len(rows) == 400
    assert len({(row["partition"], row["attempt"]) for row in rows}) == 4
    run_source(config, context(tmp_path))
    assert len(list(marks.iterdir())) == 5, "what is visible was computed again"


@pytest.mark.parametrize("way", ["V2 job", "V2 parquet"])
def test_nothing_is_visible_before_everything_is_and_all_of_it_is_of_one_run(spark, tmp_path, way):
    kind, fields = WAYS[way]
    broken, run = tmp_path / "broken", tmp_path / "run"
    broken.touch()
    run.write_text("1")

    def compute(batches):
        from pyspark import TaskContext

        for batch in batches:  # other rows in each run
            yield pa.record_batch({"run": pa.array([int(run.read_text())] * batch.num_rows, pa.int64())})
        if TaskContext.get().partitionId() == 3 and broken.exists():
            raise ValueError("broken for good")

    config = kind(dataframe_fn=lambda session: session.range(0, 400, 1, 4).mapInArrow(compute, "run long"), **fields)
    with pytest.raises(Exception, match="broken for good"):
        run_source(config, context(tmp_path))
    with contextlib.closing(open_queue(context(tmp_path).queue)) as queue:
        assert queue.topic_progress("source").produced == 0
        assert queue.completed_partitions("source", "0") == set()
        queue.fence(["source"])
        sweep(queue, open_store(context(tmp_path).payloads))
    assert list(open_store(context(tmp_path).payloads).keys()) == []
    broken.unlink()
    run.write_text("2")
    run_source(config, context(tmp_path))
    assert pa.concat_tables(read_as_a_worker(tmp_path, config))["run"].to_pylist() == [2] * 400


def test_another_way_to_write_is_another_batch(spark, tmp_path):
    frame = {"dataframe_fn": lambda session: session.range(10)}
    run_source(SparkSourceV2Config(**frame), context(tmp_path))
    with pytest.raises(PlanChangedError, match="--fresh"):
        run_source(SparkSourceV2Config(**frame, visibility="job"), context(tmp_path))


@pytest.mark.parametrize(
    ("config", "payloads", "message"),
    [
        (SparkSourceConfig(dataframe_fn=lambda s: s.readStream.format("rate").load()), None, "SparkSourceV2Config"),
        (
            SparkSourceV2Config(dataframe_fn=lambda s: s.readStream.format("rate").load(), writer="parquet"),
            None,
            'Use writer="arrow"',
        ),
        (SparkSourceV2Config(dataframe_fn=lambda s: s.range(1), writer="parquet"), "s3://b/p", "payloads in file://"),
        (
            SparkSourceV2Config(dataframe_fn=lambda s: s.sql("SELECT array(parse_json('1')) AS j"), writer="parquet"),
            None,
            "column 'j': .*variant.*writer=.arrow",
        ),
        (SparkSourceV2Config(dataframe_fn=lambda s: s.range(1), visibility="batch"), None, "task or job"),
        (SparkSourceV2Config(), None, "the dataframe_fn of SparkSourceV2Config is None"),
    ],
)
def test_what_a_source_cannot_do_is_refused_with_the_fix(spark, tmp_path, config, payloads, message):
    job = Job("numbers", state=tmp_path, payloads=payloads)
    place = SourceContext("numbers", "source", job.queue, job.payloads, tmp_path)
    with pytest.raises(ConfigError, match=message):
        run_source(config, place)


def test_a_job_runs_on_the_first_source_as_on_the_second(spark, tmp_path):
    import pyarrow.dataset as ds

    job = Job("numbers", state=tmp_path / "state", payloads=f"file://{tmp_path}/payloads?compression=lz4")
    source = job.source(SparkSourceConfig(dataframe_fn=lambda session: session.range(0, 1000, 1, 4)))
    source.map(lambda table: table, name="work").sink(ParquetSink(tmp_path / "out"))
    result = job.run()
    assert result.stage("sink").settled_records == 1000
    assert sorted(ds.dataset(tmp_path / "out").to_table()["id"].to_pylist()) == list(range(1000))
    assert list(open_store(job.payloads).keys()) == []
