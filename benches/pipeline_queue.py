"""The queues of the pipeline without any work: produce, settle one by one and in bulk, take from a long queue.

Each rate is the best of some rounds after one that does not count: the broker's JVM is warm then, and files have their
sizes. Beside a commit to SQLite stands what the disk alone takes for the same bytes, in the same minute.
The driver of a job with a long queue is a process that does what a driver does all the time: it asks for the counters
of a stage, and sweeps a store, here one that only says which payloads there would be.
"""

import argparse
import contextlib
import functools
import math
import multiprocessing
import os
import re
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from _report import Row, report

from solstice.pipeline._message import QueueMessage
from solstice.pipeline._queue import Consumer, Queue, Settled, open_consumer, open_queue
from solstice.pipeline._sweep import sweep
from solstice.testing import KafkaBroker

SHORT, LONG = 2_000, 1_000_000
PRODUCED = 200_000
BATCH = 10_000
ROUNDS = 5
COMMIT_BYTES = 6 * (4096 + 24)  # what one split, settled, adds to SQLite's log: six pages
WRITER = "0123456789abcdef"
FLAT, GROWTH = 1.5, 1.1  # of the cost of a take with 500 times as many, of the memory of a driver with ten times

# Per backend: targets of produce, of settling one by one, of settling in bulk, and how many make up the bulk.
TARGETS = {"sqlite": (200_000, 4_000, 80_000, 1_000), "kafka": (200_000, 200, 20_000, 100)}


def payload_key(n: int) -> str:
    """Of the payload of a message."""
    return f"clicks/{WRITER}/clicks-0-{n // 100}-{n}"


def messages(count: int, start: int = 0) -> list[QueueMessage]:
    """Messages as a Spark task writes them."""
    return [
        QueueMessage(
            message_id=f"clicks_{WRITER}_{n}",
            split_id=f"clicks-0-{n // 100}-{n}",
            payload_key=payload_key(n),
            metadata={
                "source_stage": "clicks",
                "num_records": 10_000,
                "uri": f"file:///data/payloads/{payload_key(n)}.arrow",
                "bytes": 8 << 20,
                "schema_fingerprint": WRITER,
                "checksum": "crc32:01234567",
                "attempt": 1,
                "batch_id": "0",
                "partition": n // 100,
            },
        )
        for n in range(start, start + count)
    ]


def best(measured: Callable[[], float]) -> float:
    """The highest of some rounds, after one to warm up."""
    measured()
    return max(measured() for _ in range(ROUNDS))


def flush_rate(directory: Path) -> float:
    """How often a second the disk itself can write and flush as much as one commit, within a file of a fixed size."""
    count, places = 1_000, 300
    path, commit = directory / "flushed", os.urandom(COMMIT_BYTES)
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    os.pwrite(file, bytes(places * COMMIT_BYTES), 0)
    os.fsync(file)
    started_s = time.perf_counter()
    for n in range(count):
        os.pwrite(file, commit, n % places * COMMIT_BYTES)
        os.fdatasync(file)
    rate = count / (time.perf_counter() - started_s)
    os.close(file)
    path.unlink()
    return rate


def produce_rate(queue: Queue, topic: str, count: int) -> float:
    """Messages per second, in batches; making the messages is not counted, encoding them is."""
    spent_s = 0.0
    for start in range(0, count, BATCH):
        batch = messages(min(BATCH, count - start), start)
        started_s = time.perf_counter()
        queue.produce(topic, batch)
        spent_s += time.perf_counter() - started_s
    return count / spent_s


def take(consumer: Consumer, limit: int) -> list:
    """The next deliveries: a group of Kafka needs a moment."""
    deadline_s = time.monotonic() + 60
    while not (deliveries := consumer.take_many(limit)):
        if time.monotonic() > deadline_s:
            raise TimeoutError("nothing to take")
        time.sleep(0.01)
    return deliveries


def settle_rate(consumer: Consumer, count: int, together: int) -> float:
    """Splits per second: settled with one output each, and the next ones taken, in the same transaction."""
    output = messages(1)
    deliveries = take(consumer, together)
    settled = 0
    started_s = time.perf_counter()
    while settled < count:
        results = [Settled(delivery, output) for delivery in deliveries]
        settled += len(results)
        deliveries = consumer.settle_many(results, to="score", take=together).next or take(consumer, together)
    rate = settled / (time.perf_counter() - started_s)
    consumer.settle_many([Settled(delivery) for delivery in deliveries])
    return rate


def take_cost_us(consumer: Consumer, count: int) -> float:
    """Microseconds for one settle-and-take, one by one; the best of three."""
    return 1e6 / max(settle_rate(consumer, count, 1) for _ in range(3))


class NamedPayloads:
    """A payload store with a payload for every message, for a sweep that finds nothing to delete."""

    survives_deletion = True

    def __init__(self, count: int) -> None:
        self._count = count

    def writers(self) -> Iterator[tuple[str, str]]:
        """The one that wrote them."""
        yield "clicks", WRITER

    def keys(self, prefix: str) -> Iterator[str]:
        """All of them."""
        return map(payload_key, range(self._count))

    def discard_unfinished(self, prefix: str) -> None:
        """There are none."""


def drive(url: str, count: int) -> float:
    """The most memory of a driver, in MB; in a process of its own."""
    with contextlib.closing(open_queue(url)) as queue:
        for _ in range(100):
            assert queue.topic_progress("clicks").produced == count
            queue.group_progress("clicks", "score")
            queue.backlog()
        assert sweep(queue, NamedPayloads(count)) == 0  # type: ignore[arg-type]
    # Not ru_maxrss: that outlives exec, so that it would be at least the memory of the process that started this one.
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 1e3


def driver_mb(url: str, count: int) -> float:
    """The same, from here."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(drive, (url, count))


@contextlib.contextmanager
def consuming(url: str, topic: str, group: str) -> Iterator[tuple[Queue, Consumer]]:
    """A queue with a group and one worker of it."""
    queue = open_queue(url)
    queue.subscribe(topic, group)
    owner = uuid.uuid4().hex
    queue.register_writer(owner, group, 3600)
    consumer = open_consumer(url, topic, group, owner, retries=3, lease_s=60)
    yield queue, consumer
    consumer.close()
    queue.close()


def measure(name: str, url: str, long: int, directory: Path) -> list[Row]:
    """All rows of one backend."""
    produce_target, single_target, bulk_target, together = TARGETS[name]
    singles = 4_000 if name == "sqlite" else 400
    rows = []
    with consuming(f"{url}", "clicks", "score") as (queue, consumer):
        produced = best(lambda: produce_rate(queue, "clicks", PRODUCED))
        rows.append(Row(f"{name}: produce", "messages/s", produced, target=produce_target))
        flushed = best(lambda: flush_rate(directory)) if name == "sqlite" else None
        single = best(lambda: settle_rate(consumer, singles, 1))
        rows.append(
            Row(
                f"{name}: settle, one by one",
                "splits/s",
                single,
                peer="flushes alone" if flushed else None,
                peer_value=flushed,
                target=single_target,
            )
        )
        bulk = best(lambda: settle_rate(consumer, 50_000, together))
        rows.append(Row(f"{name}: settle, {together} together", "splits/s", bulk, target=bulk_target))
    with consuming(f"{url}-short", "clicks", "score") as (queue, consumer):
        queue.produce("clicks", messages(SHORT))
        short_us = take_cost_us(consumer, singles // 8)
    with consuming(f"{url}-long", "clicks", "score") as (queue, consumer):
        # What is bounded is full by then: caches, and what a sweep looks at together.
        tenth = long // 10
        step = math.gcd(BATCH, tenth)
        for start in range(0, long, step):
            if start == tenth:
                tenth_mb = driver_mb(f"{url}-long", tenth)
            queue.produce("clicks", messages(step, start))
        long_mb = driver_mb(f"{url}-long", long)
        long_us = take_cost_us(consumer, singles // 8)
    against = functools.partial(Row, higher_is_better=False)
    work, peer = f"{name}: settle and take with {long:,} queued", f"with {SHORT:,}"
    rows.append(against(work, "us", long_us, peer=peer, peer_value=short_us, target=FLAT * short_us))
    work, peer = f"{name}: driver with {long:,} queued", f"with {tenth:,}"
    rows.append(against(work, "MB", long_mb, peer=peer, peer_value=tenth_mb, target=GROWTH * tenth_mb))
    return rows


def main() -> None:
    """Measure the backends that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backends", default="sqlite,kafka")
    parser.add_argument("--long", type=int, default=LONG, help="length of the long queue")
    arguments = parser.parse_args()
    rows: list[Row] = []
    with contextlib.ExitStack() as ends:
        directory = ends.enter_context(tempfile.TemporaryDirectory(prefix="solstice-bench-", dir="."))
        for name in arguments.backends.split(","):
            place = (
                f"sqlite://{directory}"
                if name == "sqlite"
                else ends.enter_context(KafkaBroker(java_options=["-Xmx1g"])).url
            )
            rows += measure(name, f"{place}/queue", arguments.long, Path(directory))
    notes = [
        "One process; messages of about 450 bytes, encoded in the measured time. SQLite commits are fsynced.",
        f"Each rate: the best of {ROUNDS} rounds after a warm-up. Flushes alone: the disk writes and syncs the bytes of"
        " a commit, without SQLite.",
    ]
    report("pipeline_queue", rows, notes)


if __name__ == "__main__":
    main()
