"""One measurement of one client in a fresh process: what it found goes to stdout as JSON.

The client is ours, or whatever calls itself ``pyspark`` in this environment: the official one, or pyspark-client-rust.
"""

import contextlib
import gc
import json
import sys
import time
from pathlib import Path

NUMBERS = "id, id * 2 as b, cast(id as double) as c, id * 0.5d as d, id % 1000 as e"
MIXED = (
    "id, cast(id as double) as number, cast(id as string) as text, date_add(date'2024-01-01', cast(id % 1000 as int)) "
    "as day, timestamp_seconds(1700000000 + id) as moment"
)
EXPRESSIONS = 1_000


def connect(client, url):
    if client == "solstice":
        import solstice.connect as sc

        return sc.connect(url)
    from pyspark.sql import SparkSession

    return SparkSession.builder.remote(url).getOrCreate()


def memory_mb(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1e3 for line in lines if line.startswith(field))


def start(client, url):
    """To the first row; the parent has the clock."""
    [row] = connect(client, url).sql("select 1 as a").collect()
    return {"value": row[0], "rss_mb": memory_mb("VmRSS")}


def rows(client, url, count):
    spark = connect(client, url)
    spark.sql(f"select {MIXED} from range(10)").collect()
    query = spark.sql(f"select {MIXED} from range({count})")
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    result = query.collect()
    figures = {"cpu_s": time.process_time() - cpu_s, "wall_s": time.perf_counter() - wall_s}
    assert len(result) == count
    assert sum(row.id for row in result) == count * (count - 1) // 2
    return figures


def read(client, url, count, method):
    """How much the memory of the process grows while the whole result is read."""
    spark = connect(client, url)

    def total(limit):
        query = spark.sql(f"select {NUMBERS} from range({limit})")
        if method == "iter_batches":
            return sum(batch.num_rows for batch in query.iter_batches())
        return len(getattr(query, method)())

    total(10)
    gc.collect()
    before_mb = memory_mb("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    wall_s = time.perf_counter()
    assert total(count) == count
    return {"peak_mb": memory_mb("VmHWM") - before_mb, "wall_s": time.perf_counter() - wall_s}


def plan(client, url):
    """Build a select of many expressions and encode it; where encoding is out of reach, by asking for its schema."""
    spark = connect(client, url)
    if client == "solstice":
        from solstice.connect import functions as F
        from solstice.connect._encode import encode_query
        from solstice.connect._protocol import load_protocol

        def encode(query):
            request = load_protocol().ExecutePlanRequest()
            encode_query(query._relation, request.plan)
            return request.SerializeToString()
    else:
        from pyspark.sql import functions as F

        def encode(query):
            if client == "pyspark-client-rust":
                return query.schema
            return query._plan.to_proto(spark._client).SerializeToString()

    def once(expressions):
        columns = [(F.col("id") + number).alias(f"c{number}") for number in range(expressions)]
        return encode(spark.range(10).select(*columns))

    once(10)
    cpu_s = time.process_time()
    once(EXPRESSIONS)
    return {"cpu_s": time.process_time() - cpu_s}


def cut(client, url, count):
    """Read through a proxy that cuts; whether every row came, once."""
    spark = connect(client, url)
    try:
        result = spark.sql(f"select {NUMBERS} from range({count})").collect()
    except Exception as error:  # noqa: BLE001  (whatever a client raises, it has failed)
        return {"exact": False, "error": str(error)[:200]}
    return {"exact": [row[0] for row in result] == list(range(count)), "error": None}


def interrupted(client, url, query):
    """Wait for a query that never ends; the parent sends Ctrl-C."""
    spark = connect(client, url)
    spark.sql("select 1").collect()
    print(json.dumps({"session_id": spark.session_id}), flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        spark.sql(query).collect()
    return {}


CASES = {"start": start, "rows": rows, "read": read, "plan": plan, "cut": cut, "interrupted": interrupted}

if __name__ == "__main__":
    arguments = json.loads(sys.argv[1])
    found = CASES[arguments.pop("case")](**arguments)
    print(json.dumps(found), flush=True)
