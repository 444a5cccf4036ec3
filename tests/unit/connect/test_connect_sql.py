import pytest

from solstice.connect._sql import is_query


@pytest.mark.parametrize(
    "text",
    [
        "select 1",
        "SELECT * FROM t",
        "Values (1), (2)",
        "table t",
        "  \n\t select 1",
        "-- a comment\nselect 1",
        "-- insert into t\r\n select 1",
        "/* insert */ select 1",
        "/* outer /* insert */ still a comment */ select 1",
        "/*+ hint */ select 1",
        "((select 1)) union (select 2)",
        "( -- why\n ( values 1 ))",
        "with a as (select 1) select * from a",
        "with a as (select ')' as x, `)` from t) select * from a",
        "with a(x, y) as (values (1, 2)), b as (select 1) table a",
        "with a (x) (select 1) select * from a",
        "with a as (select '\\'') select 1",
        "with a as (select r'\\') select 1",
        "with recursive r(n) max recursion level 5 as (select 1) select n from r",
        "(with a as (select 1) select * from a)",
    ],
)
def test_a_query_is_lazy(text):
    assert is_query(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-- only a comment",
        "/* never closed select 1",
        "insert into t select 1",
        "/* select */ create table t as select 1",
        "-- select\ndrop table t",
        "with a as (select 1) insert into t select * from a",
        "with a as (select 1), b as (select 2) from a insert into t select *",
        "from t insert into u select * insert into v select *",
        "set spark.x = 1",
        "show tables",
        "describe t",
        "explain select 1",
        "begin select 1; end",
        "`select` 1",
        "selecting",
        "'select'",
        "execute immediate 'select 1'",
        "with",
    ],
)
def test_everything_else_runs_at_once(text):
    assert not is_query(text)


def test_a_long_query_is_told_by_its_first_word():
    # Scanning a megabyte of values would be felt; the first token decides.
    assert is_query("select " + "1," * 5_000_000 + "1")
