"""The job of ``solstice demo``: JSON events from Pub/Sub, through Spark and two workers, into parquet."""

import io
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TOPIC = "projects/demo/topics/clicks"
SUBSCRIPTION = "projects/demo/subscriptions/clicks"
_COUNTRIES = ("BR", "DE", "FR", "IN", "JP", "PL", "US")
_PUBLISH_ROWS = 5_000


def events(count: int) -> Iterator[Any]:
    """Made-up clicks, numbered from 0, in Arrow tables as ``solstice.pubsub.publish`` takes them."""
    import pyarrow as pa

    chance = random.Random(20260)
    for start in range(0, count, _PUBLISH_ROWS):
        rows = [
            {
                "event": number,
                "user": f"u{chance.randrange(5_000)}",
                "country": chance.choice(_COUNTRIES),
                "cents": chance.randrange(100, 20_000),
            }
            for number in range(start, min(start + _PUBLISH_ROWS, count))
        ]
        yield pa.table({"data": pa.array([json.dumps(row).encode() for row in rows], pa.binary())})


def score(table: Any) -> Any:
    """What a model would do: parse the payload and add a column. Runs in the workers, on Arrow tables."""
    import pyarrow.compute as pc
    from pyarrow import json as arrow_json

    payload = arrow_json.read_json(io.BytesIO(b"\n".join(table["data"].to_pylist())))
    scored = payload.append_column("score", pc.divide(pc.sqrt(payload["cents"]), 10.0))
    return scored.append_column("message_id", table["message_id"])


def build(address: str, state: Path, output: Path) -> Any:
    """The job; nothing runs yet."""
    from solstice.pipeline import Job, ParquetSink, SparkSourceV2Config

    def clicks(spark: Any) -> Any:
        reader = spark.readStream.format("pubsub")
        return reader.option("subscriptionId", SUBSCRIPTION).option("emulatorHost", address).load()

    job = Job("demo", state=state, on_error="fail")
    source = SparkSourceV2Config(
        dataframe_fn=clicks,
        trigger="500 milliseconds",
        spark_configs={"spark.log.level": "ERROR", "spark.ui.showConsoleProgress": "false"},
    )
    job.source(source).map(score, workers=2).sink(ParquetSink(str(output)))
    return job
