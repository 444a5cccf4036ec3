"""Spark to workers: what a gigabyte costs Spark, and how soon workers have it, in one run.

The same DataFrame goes four ways to two worker processes that wait 20 ms for each split, as a call of a model would: by
``SparkSourceConfig``, by ``SparkSourceV2Config`` with either writer, and by hand, as parquet files that are read with
pyarrow when Spark has ended. CPU time is that of the JVM and everything below it. A gigabyte is one of Arrow data,
whatever is written. Everything runs ``RUNS`` times in turns, after a small warm-up that is thrown away, and the best
run counts: what else the machine does only ever adds. Payloads and queue are on the disk, in a folder that is removed.
"""

import argparse
import functools
import multiprocessing
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _process_tree import ProcessTree
from _report import Row, report

from solstice._core.java import spark_environment
from solstice.pipeline import Job, SparkSourceConfig, SparkSourceV2Config
from solstice.pipeline._queue import open_queue

RUNS, WORKERS, CORES = 2, 2, 2
WAIT_S = 0.02
ROW_BYTES = 206  # of Arrow data, rather a little more
# Two splits per task, and a first task that is done after a sixteenth of all.
TASK_BYTES, SPLIT_BYTES = 32 << 20, 16 << 20
FIRST_SPLIT, CPU = 0.10, 1.2  # targets: of Spark's time, times plain parquet

WAYS: dict[str, Callable[..., Any]] = {
    "V1": SparkSourceConfig,
    "V2 arrow": SparkSourceV2Config,
    "V2 parquet": functools.partial(SparkSourceV2Config, writer="parquet"),
}


@dataclass(frozen=True)
class Run:
    """What one way took."""

    cpu_s: float
    spark_s: float
    first_split_s: float
    whole_s: float
    driver_mb: float
    rows: int


def rows_of(size_bytes: int) -> int:
    """How many rows make up so many bytes of Arrow data."""
    return size_bytes // ROW_BYTES


def frame_of(rows: int, session: Any) -> Any:
    """Rows like those of a log of events: numbers, a time, and texts that hardly compress."""
    partitions = max(CORES, rows * ROW_BYTES // TASK_BYTES)
    return session.range(0, rows, 1, partitions).selectExpr(
        "id",
        "id * 0.37 AS price",
        "timestamp_seconds(1700000000 + id % 100000000) AS at",
        "md5(CAST(id AS STRING)) AS user",
        "concat('https://example.com/', md5(CAST(id + 1 AS STRING)), '/', sha1(CAST(id AS STRING))) AS url",
        "concat(md5(CAST(id + 2 AS STRING)), CAST(id AS STRING)) AS text",
    )


def work(first: str, table: Any) -> None:
    """What a worker does with a split: note the first one, then wait."""
    with suppress(FileExistsError):
        os.close(os.open(first, os.O_CREAT | os.O_EXCL))
    time.sleep(WAIT_S)


def read_file(first: str, path: str) -> int:
    """The same for one who reads parquet by hand."""
    import pyarrow.parquet as pq

    table = pq.read_table(path, use_threads=False)
    work(first, table)
    return table.num_rows


@contextmanager
def watched(memory: list[float]) -> Iterator[None]:
    """The most memory that this process, the driver, has."""
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.05):
            status = Path("/proc/self/status").read_text()
            memory[0] = max(memory[0], int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1e3)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


class Bench:
    """One Spark, one folder, one pool of readers for what is done by hand."""

    def __init__(self, session: Any, folder: Path, pool: ProcessPoolExecutor) -> None:
        self._session = session
        self._folder = folder
        self._pool = pool
        self._tree = ProcessTree(session.sparkContext._gateway.proc.pid)
        self._count = 0

    def run(self, way: str, rows: int) -> Run:
        """One way, once."""
        self._count += 1
        folder = self._folder / str(self._count)
        folder.mkdir()
        first, memory = folder / "first", [0.0]
        before_s, begun_s = self._cpu_s(), time.time()
        with watched(memory):
            spark_s, done = self._by_hand(folder, rows) if way == "plain parquet" else self._by_job(way, folder, rows)
        whole_s = time.time() - begun_s
        assert done == rows, f"{way}: {done} of {rows} rows"
        result = Run(self._cpu_s() - before_s, spark_s, first.stat().st_mtime - begun_s, whole_s, memory[0], rows)
        shutil.rmtree(folder)
        return result

    def _by_job(self, way: str, folder: Path, rows: int) -> tuple[float, int]:
        job = Job("bench", state=folder / "state")
        function = functools.partial(frame_of, rows)
        config = WAYS[way](dataframe_fn=function, target_split_bytes=SPLIT_BYTES)
        job.source(config).map(functools.partial(work, str(folder / "first")), name="work", workers=WORKERS)
        ended = [0.0]
        over = threading.Event()
        watch = threading.Thread(target=self._watch_source, args=(job.queue, ended, over))
        begun_s = time.time()
        watch.start()
        try:
            result = job.run()
        finally:
            over.set()
            watch.join()
        return ended[0] - begun_s, result.stage("work").settled_records

    def _watch_source(self, url: str, ended: list[float], over: threading.Event) -> None:
        with closing(open_queue(url)) as queue:
            while not queue.topic_progress("source").ended and not over.wait(0.02):
                pass
        ended[0] = time.time()

    def _by_hand(self, folder: Path, rows: int) -> tuple[float, int]:
        begun_s = time.time()
        target = folder / "parquet"
        frame_of(rows, self._session).write.option("maxRecordsPerFile", rows_of(SPLIT_BYTES)).parquet(str(target))
        spark_s = time.time() - begun_s
        files = [str(path) for path in target.glob("*.parquet")]
        return spark_s, sum(self._pool.map(functools.partial(read_file, str(folder / "first")), files))

    def _cpu_s(self) -> float:
        return sum(self._tree.cpu_s().values())


@contextmanager
def stage() -> Iterator[Bench]:
    """All that the bench needs, and nothing left of it."""
    from pyspark.sql import SparkSession

    os.environ.update(spark_environment())
    with (
        tempfile.TemporaryDirectory(prefix="bench-pipeline-") as name,
        ProcessPoolExecutor(WORKERS, multiprocessing.get_context("spawn")) as pool,
    ):
        session = (
            SparkSession.builder.master(f"local[{CORES}]")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.memory", "2g")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.local.dir", f"{name}/local")
            .getOrCreate()
        )
        session.sparkContext.setLogLevel("ERROR")
        try:
            yield Bench(session, Path(name), pool)
        finally:
            session.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gb", type=float, default=1.0, help="gigabytes of Arrow data")
    parser.add_argument("--runs", type=int, default=RUNS)
    given = parser.parse_args()
    rows, ways = rows_of(int(given.gb * 1e9)), [*WAYS, "plain parquet"]
    found: dict[str, list[Run]] = {way: [] for way in ways}
    with stage() as bench:
        for way in ways:
            bench.run(way, rows // 10)
        for _ in range(given.runs):
            for way in ways:
                run = bench.run(way, rows)
                found[way].append(run)
                print(f"{way}: {run}", flush=True)

    def best(way: str, figure: Callable[[Run], float]) -> float:
        return min(figure(run) for run in found[way])

    def cpu(run: Run) -> float:
        return run.cpu_s / given.gb

    table = []
    for way in WAYS:
        target = CPU * best("plain parquet", cpu) if way == "V2 arrow" else None
        peer = {"peer": "plain parquet", "higher_is_better": False}
        table.append(
            Row(
                f"{way}: Spark's CPU",
                "CPU-s/GB",
                best(way, cpu),
                peer_value=best("plain parquet", cpu),
                target=target,
                **peer,
            )
        )
    for what, figure in (
        ("start to end", lambda run: run.whole_s),
        ("Spark's job", lambda run: run.spark_s),
        ("until the first split", lambda run: run.first_split_s),
        ("memory of the driver", lambda run: run.driver_mb),
    ):
        unit = "MB" if "memory" in what else "s"
        for way in WAYS:
            peer_value = best("plain parquet", figure)
            table.append(
                Row(f"{way}: {what}", unit, best(way, figure), "plain parquet", peer_value, higher_is_better=False)
            )
    share = best("V2 arrow", lambda run: run.first_split_s / run.spark_s)
    table.append(Row("V2 arrow: first split", "of Spark's time", share, higher_is_better=False, target=FIRST_SPLIT))
    report("pipeline", table, [f"{rows:,} rows, {given.gb:g} GB; best of {given.runs} runs on {CORES} slots"])


if __name__ == "__main__":
    main()
