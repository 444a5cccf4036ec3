"""How a program uses both clients, with the types that an editor shows; a test has mypy check it."""

from typing import assert_type

import solstice.connect as sc
from solstice.connect import types as T


def blocking(spark: sc.Session) -> None:
    frame = spark.read.parquet("x").group_by("a").count()
    assert_type(frame, sc.DataFrame)
    assert_type(frame.collect(max_rows=5), list[sc.Row])
    assert_type(frame.schema, T.StructType)
    assert_type(frame.cache(), sc.DataFrame)
    assert_type(frame.head(), sc.Row | None)
    assert_type(next(frame.iter_rows()), sc.Row)
    assert_type(frame.stat.corr("a", "b"), float)
    assert_type(spark.create_dataframe([1]), sc.DataFrame)
    assert_type(spark.conf.get("a"), str | None)
    assert_type(spark.conf.get_all, dict[str, str])
    assert_type(spark.new_session(), sc.Session)


async def awaited(url: str) -> None:
    async with await sc.connect_async(url) as spark:
        frame = spark.read.parquet("x").group_by("a").count()
        assert_type(frame, sc.AsyncDataFrame)
        assert_type(await frame.collect(max_rows=5), list[sc.Row])
        assert_type(await frame.schema(), T.StructType)
        assert_type(await frame.cache(), sc.AsyncDataFrame)
        assert_type(await frame.head(), sc.Row | None)
        assert_type([row async for row in frame.iter_rows()], list[sc.Row])
        assert_type(await frame.stat.corr("a", "b"), float)
        assert_type(await spark.create_dataframe([1]), sc.AsyncDataFrame)
        assert_type(await spark.conf.get("a"), str | None)
        assert_type(await spark.conf.get_all(), dict[str, str])
        assert_type(await spark.new_session(), sc.AsyncSession)
