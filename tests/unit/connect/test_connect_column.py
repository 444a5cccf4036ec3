"""Columns, windows and rows as a user meets them; what they become is what the contract tests say."""

import datetime

import pytest

from solstice.connect import Row, Window
from solstice.connect import functions as F
from solstice.errors import InvalidPlanError


@pytest.mark.parametrize(
    ("column", "text"),
    [
        (F.col("a") + 1, "(a + 1)"),
        ((F.col("a") > 1) & ~F.col("b").isNull(), "((a > 1) AND not(isNull(b)))"),
        (F.when(F.col("a") == "x", 1).otherwise(None), "CASE WHEN (a == x) THEN 1 ELSE NULL END"),
        (F.count_distinct("a").alias("n"), "count(DISTINCT a) AS n"),
        (F.col("a").cast("int"), "CAST(a AS int)"),
        (F.col("a").try_cast("int"), "TRY_CAST(a AS int)"),
        (F.col("s")["x"][0], "s[x][0]"),
        (F.desc("a"), "a DESC NULLS LAST"),
        (F.asc("a"), "a ASC NULLS FIRST"),
        (F.expr("a + 1"), "a + 1"),
        (F.col("*"), "*"),
        (F.col("s").dropFields("x"), "drop_field(s, x)"),
        (F.lit(datetime.date(2024, 1, 1)), "2024-01-01"),
        (F.lit(datetime.datetime(2024, 1, 1, 5)), "2024-01-01 05:00:00"),
        (F.lit(datetime.timedelta(hours=1)), "1:00:00"),
        (F.sum("a").over(Window.partitionBy("b")), "sum(a) OVER (PARTITION BY b)"),
    ],
)
def test_a_column_shows_what_it_is(column, text):
    assert repr(column) == f"Column<'{text}'>"


def test_a_very_deep_column_can_be_shown():
    column = F.col("a")
    for _ in range(5000):
        column = column + 1
    assert "..." in repr(column)


@pytest.mark.parametrize("use", [bool, lambda c: 1 in c, lambda c: c and c, lambda c: not c])
def test_a_column_has_no_value_in_python(use):
    with pytest.raises(InvalidPlanError) as caught:
        use(F.col("a"))
    assert caught.value.remedy
    with pytest.raises(TypeError):
        iter(F.col("a"))


def test_private_names_are_not_fields():
    with pytest.raises(AttributeError, match=r"column\['_x'\]"):
        _ = F.col("a")._x
    assert not hasattr(F.col("a"), "__array__")


@pytest.mark.parametrize(
    "use",
    [
        lambda c: c.otherwise(1),
        lambda c: c.when(c, 1),
        lambda c: F.when(c, 1).otherwise(2).otherwise(3),
        lambda c: c.substr(1, F.lit(2)),
        lambda c: c[1:2:3],
        lambda c: c.dropFields(),
        lambda c: c.alias("x", "y", metadata={}),
        lambda c: c > 2**70,
    ],
)
def test_what_makes_no_sense_is_refused_with_a_remedy(use):
    with pytest.raises(InvalidPlanError) as caught:
        use(F.col("a"))
    assert caught.value.remedy


@pytest.mark.parametrize(
    "use", [lambda c: c.cast(int), lambda c: c.over("w"), lambda c: c.withField("x", 1), lambda c: F.when(True, 1)]
)
def test_the_wrong_kind_of_argument_is_a_type_error(use):
    with pytest.raises(TypeError):
        use(F.col("a"))


def test_a_window_without_partitions_is_warned_about():
    with pytest.warns(UserWarning, match="partition_by"):
        F.row_number().over(Window.orderBy("a"))


def test_a_frame_of_too_many_rows_is_refused():
    with pytest.raises(InvalidPlanError, match="unbounded"):
        Window.rowsBetween(-(2**40), 0)


def test_snake_case_and_camel_case_are_the_same():
    assert repr(F.col("a").is_null()) == repr(F.col("a").isNull())
    assert repr(F.col("a").between(lower_bound=1, upper_bound=2)) == repr(
        F.col("a").between(lowerBound=1, upperBound=2)
    )
    assert F.col("a").isNaN.__name__ == "is_nan"


def test_a_row_of_names_makes_rows():
    person = Row("name", "age")
    ann = person("Ann", 5)
    assert (ann.name, ann["age"], ann.asDict()) == ("Ann", 5, {"name": "Ann", "age": 5})
    with pytest.raises(ValueError, match="3 values"):
        person(1, 2, 3)
    with pytest.raises(ValueError, match="2 values"):
        ann(1, 2)


def test_a_window_shows_what_it_is():
    window = Window.partitionBy("a").orderBy(F.desc("b"))
    assert repr(window) == "WindowSpec(PARTITION BY a ORDER BY b DESC NULLS LAST)"
