"""The light install: pyspark-client in place of pyspark, in an environment that has little else."""

import json
import os
import subprocess
from pathlib import Path

import pytest

import solstice
from environments import environment

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SCRIPT = """
import asyncio, importlib.util, json, sys
import solstice.connect as sc
from solstice import errors
from solstice.connect import functions as F, Window
from solstice.connect._descriptors import find_pyspark

OTHERS = ("pandas", "numpy", "polars", "rich", "typer")

def refused(action):
    try:
        action()
    except errors.MissingExtraError as error:
        return str(error)

async def awaited():
    async with await sc.connect_async(sys.argv[1]) as spark:
        return [row.id async for row in spark.range(3).iter_rows()]

with sc.connect(sys.argv[1]) as spark:
    numbers = spark.range(10).with_column("odd", F.col("id") % 2)
    largest = F.row_number().over(Window.partition_by("odd").order_by(F.desc("id")))
    found = {
        "protocol": find_pyspark().version,
        "missing": [name for name in OTHERS if not importlib.util.find_spec(name)],
        "rows": numbers.with_column("n", largest).where("n = 1").sort("odd").collect(),
        "types": repr(spark.sql("select date'2024-02-29' d, timestamp_ntz'2024-02-29 01:02:03' t, 1.50 n").first()),
        "columns": numbers.columns,
        "awaited": asyncio.run(awaited()),
        "server": refused(sc.local),
        "loaded": [name for name in ("pyspark", "pyarrow") if name in sys.modules],
        "sent": spark.create_dataframe([(1, "a"), (2, None)], "id INT, name STRING").sort("id").collect(),
        "arrow": numbers.to_arrow().num_rows,
    }
    sys.modules["pyarrow"] = None  # as if it were not installed
    found["without_arrow"] = refused(numbers.to_arrow)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def python():
    return environment("light", ("grpcio", "protobuf", "pyarrow"), alone=("pyspark-client==4.2.0",))


def test_the_client_works_with_pyspark_client_in_place_of_pyspark(server, python):
    variables = os.environ | {"PYTHONPATH": str(Path(solstice.__file__).parents[1])}
    ran = subprocess.run(
        [python, "-c", SCRIPT, server.url], env=variables, capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert "solstice-spark[spark]" in found.pop("server")
    assert "solstice-spark[spark]" in found.pop("without_arrow")
    assert found == {
        "protocol": "4.2.0",
        "missing": ["pandas", "numpy", "polars", "rich", "typer"],
        "rows": [[8, 0, 1], [9, 1, 1]],
        "types": "Row(d=datetime.date(2024, 2, 29), t=datetime.datetime(2024, 2, 29, 1, 2, 3), n=Decimal('1.50'))",
        "columns": ["id", "odd"],
        "awaited": [0, 1, 2],
        "loaded": [],
        "sent": [[1, "a"], [2, None]],
        "arrow": 10,
    }
