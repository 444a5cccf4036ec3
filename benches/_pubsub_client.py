"""One client of ``pubsub.py``: does one case and prints the messages, the CPU time and the time it took."""

import json
import os
import resource
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import wait
from typing import Any

BATCH_ROWS = 100_000


def cpu_s() -> float:
    """The CPU time of this process, all threads, so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def endpoint() -> dict[str, str]:
    """Where to connect to, when it is not an emulator of the environment."""
    return {"endpoint": os.environ["BENCH_ENDPOINT"]} if "BENCH_ENDPOINT" in os.environ else {}


class Meter:
    """CPU time and time from its making to :meth:`figures`."""

    def __init__(self) -> None:
        self._cpu_s, self._at = cpu_s(), time.perf_counter()

    def figures(self, messages: int) -> dict[str, float]:
        """What it took."""
        return {"messages": messages, "cpu_s": cpu_s() - self._cpu_s, "wall_s": time.perf_counter() - self._at}


def receive(subscription: str, count: int, acked: bool) -> dict[str, float]:
    """Drain the subscription; without acks, everything stays leased."""
    from solstice.pubsub import pull

    seen = 0
    options: Any = {"max_outstanding_messages": count + 1 if not acked else 200_000, "max_outstanding_bytes": 8 << 30}
    with pull(subscription, **endpoint(), **options) as puller:
        meter = Meter()
        for batch in puller:
            seen += len(batch)
            if acked:
                batch.ack()
            if seen >= count:
                return meter.figures(seen)
    raise AssertionError("a puller without idle_s ends only when it is left")


def publish(topic: str, count: int, size: int) -> dict[str, float]:
    """Publish a table whose payloads are ready; the same batch again and again."""
    import pyarrow as pa

    from solstice.pubsub import publish

    rows = min(count, BATCH_ROWS)
    attributes = pa.array(
        [[("key", str(row)), ("origin", "bench")] for row in range(rows)], pa.map_("string", "string")
    )
    batch = pa.record_batch({"data": pa.array([bytes(size)] * rows), "attributes": attributes})
    publish(topic, batch_reader(pa, batch, 1), **endpoint())  # opens the connection, fills the pools
    meter = Meter()
    publish(topic, batch_reader(pa, batch, count // rows - 1), **endpoint())
    return meter.figures(count - rows)


def batch_reader(pa: Any, batch: Any, times: int) -> Any:
    """The same batch again and again, as a stream."""
    return pa.RecordBatchReader.from_batches(batch.schema, (batch for _ in range(times)))


def official_receive(subscription: str, count: int) -> dict[str, float]:
    """The callback client, which acknowledges each message."""
    from google.cloud.pubsub_v1 import SubscriberClient
    from google.cloud.pubsub_v1.types import FlowControl

    done, lock = threading.Event(), threading.Lock()
    seen = 0

    def take(message: Any) -> None:
        nonlocal seen
        message.ack()
        with lock:
            seen += 1
            if seen == count:
                done.set()

    with SubscriberClient() as client:
        meter = Meter()
        future = client.subscribe(subscription, callback=take, flow_control=FlowControl(max_messages=10_000))
        done.wait()
        figures = meter.figures(count)
        future.cancel()
        future.result()
    return figures


def official_publish(topic: str, count: int, size: int) -> dict[str, float]:
    """The publisher with the largest batches it makes."""
    from google.cloud.pubsub_v1 import PublisherClient
    from google.cloud.pubsub_v1.types import BatchSettings

    client = PublisherClient(BatchSettings(max_messages=1_000, max_bytes=9_000_000, max_latency=0.05))
    payload = bytes(size)
    meter = Meter()
    wait([client.publish(topic, payload, key=str(row), origin="bench") for row in range(count)])
    return meter.figures(count)


def documents(count: int) -> list[bytes]:
    """JSON documents of seven fields and about 200 B."""
    return [
        json.dumps(
            {
                "id": row,
                "user": f"user-{row % 1_000:06d}",
                "amount": row * 0.25,
                "ok": row % 2 == 0,
                "at": "2026-01-02T03:04:05.678Z",
                "text": "a text that is a little longer than the others are",
                "tags": ["a", "b"],
            }
        ).encode()
        for row in range(count)
    ]


def json_ours(count: int) -> dict[str, float]:
    """The projection as the Spark source uses it."""
    import pyarrow as pa

    from solstice.pubsub._project import Projection

    batches = [pa.record_batch({"data": documents(10_000)}) for _ in range(count // 10_000)]
    projection = Projection("json", _schema(pa))
    meter = Meter()
    rows = sum(projection.project(batch).batch.num_rows for batch in batches)
    return meter.figures(rows)


def json_polars(count: int) -> dict[str, float]:
    """Polars' parser of a column of documents."""
    import polars as pl

    fields = {"id": pl.Int64, "user": pl.String, "amount": pl.Float64, "ok": pl.Boolean, "at": pl.String}
    dtype = pl.Struct(fields | {"text": pl.String, "tags": pl.List(pl.String)})
    column = pl.Series([document.decode() for document in documents(count)])
    meter = Meter()
    frame = column.str.json_decode(dtype).struct.unnest().with_columns(pl.col("at").str.to_datetime(time_zone="UTC"))
    return meter.figures(frame.height)


def json_pyarrow(count: int) -> dict[str, float]:
    """pyarrow's reader of JSON lines, given the lines in one buffer."""
    import io

    import pyarrow as pa
    from pyarrow import json as reader

    lines = io.BytesIO(b"\n".join(documents(count)))
    options = reader.ParseOptions(explicit_schema=_schema(pa), unexpected_field_behavior="ignore")
    meter = Meter()
    return meter.figures(reader.read_json(lines, parse_options=options).num_rows)


def _schema(pa: Any) -> Any:
    at = pa.timestamp("us", "UTC")
    types = {"id": pa.int64(), "user": pa.string(), "amount": pa.float64(), "ok": pa.bool_(), "at": at}
    return pa.schema(types | {"text": pa.string(), "tags": pa.list_(pa.string())})


def main() -> None:
    """Do what the only argument says."""
    asked = json.loads(sys.argv[1])
    count, size = asked["count"], asked["size"]
    cases: dict[str, Callable[[], dict[str, float]]] = {
        "receive": lambda: receive(asked["subscription"], count, acked=False),
        "receive-acked": lambda: receive(asked["subscription"], count, acked=True),
        "publish": lambda: publish(asked["topic"], count, size),
        "official-receive": lambda: official_receive(asked["subscription"], count),
        "official-publish": lambda: official_publish(asked["topic"], count, size),
        "json": lambda: json_ours(count),
        "json-polars": lambda: json_polars(count),
        "json-pyarrow": lambda: json_pyarrow(count),
    }
    print(json.dumps(cases[asked["case"]]()))


if __name__ == "__main__":
    main()
