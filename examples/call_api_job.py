"""An API called for every row, with retries, a rate and a time-out; no Spark. Run: python examples/call_api_job.py"""

import asyncio
import tempfile
from collections import Counter

import pyarrow as pa

from solstice.pipeline import IterableSource, Job, JsonSink, Split


async def ask(row: dict, ctx: Split) -> dict:
    """Stands for a call to a service, which is told the same key whenever the row is sent again."""
    await asyncio.sleep(0.01)
    if row["user"] == 13:
        raise ValueError("the service does not like 13")
    return row | {"answer": row["user"] % 3, "key": f"{ctx.split_id}-{ctx.row}"}


def users() -> list[pa.Table]:
    return [pa.table({"user": range(start, start + 10)}) for start in range(0, 200, 10)]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        job = Job("users", state=f"{folder}/state")
        answers = job.source(IterableSource(users)).map(
            ask, concurrency=5, workers=(1, 2), retries=1, timeout_s=30, rate_limit="2000 records/s"
        )
        answers.sink(JsonSink(f"{folder}/answers"), rebatch_rows=100)
        result = job.run()
        print("asked for", result.stage("ask").settled_records, "users,", result.dead, "split given up:")
        print(Counter(letter.error for letter in job.dead_letters()))
