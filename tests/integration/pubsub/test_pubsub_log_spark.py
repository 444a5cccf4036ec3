"""``delivery="log"`` on a real Spark: every message once, through failures and restarts."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pubsub_queries import SUBSCRIPTION, is_settled, send, wait_until
from solstice.testing import PubSubEmulator

pytestmark = pytest.mark.spark


class Sink:
    """A table that takes a batch twice without harm; its key lets a message show that came in two batches."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "sink.db"
        with closing(sqlite3.connect(self._path)) as db, db:
            db.execute("CREATE TABLE sink (batch INT, id TEXT, event TEXT, PRIMARY KEY (batch, id))")

    def write(self, frame: Any, batch_id: int) -> None:
        rows = [(batch_id, row.message_id, row.event) for row in frame.collect()]
        with closing(sqlite3.connect(self._path)) as db, db:
            db.executemany("INSERT INTO sink VALUES (?, ?, ?) ON CONFLICT DO NOTHING", rows)

    def events(self) -> list[str]:
        with closing(sqlite3.connect(self._path)) as db:
            return [event for (event,) in db.execute("SELECT event FROM sink")]


def start(spark: Any, emulator: PubSubEmulator, folder: Path, write: Callable[[Any, int], None], **options: str) -> Any:
    given = {
        "subscriptionId": SUBSCRIPTION,
        "emulatorHost": emulator.address,
        "delivery": "log",
        "logPath": str(folder / "log"),
    }
    return (
        spark.readStream.format("pubsub")
        .options(**given | options)
        .load()
        .selectExpr("message_id", "cast(data as string) as event")
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start()
    )


def rows_left(folder: Path) -> list[Path]:
    return list((folder / "log").glob("*.arrow"))


def test_every_message_is_stored_once_and_the_log_is_emptied(spark, emulator, tmp_path) -> None:
    sink = Sink(tmp_path)
    sent = send(emulator, 0, 20_000)
    emulator.faults.duplicate(every=50)
    query = start(spark, emulator, tmp_path, sink.write, numPartitions="2", maxMessagesPerTrigger="10000")
    try:
        wait_until(lambda: is_settled(emulator, 20_000) and not rows_left(tmp_path), query)
        emulator.faults.clear()
        sent |= send(emulator, 20_000, 10)
        wait_until(lambda: is_settled(emulator, 20_010) and not rows_left(tmp_path), query)
    finally:
        query.stop()
    assert sorted(sink.events()) == sorted(sent)


def test_a_batch_that_failed_after_its_write_comes_again_the_same_and_only_it(spark, emulator, tmp_path) -> None:
    sink = Sink(tmp_path)
    failures = iter([True, False, True])

    def fail_sometimes(frame: Any, batch_id: int) -> None:
        sink.write(frame, batch_id)
        if next(failures, False):
            raise RuntimeError("the batch is stored, and then the query dies")

    sent: set[str] = set()
    for life in range(3):
        sent |= send(emulator, life * 2_000, 2_000)
        query = start(spark, emulator, tmp_path, fail_sometimes, maxMessagesPerTrigger="1500")
        if life < 2:
            with pytest.raises(Exception, match="and then the query dies"):
                query.awaitTermination(60)
        else:
            wait_until(lambda: is_settled(emulator, 6_000) and not rows_left(tmp_path), query)
            query.stop()
    assert sorted(sink.events()) == sorted(sent)


def test_a_task_that_fails_reads_the_same_rows_again(spark, emulator, tmp_path) -> None:
    seen: list[list[str]] = []

    def read_twice(frame: Any, batch_id: int) -> None:
        def fail_first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            from pyspark import TaskContext

            yield from batches
            (tmp_path / f"attempt-{TaskContext.get().attemptNumber()}").touch()
            if TaskContext.get().attemptNumber() == 0:
                raise RuntimeError("the first attempt always fails")

        failing = frame.mapInArrow(fail_first, frame.schema)
        seen.extend(sorted(row.event for row in failing.collect()) for _ in range(2))

    sent = send(emulator, 0, 1_000)
    query = start(spark, emulator, tmp_path, read_twice)
    try:
        wait_until(lambda: is_settled(emulator, 1_000) and not rows_left(tmp_path), query)
    finally:
        query.stop()
    assert seen[::2] == seen[1::2]
    assert sorted(event for events in seen[::2] for event in events) == sorted(sent)
    assert (tmp_path / "attempt-1").exists(), "no second attempt ran"
