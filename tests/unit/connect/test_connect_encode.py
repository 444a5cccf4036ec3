import pytest

from solstice.connect import _encode
from solstice.connect._encode import MAX_NESTING
from solstice.connect._plan import Aggregate, Function, Limit, Literal, ServerRelation, Sql, SqlCommand
from solstice.connect._protocol import load_protocol
from solstice.errors import InvalidPlanError


def encode_query(relation):
    request = load_protocol().ExecutePlanRequest()
    _encode.encode_query(relation, request.plan)
    return request.plan


def encode_command(command):
    request = load_protocol().ExecutePlanRequest()
    _encode.encode_command(command, request.plan)
    return request.plan


def test_a_query_with_a_limit():
    plan = encode_query(Limit(Sql("select 1"), 5))
    assert plan.root.limit.limit == 5
    assert plan.root.limit.input.sql.query == "select 1"


def test_a_command_is_not_a_query():
    plan = encode_command(SqlCommand("drop table t"))
    assert plan.WhichOneof("op_type") == "command"
    assert plan.command.sql_command.input.sql.query == "drop table t"


def test_an_aggregate_keeps_the_order_of_its_expressions():
    relation = Aggregate(Sql("t"), (Literal("g"),), (Function("count", (Literal(1),)), Function("sum", (Literal(2),))))
    aggregate = encode_query(relation).root.aggregate
    assert aggregate.group_type == aggregate.GROUP_TYPE_GROUPBY
    assert [e.literal.string for e in aggregate.grouping_expressions] == ["g"]
    functions = [e.unresolved_function for e in aggregate.aggregate_expressions]
    assert [(f.function_name, f.arguments[0].literal.integer) for f in functions] == [("count", 1), ("sum", 2)]


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
    ],
)
def test_a_literal_has_the_smallest_type_that_holds_it(value, kind):
    encoded = encode_query(Aggregate(Sql("t"), (), (Literal(value),)))
    literal = encoded.root.aggregate.aggregate_expressions[0].literal
    assert literal.WhichOneof("literal_type") == kind
    if value is not None:
        assert getattr(literal, kind) == value


def test_a_number_beyond_64_bits_is_refused():
    with pytest.raises(InvalidPlanError, match="64 bits"):
        encode_query(Aggregate(Sql("t"), (), (Literal(2**63),)))


def test_a_relation_of_the_server_comes_back_as_it_was():
    given = load_protocol().Relation(cached_remote_relation={"relation_id": "r1"})
    encoded = encode_query(Limit(ServerRelation(given.SerializeToString()), 1))
    assert encoded.root.limit.input.cached_remote_relation.relation_id == "r1"


def test_each_relation_has_a_plan_id_of_its_own():
    encoded = encode_query(Limit(Limit(Sql("t"), 2), 1)).root
    ids = [encoded.common.plan_id, encoded.limit.input.common.plan_id, encoded.limit.input.limit.input.common.plan_id]
    assert len(set(ids)) == 3


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
