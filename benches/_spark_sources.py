"""The sources that ``pubsub_spark.py`` compares with; Spark's planner and workers import them from here."""

import gc
import itertools
import os
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows
from pyspark.sql.types import StructType

RAW_SCHEMA = (
    "message_id string, publish_time timestamp, data binary, attributes map<string,string>, ordering_key string, "
    "delivery_attempt int"
)
IDLE_S = 0.5
MIN_PART_ROWS = 5_000  # as our own source cuts
STAMP_DIGITS = 19


@dataclass(frozen=True)
class Rows(InputPartition):
    """So many rows, from this one on."""

    first: int
    count: int


def spread(first: int, count: int, parts: int) -> list[Rows]:
    """Parts of equal size."""
    ends = [count * index // parts for index in range(parts + 1)]
    return [Rows(first + begin, end - begin) for begin, end in itertools.pairwise(ends)]


class CountingReader(DataSourceStreamReader):
    """A stream whose offset is a count of rows."""

    def __init__(self, options: dict[str, str]) -> None:
        self.options = options
        self.per_trigger = int(options.get("pertrigger", "100000"))

    def initialOffset(self) -> dict[str, int]:
        return {"rows": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.per_trigger)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        count = end["rows"] - start["rows"]
        return spread(start["rows"], count, min(int(self.options.get("parts", "1")), count // MIN_PART_ROWS + 1))


class Ready(DataSource):
    """The ceiling: record batches that lie ready in memory, in micro-batches of the sizes that ``batches`` lists."""

    @classmethod
    def name(cls) -> str:
        return "ready"

    def schema(self) -> StructType:
        return from_arrow_schema(_ready(self.options["file"])[0].schema)

    def streamReader(self, schema: StructType) -> "ReadyReader":
        return ReadyReader(dict(self.options))


class ReadyReader(CountingReader):
    """When all rows are durable it touches the file ``done``."""

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        ends = itertools.accumulate(map(int, self.options["batches"].split(",")))
        end = next((end for end in ends if end > start["rows"]), None)
        if end is None:
            Path(self.options["done"]).touch()
            time.sleep(IDLE_S)
            return start
        return {"rows": end}

    def read(self, partition: Rows) -> Iterator[pa.RecordBatch]:
        left = partition.count
        for batch in itertools.cycle(_ready(self.options["file"])):
            if left <= 0:
                return
            yield batch if batch.num_rows <= left else batch.slice(0, left)
            left -= batch.num_rows


_mapped: dict[tuple[int, str], list[pa.RecordBatch]] = {}


def _ready(file: str) -> list[pa.RecordBatch]:
    """The batches of an Arrow file, mapped into this process once."""
    key = (os.getpid(), file)
    if key not in _mapped:
        reader = pa.ipc.open_file(pa.memory_map(file))
        _mapped[key] = [reader.get_batch(index) for index in range(reader.num_record_batches)]
        gc.freeze()  # as our own reader does
    return _mapped[key]


class Paced(DataSource):
    """What Spark itself takes from a row's birth to the sink: ``rate`` rows a second, made by the worker."""

    @classmethod
    def name(cls) -> str:
        return "paced"

    def schema(self) -> str:
        return RAW_SCHEMA

    def streamReader(self, schema: StructType) -> "PacedReader":
        return PacedReader(dict(self.options))


class PacedReader(CountingReader):
    """Rows are due at equal distances; each carries the time at which it was due."""

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        begun_ns, rate = int(self.options["begunns"]), int(self.options["rate"])
        while True:
            due = (time.time_ns() - begun_ns) * rate // 1_000_000_000
            if due > start["rows"]:
                return {"rows": due}
            time.sleep(1 / rate)

    def read(self, partition: Rows) -> Iterator[tuple[Any, ...]]:
        begun_ns, rate = int(self.options["begunns"]), int(self.options["rate"])
        for row in range(partition.first, partition.first + partition.count):
            yield (str(row), None, stamp(begun_ns + row * 1_000_000_000 // rate), None, None, None)


def stamp(ns: int) -> bytes:
    """A payload of 200 B that begins with a time."""
    return str(ns).encode().ljust(200)


class Naive(DataSource):
    """What one writes first: the official client pulls in ``read``, rows are tuples, ``commit`` acknowledges."""

    @classmethod
    def name(cls) -> str:
        return "naive"

    def schema(self) -> str:
        return RAW_SCHEMA

    def streamReader(self, schema: StructType) -> "NaiveReader":
        return NaiveReader(dict(self.options))


class NaiveReader(CountingReader):
    """The workers leave the ack ids in a folder, where ``commit`` finds them."""

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        return {"rows": start["rows"] + limit.max_rows}

    def read(self, partition: Rows) -> Iterator[tuple[Any, ...]]:
        from google.api_core.exceptions import DeadlineExceeded
        from google.cloud.pubsub_v1 import SubscriberClient

        ack_ids: list[str] = []
        with SubscriberClient() as client:
            while len(ack_ids) < partition.count:
                asked = min(1_000, partition.count - len(ack_ids))
                request = {"subscription": self.options["subscription"], "max_messages": asked}
                try:
                    received = client.pull(request, timeout=IDLE_S).received_messages
                except DeadlineExceeded:
                    break
                if not received:
                    break
                for one in received:
                    ack_ids.append(one.ack_id)
                    message = one.message
                    yield (
                        message.message_id,
                        message.publish_time,
                        message.data,
                        dict(message.attributes),
                        message.ordering_key or None,
                        one.delivery_attempt or None,
                    )
        target = Path(self.options["folder"], f"{partition.first:012d}-{uuid.uuid4()}")
        target.write_text("\n".join(ack_ids))

    def commit(self, end: dict[str, int]) -> None:
        from google.cloud.pubsub_v1 import SubscriberClient

        with SubscriberClient() as client:
            for file in sorted(Path(self.options["folder"]).iterdir()):
                if int(file.name.partition("-")[0]) >= end["rows"]:
                    continue
                ack_ids = file.read_text().split()
                for begin in range(0, len(ack_ids), 1_000):
                    request = {"subscription": self.options["subscription"], "ack_ids": ack_ids[begin : begin + 1_000]}
                    client.acknowledge(request)
                file.unlink()
