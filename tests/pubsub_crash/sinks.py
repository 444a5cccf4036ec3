"""The sinks of the matrix: how the driver writes to them, and what of it stands committed."""

import json
import sqlite3
import time
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

SQLITE_WAIT_S = 60.0


class Sink(Protocol):
    """A sink as the harness sees it."""

    def ids(self) -> Counter[str]:
        """The message ids that stand committed, and how often."""


class ParquetSink:
    """Spark's own file sink. It skips a batch id that it has committed already."""

    def __init__(self, folder: Path) -> None:
        self._out = folder / "out"
        self._read: set[str] = set()
        self._ids: Counter[str] = Counter()

    def ids(self) -> Counter[str]:
        """What the files hold that Spark's log of the sink names; not all files there are."""
        for entry in sorted((self._out / "_spark_metadata").glob("[0-9]*")):
            for line in entry.read_text().splitlines()[1:]:
                file = PurePosixPath(json.loads(line)["path"]).name
                if file not in self._read:
                    self._read.add(file)
                    self._ids.update(pq.read_table(self._out / file, columns=["message_id"])["message_id"].to_pylist())
        return self._ids


class SqliteSink:
    """Rows and the number of their batch in one transaction: idempotent by batch id, and by nothing else."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "sink.sqlite"

    def ids(self) -> Counter[str]:
        """The rows."""
        if not self._file.exists():
            return Counter()
        with closing(sqlite3.connect(self._file, timeout=SQLITE_WAIT_S)) as database:
            return Counter(dict(database.execute("select message_id, count(*) from rows group by 1")))


class Log:
    """The log of ``delivery="log"`` as anybody can read it: what a manifest names is a batch that waits for Spark."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "log"
        self._ids: dict[str, list[str]] = {}

    def ids(self) -> set[str]:
        """The message ids that stand in it. Look at the sink afterwards: that is where they go."""
        found = {}
        for manifest in self.folder.glob("*-*.json"):
            with suppress(FileNotFoundError):  # consumed meanwhile
                for part in json.loads(manifest.read_bytes())["parts"]:
                    name = part["file"]
                    found[name] = self._ids.get(name) or self._read(name)
        self._ids = found
        return {message_id for part in found.values() for message_id in part}

    def _read(self, name: str) -> list[str]:
        with pa.OSFile(str(self.folder / name)) as file:
            return pa.ipc.open_file(file).read_all()["message_id"].to_pylist()


def sink_in(folder: Path, kind: str) -> Sink:
    """The sink of a run, to look at."""
    return ParquetSink(folder) if kind == "parquet" else SqliteSink(folder)


def start_query(frame: Any, folder: Path, kind: str, hold_batch: int | None) -> Any:
    """Start the query that writes ``frame`` into the sink of ``folder``.

    The SQLite sink can stop between its own commit and Spark's, from batch ``hold_batch`` on: it leaves the file
    ``fired`` and waits for ``released``.
    """
    notes = folder / "notes"
    writer = frame.select("message_id").writeStream.option("checkpointLocation", str(folder / "checkpoint"))
    if kind == "parquet":
        return writer.format("parquet").option("path", str(folder / "out")).start()
    with closing(sqlite3.connect(folder / "sink.sqlite")) as database:
        database.execute("pragma journal_mode = wal")
        database.execute("create table if not exists batches (id integer primary key)")
        database.execute("create table if not exists rows (message_id text)")

    def store(batch: Any, batch_id: int) -> None:
        with closing(sqlite3.connect(folder / "sink.sqlite", timeout=SQLITE_WAIT_S)) as database, database:
            if database.execute("select 1 from batches where id = ?", (batch_id,)).fetchone():
                return
            ids = batch.toArrow()["message_id"].to_pylist()
            database.execute("insert into batches values (?)", (batch_id,))
            database.executemany("insert into rows values (?)", ((message_id,) for message_id in ids))
        if hold_batch is not None and batch_id >= hold_batch and not (notes / "fired").exists():
            (notes / "fired").touch()
            deadline = time.monotonic() + SQLITE_WAIT_S
            while not (notes / "released").exists() and time.monotonic() < deadline:
                time.sleep(0.02)

    return writer.foreachBatch(store).start()
