"""Pub/Sub through Spark: what a row costs, what Spark alone costs, and what a naive source costs, in one run.

The emulator and the publisher have a process of their own. What is measured is the CPU time of the JVM and everything
below it: planner, workers, agent. A drain begins with the start of its query on a subscription that is full, and ends
when every message is in the sink and acknowledged. What it costs to start a query, planner and agent included, is
measured with one row and taken out on both sides. What a micro-batch costs Spark, however few its rows, is no matter of
the source: the ceiling has micro-batches of the very sizes that our source had just before. Everything runs ``RUNS``
times after ``WARM_UPS`` that are thrown away, in turns with what it is compared with, and the best run counts: whatever
else the machine does only ever adds to the CPU time.
"""

import argparse
import os
import statistics
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _process_tree import ProcessTree
from _pubsub_stage import StageProcess, subscription
from _report import Row, report
from _spark_sources import MIN_PART_ROWS, STAMP_DIGITS, Naive, Paced, Ready

from solstice._core.java import spark_environment

RUNS, WARM_UPS, PARTS = 3, 2, 2
MESSAGES, NAIVE_MESSAGES, READY_ROWS = 4_000_000, 40_000, 100_000
GROWTH = (100_000, 1_000_000, 10_000_000)
PER_TRIGGER, TRIGGER = 500_000, "1 second"
FEW_COLUMNS = "publish_time,data"
# Targets: times the ceiling, cores, times the figure of a tenth of the messages.
ACK_ON_COMMIT, LOG, IDLE, GROWN = 1.4, 1.6, 0.02, 1.2
# For half a minute after its start the JVM still compiles.
IDLE_WARM_UP_S, IDLE_MEASURED_S = 30.0, 30.0
RATE, PACED_WARM_UP_S, PACED_S = 1_000, 5.0, 20.0
DEADLINE_S = 300.0


@dataclass(frozen=True)
class Drain:
    """What it took to bring so many rows into the sink."""

    batches: list[int]
    used_s: dict[str, float]
    wall_s: float
    peaks_mb: dict[str, float]

    @property
    def rows(self) -> int:
        """The rows of all micro-batches."""
        return sum(self.batches)

    @property
    def cpu_s(self) -> float:
        """CPU-seconds of all processes."""
        return sum(self.used_s.values())

    def cost(self, start: "Drain") -> float:
        """CPU-seconds per million rows, without those of a start."""
        return (self.cpu_s - start.cpu_s) / self.rows * 1e6

    @property
    def rate(self) -> float:
        """Rows per second by the clock."""
        return self.rows / self.wall_s

    def __str__(self) -> str:
        parts = ", ".join(f"{role} {used:.2f}" for role, used in sorted(self.used_s.items()))
        rows = f"{self.rows:,} rows, {len(self.batches)} batches, {self.wall_s:.1f} s"
        return f"{rows}: {self.cpu_s:.2f} CPU-s ({parts})"


class Bench:
    """One Spark, one emulator, one folder."""

    def __init__(self, spark: Any, stage: Any, folder: Path) -> None:
        self.spark = spark
        self.stage = stage
        self.folder = folder
        self.tree = ProcessTree(spark.sparkContext._gateway.proc.pid)

    def ours(self, count: int, **options: object) -> Drain:
        """Our source, until every message is in the sink and acknowledged."""
        name = self.filled(count)

        def done(query: Any) -> bool:
            if self.stage.acked(name) < count:
                return False
            stored = sum(batches(query))
            assert stored <= count, f"{stored} rows of {count} messages"
            return stored == count

        return self._drained(self.source(name, **options), done)

    def source(self, name: str, **options: object) -> Any:
        """Our source of a subscription; with ``delivery="log"`` its log is on the local disk."""
        given = {"subscriptionId": subscription(name), "maxMessagesPerTrigger": PER_TRIGGER, "numPartitions": PARTS}
        if options.get("delivery") == "log":
            given["logPath"] = self.folder / f"log-{name}"
        return self._reader("pubsub", **(given | options))

    def ready(self, batches: list[int], file: Path) -> Drain:
        """Spark with record batches that are ready, to the commit of the last micro-batch."""
        done = self.folder / uuid.uuid4().hex
        source = self._reader("ready", file=file, batches=",".join(map(str, batches)), parts=PARTS, done=done)
        return self._drained(source, lambda _: done.exists())

    def naive(self, count: int) -> Drain:
        """The official client, to the last acknowledgement."""
        name = self.filled(count)
        spool = self.folder / f"spool-{name}"
        spool.mkdir()
        source = self._reader("naive", subscription=subscription(name), folder=spool, perTrigger=count, parts=PARTS)
        return self._drained(source, lambda _: self.stage.acked(name) == count)

    def idle(self) -> float:
        """The cores that a query takes while nothing is published."""
        with self._running(self.source(self.filled(1_000))):
            time.sleep(IDLE_WARM_UP_S)
            return self._cores(IDLE_MEASURED_S)

    def no_query(self) -> float:
        """The cores that a Spark without a query takes."""
        time.sleep(IDLE_WARM_UP_S)
        return self._cores(IDLE_MEASURED_S)

    def latency(self) -> list[float]:
        """Milliseconds from handing a message to the publisher to its arrival in foreachBatch."""
        name = self.filled(0)
        seconds = PACED_WARM_UP_S + PACED_S
        publisher = threading.Thread(target=self.stage.pace, args=(name, RATE, seconds))
        return self._latencies(self.source(name), publisher.start, publisher.join)

    def spark_latency(self) -> list[float]:
        """The same, of rows that the worker makes."""
        source = self._reader("paced", begunNs=time.time_ns() + 2_000_000_000, rate=RATE)
        return self._latencies(source, lambda: None, lambda: time.sleep(PACED_WARM_UP_S + PACED_S))

    def filled(self, count: int) -> str:
        """The name of a new subscription with a backlog."""
        name = f"bench-{uuid.uuid4().hex}"
        self.stage.fill(name, count)
        return name

    def _reader(self, source: str, **options: object) -> Any:
        return self.spark.readStream.format(source).options(**{k: str(v) for k, v in options.items()}).load()

    def _drained(self, source: Any, done: Callable[[Any], bool]) -> Drain:
        self.tree.begin_peaks()
        before, begun = self.tree.cpu_s(), time.perf_counter()
        with self._running(source, TRIGGER) as query:
            while not done(query):
                assert query.exception() is None, query.exception()
                assert time.perf_counter() - begun < DEADLINE_S, "the rows did not come in time"
                time.sleep(0.05)
            # Before the query ends: what its processes used is counted while they live.
            wall_s, after, peaks_mb = time.perf_counter() - begun, self.tree.cpu_s(), self.tree.peaks_mb()
            used_s = {role: after[role] - before[role] for role in after}
            return Drain(batches(query), used_s, wall_s, peaks_mb)

    @contextmanager
    def _running(self, source: Any, trigger: str = "0 seconds") -> Iterator[Any]:
        query = source.writeStream.format("noop").trigger(processingTime=trigger).start()
        try:
            yield query
        finally:
            self._stop(query)

    def _stop(self, query: Any) -> None:
        """When its processes have ended, what they used is in the JVM's time and moves no more."""
        query.stop()
        deadline = time.monotonic() + 10
        while self.tree.lives("planner", "agent"):
            assert time.monotonic() < deadline, "a process outlived its query"
            time.sleep(0.05)

    def _cores(self, seconds: float) -> float:
        before, begun = self.tree.cpu_s().total(), time.perf_counter()
        time.sleep(seconds)
        return (self.tree.cpu_s().total() - before) / (time.perf_counter() - begun)

    def _latencies(self, source: Any, begin: Callable[[], None], end: Callable[[], None]) -> list[float]:
        arrived: list[tuple[int, list[int]]] = []

        def take(batch: Any, _: int) -> None:
            stamps = batch.selectExpr(f"bigint(string(substring(data, 1, {STAMP_DIGITS}))) at").toArrow()["at"]
            arrived.append((time.time_ns(), stamps.to_pylist()))

        query = source.writeStream.foreachBatch(take).start()
        try:
            time.sleep(2)  # the agent pulls
            begin()
            end()
            time.sleep(1)
        finally:
            self._stop(query)
        first = min(stamps[0] for _, stamps in arrived if stamps) + PACED_WARM_UP_S * 1e9
        return [(at - stamp) / 1e6 for at, stamps in arrived for stamp in stamps if stamp >= first]


def batches(query: Any) -> list[int]:
    """The rows of each micro-batch that had some."""
    return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]


def cost_rows(bench: Bench, notes: list[str]) -> list[Row]:
    """What a row costs in each delivery and schema, against the ceiling and a naive source."""
    files: dict[str | None, Path] = {}
    for columns in (None, FEW_COLUMNS):
        files[columns] = bench.folder / f"ready-{columns}.arrow"
        bench.stage.save_rows(bench.filled(READY_ROWS), str(files[columns]), columns and columns.split(","))
    log = {"delivery": "log"}
    # With few columns there is less of Spark to compare with, and as much to receive: no target.
    cases: list[tuple[str, dict[str, str], float | None]] = [
        ("ack-on-commit, raw", {}, ACK_ON_COMMIT),
        (f"ack-on-commit, {FEW_COLUMNS}", {"columns": FEW_COLUMNS}, None),
        ("log on disk, raw", log, LOG),
    ]

    def pair(count: int, options: dict[str, str]) -> list[Drain]:
        ours, file = bench.ours(count, **options), files[options.get("columns")]
        # Spark ends workers that idle: the ceiling pays for no new one.
        bench.ready([PARTS * MIN_PART_ROWS], file)
        return [ours, bench.ready(ours.batches, file)]

    def run(options: dict[str, str]) -> Callable[[], list[Drain]]:
        return lambda: pair(MESSAGES, options)

    work = {
        "start": lambda: pair(1, {}),
        "start, log": lambda: pair(1, log),
        "naive": lambda: [bench.naive(NAIVE_MESSAGES)],
    }
    best = in_turns(work | {name: run(options) for name, options, _ in cases})
    (start, ready_start), (log_start, _) = best["start"], best["start, log"]
    rows = []
    for name, options, times in cases:
        ours = best[name][0]
        # One ceiling a schema.
        same = [best[other][1] for other, given, _ in cases if given.get("columns") == options.get("columns")]
        ready = min(same, key=lambda drain: drain.cost(ready_start))
        cost, ceiling = ours.cost(log_start if options == log else start), ready.cost(ready_start)
        rows.append(Row(name, "CPU-s/M rows", cost, "ready Arrow", ceiling, False, times and times * ceiling))
        notes.append(f"{name}: {cost / ceiling:.2f} x the ceiling; {ours}; ready {ready}")
    (ours, ready), (naive,), peer = best[cases[0][0]], best["naive"], "naive, official client"
    rows += [
        Row("start of a query", "CPU-s", start.cpu_s, "ready Arrow", ready_start.cpu_s, False),
        Row("start of a query, log", "CPU-s", log_start.cpu_s, "ready Arrow", ready_start.cpu_s, False),
        Row(cases[0][0], "CPU-s/M rows", ours.cost(start), peer, naive.cost(ready_start), False),
        Row(cases[0][0], "rows/s", ours.rate, peer, naive.rate),
        Row(cases[0][0], "rows/s", ours.rate, "ready Arrow", ready.rate),
    ]
    return rows


def in_turns(work: dict[str, Callable[[], list[Drain]]]) -> dict[str, list[Drain]]:
    """Of each the run that took the least CPU time, after those that warm everything up.

    Ours and what it is compared with are chosen each by itself: which of them has to start a worker anew, whose last
    one Spark has ended meanwhile, is chance.
    """
    best: dict[str, list[Drain]] = {}
    for run in range(-WARM_UPS, RUNS):
        for name, drain in work.items():
            drained = drain()
            print(f"  {name}: {'; '.join(map(str, drained))}", flush=True)
            if run >= 0:
                pairs = zip(best.get(name, drained), drained, strict=True)
                best[name] = [min(pair, key=lambda drain: drain.cpu_s) for pair in pairs]
    return best


def growth_rows(bench: Bench, notes: list[str]) -> list[Row]:
    """Cost and memory as messages grow. The fewest have no target: what is not theirs is most of their cost."""
    (start,) = in_turns({"start": lambda: [bench.ours(1)]})["start"]
    drains = [bench.ours(count) for count in GROWTH]
    rows = []
    for drain in drains:
        name = f"{drain.rows:,} messages"
        cost, peer = drain.cost(start), drains[1].cost(start)
        target = GROWN * peer if drain is drains[2] else None
        rows.append(Row(name, "CPU-s/M rows", cost, f"{GROWTH[1]:,}", peer, False, target))
        peaks = ", ".join(f"{role} {mb:,.0f}" for role, mb in sorted(drain.peaks_mb.items()))
        notes.append(f"{name}: {drain.rate:,.0f} rows/s; {drain}; peak MB: {peaks}")
    for role in ("agent", "planner", "worker", "jvm"):
        before, most = (drain.peaks_mb[role] for drain in (drains[1], drains[2]))
        # The JVM takes what its own bound allows before it collects garbage.
        target = None if role == "jvm" else GROWN * before
        rows.append(Row(f"{role}, {GROWTH[2]:,} messages", "peak MB", most, f"{GROWTH[1]:,}", before, False, target))
    return rows


def idle_rows(bench: Bench, notes: list[str]) -> list[Row]:
    """What a stream costs while nothing happens."""
    without = bench.no_query()
    return [Row("idle stream", "cores", bench.idle(), "Spark without a query", without, False, IDLE)]


def latency_rows(bench: Bench, notes: list[str]) -> list[Row]:
    """From the publisher to the sink at a steady rate."""
    ours, spark = (statistics.quantiles(of, n=100) for of in (bench.latency(), bench.spark_latency()))
    return [
        Row(f"publish to sink, {RATE:,} messages/s, p{p}", "ms", ours[p - 1], "rows made by Spark", spark[p - 1], False)
        for p in (50, 99)
    ]


@contextmanager
def session(folder: Path, address: str) -> Iterator[Any]:
    """A Spark on loopback whose processes find this folder's modules and the emulator."""
    from pyspark.sql import SparkSession

    path = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ.update(spark_environment() | {"PYTHONPATH": ":".join(path), "PUBSUB_EMULATOR_HOST": address})
    spark = (
        SparkSession.builder.master(f"local[{PARTS}]")
        .appName("solstice-bench")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "2g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "OFF")
        .config("spark.sql.streaming.numRecentProgressUpdates", "100000")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.local.dir", str(folder / "local"))
        .getOrCreate()
    )
    try:
        for source in (Ready, Paced, Naive):
            spark.dataSource.register(source)
        yield spark
    finally:
        spark.stop()


SECTIONS = {"cost": cost_rows, "growth": growth_rows, "idle": idle_rows, "latency": latency_rows}


def main() -> None:
    """Measure everything, or some sections of it, and report it."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--section", action="append", choices=SECTIONS, help="only this one; may be given several times"
    )
    asked = parser.parse_args()
    notes: list[str] = []
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, StageProcess() as processes:
        stage = processes.Stage()
        with session(Path(folder), stage.address()) as spark:
            bench = Bench(spark, stage, Path(folder))
            rows = [row for section in asked.section or SECTIONS for row in SECTIONS[section](bench, notes)]
    report("pubsub_spark", rows, notes)


if __name__ == "__main__":
    main()
