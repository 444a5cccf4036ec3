"""Values of every type, as rows, as schemas, printed and as Arrow data; in a time zone that has a summer."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.builder.getOrCreate()
spark.conf.set("spark.sql.session.timeZone", "America/New_York")

QUERIES = {
    "days": "select date'0001-01-01' a, date'1582-10-15' b, date'1899-12-31' c, date'9999-12-31' d",
    "instants": """
        select timestamp'1850-06-01 12:00:00' a, timestamp'1899-12-31 23:59:59.999999' b, timestamp'2500-06-01' c,
            timestamp'2024-03-10 02:30:00' skipped, timestamp'2024-11-03 06:30:00Z' second""",
    "local times": "select timestamp_ntz'0001-01-01 00:00:00' a, timestamp_ntz'9999-12-31 23:59:59.999999' b",
    "durations": "select interval '-1' day a, interval '106751990' day b, interval '1 02:03:04.000005' day to second c",
    "decimals": """
        select 1.10bd a, cast('-99999999999999999999999999999999999999' as decimal(38,0)) b,
            cast('0.000000000000000001' as decimal(38,18)) c, cast(null as decimal(5,2)) d""",
    "numbers": "select -128Y a, 9223372036854775807L b, cast('nan' as double) c, cast('-inf' as float) d, 1.1f e",
    "texts": "select '' a, 'żółć' b, cast(null as string) c, X'00ff' d, 'a' collate UNICODE_CI e",
    "arrays": "select array(null) a, array(array(1, null), null) b, array(timestamp'2020-07-01') c, array(1.5bd) d",
    "maps": "select map('k', null) a, map(1, array(1)) b, map(date'2020-01-01', named_struct('x', 1)) c",
    "structs": """
        select named_struct('a', 1, 'b', named_struct('c', null, 'd', array(named_struct('e', map('k', array(1)))))) s,
            cast(null as struct<a:int>) n""",
    "names": "select 1 `a b`, 2 `a.b`, 3 ``, 4 `count`, 5 `__x`, 6 a, 7 a",
    "no rows": "select id, array(id) a, named_struct('x', id) b, map(id, id) m, timestamp'2020-01-01' t from range(0)",
    "no columns": "select * except (id) from range(3)",
}
TWICE = "select named_struct('x', 1, 'y', 2, 'x', 3) s, array(named_struct('x_0', 4, 'x_1', 5, 'z', 6)) other"


def described(query):
    frame = spark.sql(query)
    return {
        "rows": repr(frame.collect()),
        "one by one": repr(list(frame.toLocalIterator())),
        "schema": repr(frame.schema),
        "json": frame.toJSON().collect(),
    }


def arrow(query):
    table = spark.sql(query).toArrow()
    return [str(kind) for kind in table.schema.types], repr([column.to_pylist() for column in table.columns])


result = {name: described(query) for name, query in QUERIES.items()}
result["arrow"] = {name: arrow(query) for name, query in QUERIES.items() if name not in ("arrays", "maps", "names")}
result["one name twice"] = repr(spark.sql(TWICE).collect())
result["zipped"] = repr(spark.range(1).select(F.arrays_zip(F.array("id"), F.array("id"))).collect()[0][0])
