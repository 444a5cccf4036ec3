"""Encodes a plan as the protocol's messages, from the root down and without recursion: plans may be very deep.

A node's encoder fills the node's own fields and returns its children with the empty messages they belong in, so that
nothing is copied. The server parses a limited number of nested messages; it is counted here, where it can be explained.
"""

from collections.abc import Callable
from typing import Any

from solstice.connect import _plan as plan
from solstice.errors import InvalidPlanError

# The server, by default, parses this many messages nested in a request, and of more says nothing but "UNKNOWN".
MAX_NESTING = 1024

# A relation or an expression is two messages: a wrapper (Relation) and its own (Limit), which holds its inputs.
_LEVELS_PER_NODE = 2
_ROOT_LEVEL = 3  # schema, plan, root

_INT32 = range(-(2**31), 2**31)
_INT64 = range(-(2**63), 2**63)

# The children of a node, each with the empty message it belongs in.
Children = list[tuple[Any, Any]]


def encode_query(relation: plan.Relation, message: Any) -> None:
    """Fill a Plan message, in its place in a request, with a query.

    In place, because protobuf copies a message by parsing it, and Python's parser stops at 100 levels.
    """
    _encode(relation, message.root)


def encode_command(command: plan.Command, message: Any) -> None:
    """Fill a Plan message, in its place in a request, with a command."""
    _encode(command, message.command)


def _encode(root: Any, message: Any) -> None:
    plan_ids: dict[int, int] = {}
    stack = [(root, message, _ROOT_LEVEL)]
    while stack:
        node, target, level = stack.pop()
        if level + 1 > MAX_NESTING:
            raise InvalidPlanError(
                f"the plan is nested more than {MAX_NESTING} messages deep (about {MAX_NESTING // 2} operations); "
                "a server would not parse it.",
                remedy="Save an intermediate result, for example as a table, and go on from there.",
            )
        if isinstance(node, plan.Relation):
            # Columns refer to a relation by this id, so one node has one id, wherever it stands.
            target.common.plan_id = plan_ids.setdefault(id(node), len(plan_ids))
        children = _ENCODERS[type(node)](node, target)
        stack.extend((child, place, level + _LEVELS_PER_NODE) for child, place in reversed(children))


def _sql(node: plan.Sql, message: Any) -> Children:
    message.sql.query = node.query
    return []


def _server_relation(node: plan.ServerRelation, message: Any) -> Children:
    plan_id = message.common.plan_id
    message.MergeFromString(node.data)
    message.common.plan_id = plan_id
    return []


def _limit(node: plan.Limit, message: Any) -> Children:
    message.limit.limit = node.row_count
    return [(node.input, message.limit.input)]


def _aggregate(node: plan.Aggregate, message: Any) -> Children:
    aggregate = message.aggregate
    aggregate.group_type = aggregate.GROUP_TYPE_GROUPBY
    return [
        (node.input, aggregate.input),
        *((expression, aggregate.grouping_expressions.add()) for expression in node.grouping),
        *((expression, aggregate.aggregate_expressions.add()) for expression in node.aggregates),
    ]


def _literal(node: plan.Literal, message: Any) -> Children:
    literal, value = message.literal, node.value
    if value is None:
        literal.null.null.SetInParent()
    elif isinstance(value, bool):
        literal.boolean = value
    elif isinstance(value, int):
        if value in _INT32:
            literal.integer = value
        elif value in _INT64:
            literal.long = value
        else:
            raise InvalidPlanError(f"the whole number {value} does not fit into 64 bits.", remedy="Use a Decimal.")
    elif isinstance(value, float):
        literal.double = value
    else:
        literal.string = value
    return []


def _function(node: plan.Function, message: Any) -> Children:
    function = message.unresolved_function
    function.function_name = node.name
    return [(argument, function.arguments.add()) for argument in node.arguments]


def _sql_command(node: plan.SqlCommand, message: Any) -> Children:
    relation = message.sql_command.input
    relation.common.plan_id = 0
    relation.sql.query = node.query
    return []


_ENCODERS: dict[type, Callable[[Any, Any], Children]] = {
    plan.Sql: _sql,
    plan.ServerRelation: _server_relation,
    plan.Limit: _limit,
    plan.Aggregate: _aggregate,
    plan.Literal: _literal,
    plan.Function: _function,
    plan.SqlCommand: _sql_command,
}
