import datetime
import decimal
import time

import pytest

from solstice.connect import _encode
from solstice.connect._encode import MAX_NESTING
from solstice.connect._expressions import Alias, Attribute, Function, Literal, SortOrder, Star, Subquery
from solstice.connect._literals import literal
from solstice.connect._plan import (
    Aggregate,
    Filter,
    Limit,
    Project,
    ServerRelation,
    Sort,
    Sql,
    SqlCommand,
    ToDF,
    WithColumns,
    WithRelations,
    with_references,
)
from solstice.connect._protocol import load_protocol
from solstice.errors import ArgumentTypeError, InvalidPlanError


def encode_query(relation):
    request = load_protocol().ExecutePlanRequest()
    _encode.encode_query(relation, request.plan)
    return request.plan


def encode_command(command):
    request = load_protocol().ExecutePlanRequest()
    _encode.encode_command(command, request.plan)
    return request.plan


def encode_literal(value):
    [expression] = encode_query(Project(Sql("t"), (literal(value),))).root.project.expressions
    return expression.literal


def test_a_query_with_a_limit():
    plan = encode_query(Limit(Sql("select 1"), 5))
    assert plan.root.limit.limit == 5
    assert plan.root.limit.input.sql.query == "select 1"


def test_a_command_is_not_a_query():
    plan = encode_command(SqlCommand(Sql("drop table t")))
    assert plan.WhichOneof("op_type") == "command"
    assert plan.command.sql_command.input.sql.query == "drop table t"


def test_an_aggregate_keeps_the_order_of_its_expressions():
    aggregates = (Function("count", (literal(1),)), Function("sum", (literal(2),)))
    aggregate = encode_query(Aggregate(Sql("t"), "GROUP_TYPE_GROUPBY", (literal("g"),), aggregates)).root.aggregate
    assert aggregate.group_type == aggregate.GROUP_TYPE_GROUPBY
    assert [e.literal.string for e in aggregate.grouping_expressions] == ["g"]
    functions = [e.unresolved_function for e in aggregate.aggregate_expressions]
    assert [(f.function_name, f.arguments[0].literal.integer) for f in functions] == [("count", 1), ("sum", 2)]


def test_an_expression_without_fields_is_still_there():
    [star] = encode_query(Project(Sql("t"), (Star(),))).root.project.expressions
    assert star.WhichOneof("expr_type") == "unresolved_star"


def test_where_only_one_kind_can_stand_there_is_no_wrapper():
    order = SortOrder(Attribute("a"), "SORT_DIRECTION_DESCENDING", "SORT_NULLS_LAST")
    [encoded] = encode_query(Sort(Sql("t"), (order,), True)).root.sort.order
    assert encoded.child.unresolved_attribute.unparsed_identifier == "a"
    assert encoded.direction == encoded.SORT_DIRECTION_DESCENDING
    [alias] = encode_query(WithColumns(Sql("t"), (Alias(Attribute("a"), ("x",)),))).root.with_columns.aliases
    assert list(alias.name) == ["x"]


@pytest.mark.parametrize(
    ("relation", "reason"),
    [
        (Limit(Sql("t"), "5"), "'limit' of Limit is a whole number, not '5'"),
        (Sql(5), "'query' of Sql is text, not 5"),
        (ToDF(Sql("t"), ("a", 5)), "'column_names' of ToDF is text, not 5"),
        (Sort(Sql("t"), (), "no"), "'is_global' of Sort is True or False, not 'no'"),
        (Limit("t", 5), "'input' of Limit is a Relation, not 't'"),
    ],
)
def test_a_value_that_no_field_can_have_is_refused_by_name(relation, reason):
    with pytest.raises(ArgumentTypeError, match=reason):
        encode_query(relation)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (None, "null"),
        (True, "boolean"),
        (2**31 - 1, "integer"),
        (-(2**31), "integer"),
        (2**31, "long"),
        (-(2**63), "long"),
        (1.5, "double"),
        ("x", "string"),
        (b"x", "binary"),
    ],
)
def test_a_literal_has_the_smallest_type_that_holds_it(value, kind):
    encoded = encode_literal(value)
    assert encoded.WhichOneof("literal_type") == kind
    if value is not None:
        assert getattr(encoded, kind) == value


def test_times_are_counted_from_1970_and_from_midnight():
    assert encode_literal(datetime.date(1970, 1, 2)).date == 1
    assert encode_literal(datetime.datetime(1970, 1, 1, 0, 0, 1, 5, datetime.UTC)).timestamp == 1_000_005
    assert encode_literal(datetime.timedelta(days=-1)).day_time_interval == -86_400_000_000
    assert encode_literal(datetime.time(0, 0, 1)).time.nano == 1_000_000_000
    assert encode_literal(decimal.Decimal("1.50")).decimal.value == "1.50"


def test_a_datetime_without_a_zone_is_in_that_of_this_process(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Europe/Warsaw")
        time.tzset()
        naive = encode_literal(datetime.datetime(2024, 7, 1, 12, 0, 0, 5)).timestamp
        zoned = encode_literal(datetime.datetime(2024, 7, 1, 10, 0, 0, 5, datetime.UTC)).timestamp
    time.tzset()
    assert naive == zoned == 1_719_828_000_000_005


def test_an_array_has_the_type_of_its_first_element():
    array = encode_literal([1, None]).array
    assert array.element_type.WhichOneof("kind") == "integer"
    assert [element.WhichOneof("literal_type") for element in array.elements] == ["integer", "null"]


@pytest.mark.parametrize("values", [[], [None], [1, "x"]])
def test_an_array_whose_type_cannot_be_told_is_refused(values):
    with pytest.raises(InvalidPlanError):
        literal(values)


def test_what_has_no_type_in_spark_is_refused():
    with pytest.raises(InvalidPlanError, match="object"):
        literal(object())


def test_a_number_beyond_64_bits_is_refused():
    with pytest.raises(InvalidPlanError, match="64 bits"):
        literal(2**63)


def test_a_relation_of_the_server_comes_back_as_it_was():
    given = load_protocol().Relation(cached_remote_relation={"relation_id": "r1"})
    encoded = encode_query(Limit(ServerRelation(given.SerializeToString()), 1))
    assert encoded.root.limit.input.cached_remote_relation.relation_id == "r1"


def test_each_relation_has_a_plan_id_of_its_own():
    encoded = encode_query(Limit(Limit(Sql("t"), 2), 1)).root
    ids = [encoded.common.plan_id, encoded.limit.input.common.plan_id, encoded.limit.input.limit.input.common.plan_id]
    assert len(set(ids)) == 3


def test_a_relation_keeps_its_id_within_a_larger_plan():
    # A server that caches analyzed plans then knows it again.
    inner = Limit(Sql("t"), 2)
    alone, within = encode_query(inner).root, encode_query(Limit(inner, 1)).root.limit.input
    assert alone == within


def test_a_subquery_is_a_reference_that_travels_with_its_relation():
    inner = Limit(Sql("u"), 1)
    relation = with_references(Filter(Sql("t"), Subquery(inner, "SUBQUERY_TYPE_EXISTS")))
    assert isinstance(relation, WithRelations)
    encoded = encode_query(relation).root.with_relations
    assert encoded.root.filter.condition.subquery_expression.plan_id == inner.plan_id
    assert encoded.references[0].common.plan_id == inner.plan_id


def test_a_relation_without_subqueries_stays_alone():
    relation = Filter(Sql("t"), Function("f", (Literal("integer", 1),)))
    assert with_references(relation) is relation


def test_a_relation_has_its_own_references_only():
    inner = with_references(Filter(Sql("t"), Subquery(Sql("u"), "SUBQUERY_TYPE_EXISTS")))
    outer = Limit(inner, 1)
    assert with_references(outer) is outer


def nested(depth):
    relation = Sql("t")
    for _ in range(depth):
        relation = Limit(relation, 1)
    return relation


def test_the_deepest_plan_that_a_server_parses_is_encoded_without_recursion():
    # Tried on Spark 4.3: 510 operations are parsed, 511 are not.
    assert len(encode_query(nested(510)).SerializeToString()) > 510


def test_a_plan_that_the_server_would_not_parse_is_refused_here():
    with pytest.raises(InvalidPlanError, match=str(MAX_NESTING)):
        encode_query(nested(511))


def test_a_very_deep_plan_is_refused_without_a_recursion_error():
    with pytest.raises(InvalidPlanError):
        encode_query(nested(100_000))


def test_deep_expressions_count_too():
    expression = Attribute("a")
    for _ in range(511):
        expression = Function("not", (expression,))
    with pytest.raises(InvalidPlanError, match="about 512 operations"):
        encode_query(Project(Sql("t"), (expression,)))
