"""Chains of with_column: which of them are one step for the server."""

import pytest

from solstice.connect import _encode
from solstice.connect import functions as F
from solstice.connect._expressions import Alias
from solstice.connect._plan import Sql, WithColumns
from solstice.connect._protocol import load_protocol


def chain(*steps):
    frame = Sql("t")
    for step in steps:
        frame = WithColumns(frame, added(step))
    return frame


def added(step):
    return tuple(Alias(column._expression, (name,)) for name, column in step.items())


def steps_of(frame):
    """The names that each step adds, the first step first, as they are sent."""
    request = load_protocol().ExecutePlanRequest()
    _encode.encode_query(frame, request.plan)
    relation, steps = request.plan.root, []
    while relation.WhichOneof("rel_type") == "with_columns":
        steps.insert(0, [name for alias in relation.with_columns.aliases for name in alias.name])
        relation = relation.with_columns.input
    assert relation.sql.query == "t"
    return steps


@pytest.mark.parametrize(
    ("steps", "sent"),
    [
        ([{"a": F.col("x") + 1}, {"b": F.upper("y")}, {"c": F.lit(1), "d": F.col("x")}], [["a", "b", "c", "d"]]),
        ([{"a": F.col("x")}, {"b": F.col("a")}, {"c": F.col("x")}], [["a"], ["b", "c"]]),
        ([{"a": F.col("x")}, {"b": F.col("A") + 1}], [["a"], ["b"]]),
        ([{"a": F.col("x")}, {"b": F.col("`a`")}], [["a"], ["b"]]),
        ([{"a": F.col("x")}, {"b": F.col("a.field")}], [["a"], ["b"]]),
        ([{"a": F.col("x")}, {"b": F.col("t.a")}], [["a"], ["b"]]),
        ([{"a": F.col("x")}, {"a": F.col("y")}], [["a"], ["a"]]),
        ([{"a": F.col("x")}, {"A": F.col("y")}], [["a"], ["A"]]),
        ([{"a.b": F.col("x")}, {"c": F.col("y")}], [["a.b"], ["c"]]),
        ([{"a": F.col("x")}, {"b": F.expr("y + 1")}, {"c": F.col("x")}], [["a"], ["b"], ["c"]]),
        ([{"a": F.col("x")}, {"b": F.struct("*")}], [["a"], ["b"]]),
        ([{"a": F.explode("x")}, {"b": F.explode("y")}], [["a"], ["b"]]),
        ([{"a": F.col("x")}, {"b": F.call_function("f", F.col("y"))}], [["a"], ["b"]]),
        ([{"a": F.col("x")}, {"b": F.transform("y", lambda v: v + 1)}], [["a", "b"]]),
        ([{"a": F.col("x")}, {"b": F.transform("y", lambda v: v + F.col("a"))}], [["a"], ["b"]]),
    ],
)
def test_steps_are_one_if_the_later_cannot_mean_what_the_earlier_adds(steps, sent):
    assert steps_of(chain(*steps)) == sent


def test_a_relation_that_somebody_may_refer_to_stays_a_step():
    first = chain({"a": F.col("x")})
    second = WithColumns(first, added({"b": F.col("y")}))
    assert first.plan_id
    assert steps_of(WithColumns(second, added({"c": F.col("z")}))) == [["a"], ["b", "c"]]


def test_what_is_sent_is_the_relation_that_was_asked_for():
    frame = chain({"a": F.col("x")}, {"b": F.col("y")})
    request = load_protocol().ExecutePlanRequest()
    _encode.encode_query(frame, request.plan)
    assert request.plan.root.common.plan_id == frame.plan_id
    assert not frame.input.has_id


def test_thousands_of_steps_are_no_deeper_than_one():
    assert len(steps_of(chain(*({f"c{number}": F.col("x")} for number in range(3_000))))) == 1
