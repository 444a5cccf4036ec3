"""Streaming DataFrames: visible at the driver's commit, once, whatever is killed."""

import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from solstice.errors import StreamResetError
from solstice.pipeline import Job, ParquetSink, SparkSourceV2Config
from solstice.pipeline._queue import open_queue
from solstice.pipeline._store import open_store
from waiting import wait_until

pytestmark = pytest.mark.spark


def values(root: Path) -> list[int]:
    return sorted(ds.dataset(root / "out", format="parquet").to_table(columns=["value"])["value"].to_pylist())


def rate(spark):
    return spark.readStream.format("rate").option("rowsPerSecond", 200).option("numPartitions", 2).load()


def make_job(root: Path, dataframe_fn=rate, trigger="500 milliseconds") -> Job:
    job = Job("ticks", state=root / "state")
    source = job.source(SparkSourceV2Config(dataframe_fn=dataframe_fn, trigger=trigger))
    source.map(lambda table: table, workers=2, name="work").sink(ParquetSink(root / "out"))
    return job


def run_until(job: Job, action) -> object:
    """Run the job while ``action`` is done in another thread, then drain."""
    done = []

    def act() -> None:
        try:
            action()
            done.append(True)
        finally:
            job.stop()

    thread = threading.Thread(target=act)
    thread.start()
    result = job.run()
    thread.join()
    assert done
    return result


def records(job: Job) -> int:
    return job.progress()[-1].settled_records


def test_a_streaming_job_gives_every_row_once_and_resumes(spark, tmp_path):
    job = make_job(tmp_path)

    def kill_a_worker() -> None:
        wait_until(lambda: records(job) > 0, "rows in the sink")
        before = records(job)
        os.kill(job.worker_pids()["work"][0], signal.SIGKILL)
        os.kill(job.worker_pids()["sink"][0], signal.SIGKILL)
        wait_until(lambda: records(job) > before + 200, "rows after the kill")

    result = run_until(job, kill_a_worker)
    assert result.stopped
    assert result.stage("sink").settled_records == result.stage("source").produced_records > 200
    first = values(tmp_path)
    assert first == list(range(len(first)))

    again = make_job(tmp_path)
    run_until(again, lambda: wait_until(lambda: records(again) > len(first) + 200, "rows of the second run"))
    second = values(tmp_path)
    assert len(second) > len(first) + 200
    assert second == list(range(len(second)))
    assert list(open_store(job.payloads).keys()) == []
    assert spark.streams.active == []


def test_available_now_ends_by_itself_and_takes_only_what_is_new(spark, tmp_path):
    events = tmp_path / "events"

    def files(spark):
        return spark.readStream.schema("value long").parquet(str(events))

    for count in (1, 2):
        spark.range(count * 100 - 100, count * 100, 1, 2).withColumnRenamed("id", "value").write.mode("append").parquet(
            str(events)
        )
        result = make_job(tmp_path, files, {"availableNow": True}).run()
        assert not result.stopped
        assert values(tmp_path) == list(range(count * 100))


def test_a_lost_checkpoint_is_refused_instead_of_losing_rows(spark, tmp_path):
    events = tmp_path / "events"
    spark.range(0, 100, 1, 2).withColumnRenamed("id", "value").write.parquet(str(events))

    def job() -> Job:
        return make_job(
            tmp_path, lambda spark: spark.readStream.schema("value long").parquet(str(events)), {"availableNow": True}
        )

    job().run()
    shutil.rmtree(tmp_path / "state" / "checkpoint")
    with pytest.raises(StreamResetError, match="Restore the checkpoint"):
        job().run()
    assert values(tmp_path) == list(range(100))
    assert list(open_store(job().payloads).keys()) == []


def test_a_batch_that_spark_repeats_after_a_crash_is_taken_once(spark, tmp_path):
    events = tmp_path / "events"
    spark.range(0, 100, 1, 2).withColumnRenamed("id", "value").write.parquet(str(events))

    def job() -> Job:
        return make_job(
            tmp_path, lambda spark: spark.readStream.schema("value long").parquet(str(events)), {"availableNow": True}
        )

    job().run()
    # As if the driver had died between the queue's commit and its own: Spark repeats the batch.
    commits = tmp_path / "state" / "checkpoint" / "source" / "commits"
    for name in ("0", ".0.crc"):
        (commits / name).unlink(missing_ok=True)
    result = job().run()
    assert result.stage("source").produced_records == 100
    assert values(tmp_path) == list(range(100))
    assert list(open_store(job().payloads).keys()) == []
    queue = open_queue(job().queue)
    assert queue.live_writers() == set()
    queue.close()


def test_a_stream_from_pubsub_stops_in_the_middle_and_resumes_with_every_message_once(spark, tmp_path):
    from solstice.pubsub import publish
    from solstice.testing import PubSubEmulator

    topic, subscription = "projects/test/topics/clicks", "projects/test/subscriptions/clicks"
    with PubSubEmulator() as emulator:
        emulator.create_topic(topic)
        emulator.create_subscription(subscription, topic)

        def clicks(session):
            options = {
                "subscriptionId": subscription,
                "emulatorHost": emulator.address,
                "delivery": "log",
                "logPath": str(tmp_path / "log"),
            }
            loaded = session.readStream.format("pubsub").options(**options).load()
            return loaded.selectExpr("CAST(CAST(data AS STRING) AS LONG) AS value")

        def send(start: int) -> None:
            data = pa.table({"data": [str(value).encode() for value in range(start, start + 500)]})
            publish(topic, data, emulator_host=emulator.address)

        def stop_in_the_middle() -> None:
            wait_until(lambda: records(first) > 0, "rows in the sink")
            first.stop(drain=False)

        send(0)
        first = make_job(tmp_path, clicks, "200 milliseconds")
        assert run_until(first, stop_in_the_middle).stopped
        emulator.advance(700)  # the leases of what was on the wire when the source ended
        send(500)
        job = make_job(tmp_path, clicks, "200 milliseconds")
        run_until(job, lambda: wait_until(lambda: records(job) >= 1000, "all rows"))
    assert values(tmp_path) == list(range(1000))
    assert list(open_store(job.payloads).keys()) == []
    assert spark.streams.active == []


SCRIPT = """
import sys
from pathlib import Path
from solstice.pipeline import Job, ParquetSink, SparkSourceV2Config
root = Path(sys.argv[1])
job = Job("ticks", state=root / "state")
source = job.source(SparkSourceV2Config(
    dataframe_fn=lambda spark: spark.readStream.format("rate").option("rowsPerSecond", 200).load(),
    trigger="500 milliseconds",
))
source.map(lambda table: table, name="work").sink(ParquetSink(root / "out"))

def tell(stages):
    (root / "settled").write_text(str(stages[-1].settled_records))

job.run(on_progress=tell)
"""


def test_a_killed_driver_resumes_from_its_checkpoint_with_every_row_once_and_ctrl_c_ends_it(tmp_path):
    (tmp_path / "main.py").write_text(SCRIPT)

    def settled() -> int:
        try:
            return int((tmp_path / "settled").read_text() or 0)
        except FileNotFoundError:
            return 0

    def driver() -> subprocess.Popen:
        return subprocess.Popen([sys.executable, str(tmp_path / "main.py"), str(tmp_path)], process_group=0)

    with driver() as first:
        try:
            wait_until(lambda: settled() > 200, "rows in the sink")
        finally:
            first.kill()
    before = settled()
    with driver() as second:
        try:
            wait_until(lambda: settled() > before + 200, "rows of the second run")
            os.killpg(second.pid, signal.SIGINT)  # as a terminal does it: Spark and the workers get it too
            assert second.wait(150) == 0
        finally:
            second.kill()
    found = values(tmp_path)
    assert found == list(range(len(found)))
    assert len(found) > before + 200
    assert list((tmp_path / "out" / "_tmp").iterdir()) == []
