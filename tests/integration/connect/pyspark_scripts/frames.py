"""Results for pandas: the values and the types of every column, times in the session's time zone."""

import numpy as np
from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("frames").getOrCreate()
spark.conf.set("spark.sql.session.timeZone", "America/New_York")

QUERIES = {
    "plain": """
        select * from values
            (1Y, 2S, 3, 4L, 1.5f, 2.5d, 1.20bd, 'a', X'00', true, date'2020-01-02', null),
            (null, null, null, null, null, null, null, null, null, null, null, null)
        as t(a, b, c, d, e, f, g, h, i, j, k, l)""",
    "without null": "select 1 a, true b, timestamp'2020-01-01' c, timestamp_ntz'2020-01-01' d, array(1, 2) e",
    "times": """
        select * from values
            (timestamp'2020-07-01 12:00:00.123456', timestamp_ntz'2020-07-01 12:00:00.123456',
                interval '1 02:03:04.5' day to second),
            (null, null, null)
        as t(instant, local, duration)""",
    "clocks set back": """
        select explode(array(timestamp'2020-11-01 05:30:00Z', timestamp'2020-11-01 06:30:00Z')) at""",
    "maps": """
        select
            map('a', 1) plain,
            map('a', timestamp'2020-07-01 12:00:00') instants,
            map(timestamp_ntz'2020-07-01 12:00:00', array(1)) locals,
            map('a', interval '1' day) durations,
            array(map('k', 1)) within
        union all select null, null, null, null, null""",
    "nested": """
        select
            array(timestamp'2020-07-01 12:00:00', null) instants,
            array(timestamp_ntz'2020-07-01 12:00:00') locals,
            array(date'2020-01-01') dates,
            array(array(1, 2), array(3, 4)) numbers,
            array(array(timestamp'2020-07-01')) deep,
            named_struct('x', timestamp'2020-07-01 12:00:00', 'y', map(1, 2), 'z', date'2020-01-01') struct,
            array(named_struct('x', timestamp_ntz'2020-07-01 12:00:00')) structs
        union all select null, null, null, null, null, null, null""",
    "no row": "select 1 a, timestamp'2020-01-01' b, map('a', 1) c, array(timestamp'2020-01-01') d, 'x' e where false",
    "one name": "select 1 a, timestamp'2020-01-01' a, map('a', 1) a",
}


def described(frame):
    columns = [frame.iloc[:, place] for place in range(frame.shape[1])]
    return [(column.name, str(column.dtype), [value_of(value) for value in column]) for column in columns]


def value_of(value):
    dtype = str(value.dtype) if isinstance(value, np.ndarray) else None
    return type(value).__name__, dtype, repr(value)


result = {name: described(spark.sql(query).toPandas()) for name, query in QUERIES.items()}
