import polars as pl
import pytest

import solstice.pipeline
from solstice.errors import ConfigError
from solstice.pipeline import (
    FileSource,
    IterableSource,
    Job,
    Operator,
    ParquetSink,
    PubSubSource,
    SparkSourceConfig,
    SparkSourceV2Config,
)
from solstice.pipeline._stage import Stage

PUBLIC = [
    "ArrowSink",
    "DeadLetter",
    "ExternalSource",
    "FileSource",
    "FunctionSink",
    "IterableSource",
    "Job",
    "JobResult",
    "JsonSink",
    "Operator",
    "OperatorConfig",
    "ParquetSink",
    "PayloadRef",
    "PrintSink",
    "PubSubSink",
    "PubSubSource",
    "QueueMessage",
    "Sink",
    "Source",
    "SourceConfig",
    "SourceMaster",
    "SparkSource",
    "SparkSourceConfig",
    "SparkSourceMaster",
    "SparkSourceV2Config",
    "SparkSourceV2Master",
    "Split",
    "SplitPayload",
    "SplitPayloadStore",
    "Stage",
    "StageMaster",
    "StageOptions",
    "StageProgress",
    "StageWorker",
    "committed_files",
]


def test_the_public_names_are_these():
    assert solstice.pipeline.__all__ == PUBLIC
    assert all(getattr(solstice.pipeline, name).__name__ == name for name in PUBLIC)
    with pytest.raises(AttributeError):
        _ = solstice.pipeline.Unknown


def lazily(frame: pl.LazyFrame):
    return frame


class Score(Operator):
    def process_split(self, split, payload):
        return payload


def source(tmp_path) -> Stage:
    job = Job("job", state=tmp_path / "a dir")
    return job.source(SparkSourceV2Config(dataframe_fn=print))


def test_queue_and_payloads_lie_in_the_state_directory_by_default(tmp_path):
    job = source(tmp_path).job
    assert job.queue == f"sqlite://{tmp_path}/a%20dir/queue.db"
    assert job.payloads.startswith(f"file://{tmp_path}/a%20dir/payloads/solstice-job-")


def test_relative_urls_become_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    job = Job("job", queue="sqlite://q/queue.db", payloads="file://p")
    assert job.queue == f"sqlite://{tmp_path}/q/queue.db"
    assert job.payloads.startswith(f"file://{tmp_path}/p/solstice-job-")
    assert job.state == tmp_path / ".solstice" / "job"


def test_stages_get_free_names(tmp_path):
    stage = source(tmp_path)

    def score(table):
        return table

    def _hidden(table):
        return table

    functions = (score, score, lambda table: table, _hidden)
    assert [stage.map(function).name for function in functions] == ["score", "score-2", "map", "hidden"]


def test_a_sink_takes_a_directory_as_a_url_too(tmp_path):
    assert ParquetSink(f"file://{tmp_path}/a%20b").path == ParquetSink(tmp_path / "a b").path


def test_nothing_follows_a_sink(tmp_path):
    sink = source(tmp_path).sink(ParquetSink("out"))
    with pytest.raises(ConfigError, match="nothing can follow the sink"):
        sink.map(len)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda stage: stage.map(len, workers=0), "workers is 0"),
        (lambda stage: stage.map(len, workers=(3, 2)), r"workers is \(3, 2\)"),
        (lambda stage: stage.map(len, retries=-1), "retries is -1"),
        (lambda stage: stage.map(len, name="a/b"), "stage 'a/b' is not a name"),
        (lambda stage: stage.job.source("text"), "not a source"),
        (lambda stage: Job("a b"), "job 'a b' is not a name"),
        (lambda stage: Job("a", on_error="stop"), "on_error is 'stop'"),
        (lambda stage: Job("a", queue="no url"), "URL"),
        (lambda stage: stage.job.run(), "does nothing"),
        (lambda stage: stage.map(Score), r"map got <class .*Score'>.*Score\(ScoreConfig"),
        (lambda stage: stage.job.source(SparkSourceV2Config(), name="_raw"), "stage '_raw' is not a name"),
        (lambda stage: stage.map(len, name="a" * 65), "64 at most"),
        (lambda stage: Job(5), "job 5 is not a name"),
        (lambda stage: stage.map(lazily), r"lazily wants a LazyFrame.*pl.DataFrame"),
        (lambda stage: SparkSourceV2Config(parallelism=0), "parallelism of SparkSourceV2Config is 0"),
        (lambda stage: SparkSourceConfig(target_split_bytes="1mb"), "target_split_bytes of SparkSourceConfig is '1mb'"),
        (lambda stage: IterableSource([], rows_per_split=-1), "rows_per_split of IterableSource is -1"),
        (lambda stage: FileSource("x", target_split_bytes=0), "target_split_bytes of FileSource is 0"),
        (lambda stage: PubSubSource("x", target_split_bytes=0.5), "target_split_bytes of PubSubSource is 0.5"),
        (lambda stage: SparkSourceV2Config(dataframe_fn="df").frame_of(None), "dataframe_fn of .* is 'df'.*a function"),
        (lambda stage: Job("a", lease_s=0), "lease_s is 0"),
        (lambda stage: Job("a", lease_s="30"), "lease_s is '30'"),
        (lambda stage: Job("a", lease_s=float("nan")), "lease_s is nan"),
        (lambda stage: ParquetSink("s3a://bucket/x"), r"cannot write to 's3a://bucket/x'.*s3://bucket/prefix"),
    ],
)
def test_a_wrong_description_is_refused_with_the_fix(tmp_path, make, message):
    with pytest.raises(ConfigError, match=message):
        make(source(tmp_path))


def test_a_queue_of_an_unknown_kind_is_refused(tmp_path):
    job = Job("a", state=tmp_path, queue="amqp://host/x")
    job.source(SparkSourceV2Config(dataframe_fn=print)).map(len)
    with pytest.raises(ConfigError, match="sqlite:///"):
        job.run()


def test_the_fields_of_the_source_become_spark_settings():
    config = SparkSourceV2Config(
        num_executors=2, executor_cores=3, executor_memory="5g", spark_configs={"spark.executor.cores": "4"}
    )
    assert config.settings() == {
        "spark.master": "local[6]",
        "spark.executor.instances": "2",
        "spark.executor.cores": "4",
        "spark.executor.memory": "5g",
    }
