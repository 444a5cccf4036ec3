"""The emulator and the publishers of ``pubsub_spark.py``, in a process of their own: what they use is not measured."""

import time
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.managers import BaseManager

import pyarrow as pa
from _spark_sources import stamp

from solstice.pubsub import publish, pull
from solstice.testing import PubSubEmulator

BATCH_ROWS = 100_000
PAYLOAD = bytes(200)


def topic(name: str) -> str:
    return f"projects/bench/topics/{name}"


def subscription(name: str) -> str:
    return f"projects/bench/subscriptions/{name}"


class Stage:
    """An emulator; every name is a topic with one subscription."""

    def __init__(self) -> None:
        self._emulator = PubSubEmulator().start()
        attributes = [[("key", str(row)), ("origin", "bench")] for row in range(BATCH_ROWS)]
        columns = {"data": [PAYLOAD] * BATCH_ROWS, "attributes": pa.array(attributes, pa.map_("string", "string"))}
        self._batch = pa.record_batch(columns)

    def address(self) -> str:
        return self._emulator.address

    def fill(self, name: str, count: int) -> None:
        """A new topic and subscription with ``count`` messages of 200 B with two attributes."""
        self._emulator.create_topic(topic(name))
        self._emulator.create_subscription(subscription(name), topic(name), ack_deadline_s=600)
        whole, rest = divmod(count, BATCH_ROWS)
        batches = [self._batch] * whole + [self._batch.slice(0, rest)] * bool(rest)
        if batches:
            tables = (pa.table(batch) for batch in batches)
            assert publish(topic(name), tables, emulator_host=self.address()).published == count

    def acked(self, name: str) -> int:
        return self._emulator.counters(subscription(name))["acked"]

    def save_rows(self, name: str, file: str, columns: list[str] | None) -> None:
        """Keep what a puller gets of a filled subscription as an Arrow file."""
        left = self._emulator.counters(subscription(name))["backlog"]
        with pull(subscription(name), emulator_host=self.address(), columns=columns) as puller:
            batches = []
            for batch in puller:
                batches.append(batch.rows)
                left -= len(batch)
                if left == 0:
                    break
        with pa.ipc.new_file(file, batches[0].schema) as writer:
            for batch in batches:
                writer.write_batch(batch)

    def pace(self, name: str, rate: int, seconds: float) -> None:
        """Publish ``rate`` messages a second, one at a time, each with the time at which it was handed over."""

        def tables() -> Iterator[pa.Table]:
            begun = time.monotonic()
            for row in range(int(rate * seconds)):
                time.sleep(max(0.0, begun + row / rate - time.monotonic()))
                yield pa.table({"data": [stamp(time.time_ns())]})

        publish(topic(name), tables(), emulator_host=self.address(), linger_ms=0)


class StageProcess(BaseManager):
    """The process of a stage."""

    def __init__(self) -> None:
        super().__init__(ctx=get_context("spawn"))


StageProcess.register("Stage", Stage)
