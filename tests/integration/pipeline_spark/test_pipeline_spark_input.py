"""How a resumed batch of Spark notices that its query or its input has changed."""

import os
from urllib.parse import quote

import pytest

from solstice.pipeline._spark_batch import fingerprint, input_versions

pytestmark = pytest.mark.spark


@pytest.fixture
def table(spark, tmp_path):
    """A file of 40 columns, and a function that reads it anew."""
    columns = ["concat('#', id) AS tag", *(f"id + {n} AS c{n}" for n in range(40))]
    spark.range(0, 10, 1, 1).selectExpr("id", *columns).write.parquet(str(tmp_path / "in put"))
    return lambda: spark.read.parquet(str(tmp_path / "in put"))


def test_the_same_query_has_the_same_fingerprint_each_time_it_is_made(spark, table):
    spark.udf.register("same", lambda x: x)
    queries = [
        lambda: table().where("tag = '#1'").groupBy("c1").count().join(table(), "c1"),
        lambda: table().mapInArrow(lambda batches: batches, "id long"),
        lambda: table().selectExpr("same(id)", "(SELECT max(id) FROM range(5)) AS most"),
        lambda: table().repartition(3, "c1").sortWithinPartitions("c2"),
        lambda: spark.createDataFrame([(1, "a")], "i int, s string"),
        lambda: table().selectExpr("id + 1 AS x").cache(),
    ]
    for number, query in enumerate(queries):
        frames = [query(), query()]
        assert fingerprint(frames[0]) == fingerprint(frames[1]), number
        frames[0].unpersist()
        assert fingerprint(query()) == fingerprint(frames[0]), number


def test_queries_that_differ_have_different_fingerprints(table):
    wide = [f"c{n}" for n in range(40)]
    queries = [
        table().where("tag = '#1'"),
        table().where("tag = '#2'"),
        table().where("tag = 'a@1f'"),
        table().where("tag = 'a@2f'"),
        table().where("tag = 'j.doe@abc.com'"),
        table().where("tag = 'j.doe@abd.com'"),
        table().select(*wide),
        table().select(*wide[:30], "c31", "c30", *wide[32:]),
        table().selectExpr("id AS a"),
        table().selectExpr("id AS b"),
    ]
    names = [fingerprint(query) for query in queries]
    assert len(set(names)) == len(names)
    assert fingerprint(queries[0], "task") != fingerprint(queries[0], "job")


def test_a_changed_file_is_another_batch(spark, table, tmp_path):
    before = fingerprint(table())
    (path,) = (tmp_path / "in put").glob("*.parquet")
    os.utime(path, (1, 1))
    assert fingerprint(table()) != before


@pytest.mark.parametrize("name", ["plain", "a b", "ä%20#?c", "date=2024-01-01 00%3A00"])
@pytest.mark.parametrize("prefix", ["file://", "file:"])
def test_a_changed_file_has_another_version_whatever_its_name(spark, tmp_path, name, prefix):
    path, other = tmp_path / name, tmp_path / "other"
    path.write_text("rows")
    other.write_text("others")
    url, second = f"{prefix}{quote(str(path))}", f"{prefix}{quote(str(other))}"
    seen = [input_versions(spark, [url])[url]]
    assert input_versions(spark, [second, url]) == {second: input_versions(spark, [second])[second], url: seen[0]}
    os.utime(path, (1, 1))
    seen.append(input_versions(spark, [url])[url])
    path.write_text("more rows")
    os.utime(path, (1, 1))
    seen.append(input_versions(spark, [url])[url])
    path.unlink()
    seen.append(input_versions(spark, [url])[url])
    assert len(set(seen)) == 4
    assert seen[-1] == input_versions(spark, [url, second])[url] == "absent"
