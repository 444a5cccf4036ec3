"""DataFrames out of rows, dicts, objects, pandas, numpy and Arrow; and what is refused."""

import array
import collections
import datetime as dt
import decimal

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import Row, SparkSession
from pyspark.sql import types as T

spark = SparkSession.builder.getOrCreate()
spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")

Point = collections.namedtuple("Point", "x y")
noon = dt.datetime(2024, 7, 1, 12)
days = pd.DataFrame({"t": [noon, dt.datetime(1960, 1, 1)], "d": [dt.date(2020, 1, 1), None], "s": ["x", None]})
typed = pd.DataFrame({"i": pd.Series([1, None], dtype="Int64"), "c": pd.Categorical(["p", "q"])})
map_type = pa.map_(pa.string(), pa.timestamp("us"))
SOURCES = {
    "tuples": lambda: spark.createDataFrame([(1, "a", None), (2, "b", 3.5)], ["i", "s", "f"]),
    "dicts": lambda: spark.createDataFrame([{"b": 1, "a": "x"}, {"c": [1, 2]}]),
    "nested": lambda: spark.createDataFrame([{"a": {"k": {"z": 1}}, "l": [{"q": 1}, {"q": None}], "t": (1, "x")}]),
    "rows": lambda: spark.createDataFrame([Row(n="x", v=Row(a=1, b=[Row(c=2)]))]),
    "named tuples": lambda: spark.createDataFrame([Point(1, "a"), Point(2, None)]),
    "times": lambda: spark.createDataFrame(
        [(dt.date(1, 1, 1), dt.datetime(1850, 1, 1, 12), noon, dt.timedelta(-1, 1))]
    ),
    "local times": lambda: spark.createDataFrame([(noon,), (dt.datetime(1800, 1, 1),)], "t timestamp_ntz"),
    "decimals": lambda: spark.createDataFrame([(decimal.Decimal("1.256"),), (None,)], "d decimal(5,2)"),
    "arrays": lambda: spark.createDataFrame([(array.array("d", [1.5]), b"x", bytearray(b"y"))], ["a", "b", "c"]),
    "mixed": lambda: spark.createDataFrame([(1,), ("x",), (None,)], ["a"]),
    "numpy's values": lambda: spark.createDataFrame([(np.int64(1), np.float32(1.5), np.bool_(True))], ["a", "b", "c"]),
    "numpy": lambda: spark.createDataFrame(np.arange(6).reshape(3, 2)),
    "pandas": lambda: spark.createDataFrame(days),
    "pandas, typed": lambda: spark.createDataFrame(typed),
    "pandas, schema": lambda: spark.createDataFrame(pd.DataFrame({"i": [1], "s": ["a"]}), "x bigint, y string"),
    "pandas, nested": lambda: spark.createDataFrame(pd.DataFrame({"l": [[noon]], "d": [{"a": noon}]})),
    "pandas, no rows": lambda: spark.createDataFrame(pd.DataFrame(), "a int"),
    "arrow": lambda: spark.createDataFrame(pa.table({"i": [1, 2], "l": [[1], None], "s": [{"a": 1}, None]})),
    "arrow, names": lambda: spark.createDataFrame(pa.table({"i": [1, 2], "s": ["x", None]}), ["p", "q"]),
    "arrow, schema": lambda: spark.createDataFrame(pa.table({"i": [1, 2], "s": ["x", None]}), "i int, s string"),
    "arrow, nested": lambda: spark.createDataFrame(
        pa.table({"l": [[noon]], "s": [{"t": noon}], "m": pa.array([[("k", noon)]], map_type)})
    ),
    "too few": lambda: spark.createDataFrame([(1,)], ["a", "b"]),
    "too many": lambda: spark.createDataFrame([(1, 2)], "a int"),
    "no type": lambda: spark.createDataFrame([(None,)], ["a"]),
    "null": lambda: spark.createDataFrame([(None,)], T.StructType([T.StructField("a", T.LongType(), False)])),
    "too large": lambda: spark.createDataFrame([(300,)], "a tinyint"),
    "other columns": lambda: spark.createDataFrame(pa.table({"s": ["x"], "i": [1]}), "i int, s string"),
    "other values": lambda: spark.createDataFrame(pa.table({"i": ["x"]}), "i int"),
}


def described(make):
    try:
        frame = make()
        return repr(frame.schema), repr(frame.collect())
    except Exception:  # noqa: BLE001  (each client has errors of its own)
        return "refused"


result = {name: described(make) for name, make in SOURCES.items()}
