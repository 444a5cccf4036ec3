"""Pub/Sub and Arrow without Spark: publish a table, pull batches, acknowledge. Run: python examples/pull_publish.py"""

import asyncio
import os

import polars as pl

from solstice.pubsub import publish, pull, pull_async
from solstice.testing import PubSubEmulator

TOPIC = "projects/demo/topics/events"
SUBSCRIPTION = "projects/demo/subscriptions/events"


def total() -> int:
    """Sum up the first half; what was taken beyond it is given back at the end of ``with``."""
    seen = 0
    with pull(SUBSCRIPTION, columns=["data"], max_batch_rows=500) as puller:
        for batch in puller:
            frame = pl.DataFrame(batch)  # Arrow data as it is, without a copy
            seen += frame["data"].cast(pl.String).cast(pl.Int64).sum()
            batch.ack()  # returns when Pub/Sub has confirmed it
            if puller.stats()["acked"] >= 5_000:
                return seen
    raise AssertionError("a puller without idle_s ends only when it is left")


async def rest() -> int:
    """The other half, in an event loop, until nothing came for a second."""
    seen = 0
    async with pull_async(SUBSCRIPTION, columns=["data"], idle_s=1) as puller:
        async for batch in puller:
            seen += pl.DataFrame(batch)["data"].cast(pl.String).cast(pl.Int64).sum()
            await batch.ack()
    return seen


with PubSubEmulator() as emulator:
    os.environ["PUBSUB_EMULATOR_HOST"] = emulator.address
    emulator.create_topic(TOPIC)
    emulator.create_subscription(SUBSCRIPTION, TOPIC)
    result = publish(TOPIC, pl.DataFrame({"data": [str(number) for number in range(10_000)]}))
    print("published", result.published)
    print("sum", total() + asyncio.run(rest()), "acknowledged", emulator.counters(SUBSCRIPTION)["acked"])
