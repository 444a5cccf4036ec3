"""A stop at a moment when Spark has no job that could be cancelled."""

import contextlib

import pytest

from solstice.pipeline import SparkSourceV2Config, _spark_master
from solstice.pipeline._queue import open_queue
from solstice.pipeline._source_master import SourceContext

pytestmark = pytest.mark.spark


def test_a_stop_while_spark_plans_runs_no_task(spark, tmp_path, monkeypatch):
    context = SourceContext(
        "numbers", "source", f"sqlite://{tmp_path}/queue.db", f"file://{tmp_path}/payloads", tmp_path
    )
    master = SparkSourceV2Config(dataframe_fn=lambda session: session.range(100)).master(context)
    fingerprint = _spark_master.fingerprint

    def stopped_meanwhile(frame, *choices):
        master.stop()
        return fingerprint(frame, *choices)

    monkeypatch.setattr(_spark_master, "fingerprint", stopped_meanwhile)
    master.start()
    master.join(60.0)
    assert master.over
    assert master._error is None
    with contextlib.closing(open_queue(context.queue)) as queue:
        assert queue.completed_partitions("source", "0") == set()
        assert not queue.topic_progress("source").ended
