"""A Spark job on a real Kafka: nothing but the URL of its queue is another."""

import uuid

import pyarrow as pa
import pytest

from solstice.pipeline import Job, ParquetSink, SparkSourceV2Config
from unit.pipeline.pipeline_support import output_ids, temporary_files

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


def unchanged(table: pa.Table) -> pa.Table:
    return table


def test_a_spark_job_runs_unchanged_on_kafka(spark, tmp_path, kafka_broker):
    job = Job(f"numbers-{uuid.uuid4().hex[:8]}", state=tmp_path / "state", queue=f"{kafka_broker.url}?partitions=3")
    source = job.source(SparkSourceV2Config(dataframe_fn=lambda spark: spark.range(0, 1000, 1, 4)))
    source.map(unchanged, workers=2).sink(ParquetSink(tmp_path / "out"))
    result = job.run()
    assert output_ids(tmp_path) == list(range(1000))
    assert (result.stage("source").produced_records, result.dead) == (1000, 0)
    assert temporary_files(tmp_path) == []
    assert list((tmp_path / "state" / "payloads").rglob("*.arrow")) == []
    again = job.run()  # everything is remembered in Kafka: nothing is done twice
    assert output_ids(tmp_path) == list(range(1000))
    assert again.stage("sink").settled == result.stage("sink").settled
