"""Encodes a plan as the protocol's messages, from the root down and without recursion: plans may be very deep.

A node's fields are those of its message. Its children are encoded in place, into the empty messages they belong in, so
that nothing is copied. The server parses a limited number of nested messages; it is counted here, where it can be
explained.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

from solstice.connect._expressions import Literal, Node, Subquery
from solstice.connect._plan import Command, Relation, ServerRelation, WithColumns
from solstice.connect._types import encode_type
from solstice.connect.types import DataType, NullType
from solstice.errors import ArgumentTypeError, InvalidPlanError

# The server, by default, parses this many messages nested in a request, and of more says nothing but "UNKNOWN".
MAX_NESTING = 1024

_ROOT_LEVEL = 3  # schema, plan, root
_WRAPPERS = {"spark.connect.Expression", "spark.connect.Relation", "spark.connect.Command"}
_SCALARS = {bool, int, float, str, bytes}
# What a field of a message can have, by protobuf's numbers of types; enumerations are not the user's.
_EXPECTED: dict[int, tuple[str, Any]] = {
    **dict.fromkeys((1, 2, 3, 4), ("a whole number", int)),
    **dict.fromkeys((5, 6), ("a number", (int, float))),
    7: ("True or False", bool),
    9: ("text", (str, bytes)),
    10: ("a {}", (Node, DataType, Mapping)),
}

# What is left to encode: a node, the message it belongs in, and how deep that is.
Todo = list[tuple[Node, Any, int]]


def encode_query(relation: Relation, message: Any) -> None:
    """Fill a Plan message, in its place in a request, with a query.

    In place, because protobuf copies a message by parsing it, and Python's parser stops at 100 levels.
    """
    encode(relation, message.root)


def encode_command(command: Command, message: Any) -> None:
    """Fill a Plan message, in its place in a request, with a command."""
    encode(command, message.command)


def encode(root: Node, message: Any) -> None:
    """Fill a message, in its place in a request, with a node."""
    todo: Todo = [(root, message, _ROOT_LEVEL)]
    while todo:
        node, target, level = todo.pop()
        if type(node) is WithColumns and type(node.input) is WithColumns and not node.input.has_id:
            from solstice.connect._collapse import collapsed  # not at every start

            node = collapsed(node)
        # A relation or an expression is two messages: a wrapper (Relation) and its own (Limit), which holds its inputs.
        # Where only one kind of expression can stand (a SortOrder), there is no wrapper.
        wrapped = bool(node._kind) and _is_wrapper(target.__class__)
        level += wrapped
        if level > MAX_NESTING:
            raise InvalidPlanError(
                f"the plan is nested more than {MAX_NESTING} messages deep (about {MAX_NESTING // 2} operations); "
                "a server would not parse it.",
                remedy="Save an intermediate result, for example as a table, and go on from there.",
            )
        if isinstance(node, Relation) and wrapped:
            target.common.plan_id = node.plan_id
        body = getattr(target, node._kind) if wrapped else target
        special = _SPECIAL.get(type(node))
        if special is not None:
            special(node, body, todo, level)
        else:
            body.SetInParent()
            try:
                _fill(node, body, todo, level)
            except (TypeError, ValueError, AttributeError) as error:
                raise _misfit(node, body) or error from None


@functools.cache
def _is_wrapper(message: Any) -> bool:
    return message.DESCRIPTOR.full_name in _WRAPPERS


def _fill(node: Node, body: Any, todo: Todo, level: int) -> None:
    """Set a node's own values, and put its children on the list, the first on top."""
    children: Todo = []
    for name, value in node.__dict__.items():
        if type(value) in _SCALARS:
            if name != "_id":
                setattr(body, name, value)
        elif value is None:
            continue
        elif isinstance(value, Node):
            children.append((value, getattr(body, name), level + 1))
        elif isinstance(value, tuple):
            if value and isinstance(value[0], Node):
                add = getattr(body, name).add
                children.extend([(child, add(), level + 1) for child in value])
            elif value:
                getattr(body, name).extend(value)
        elif isinstance(value, Mapping):
            entries = getattr(body, name)
            for key, entry in value.items():
                if isinstance(entry, Node):
                    children.append((entry, entries[key], level + 2))  # an entry is a message too
                else:
                    entries[key] = entry
        elif isinstance(value, DataType):
            encode_type(value, getattr(body, name))
        else:
            raise TypeError(name)
    children.reverse()
    todo.extend(children)


def _misfit(node: Node, body: Any) -> ArgumentTypeError | None:
    """The error for the first value that its field in the message cannot have."""
    for field in body.DESCRIPTOR.fields:
        expected, classes = _EXPECTED.get(field.cpp_type, ("", ()))
        value = getattr(node, field.name, None)
        for each in value if isinstance(value, tuple) else () if value is None else (value,):
            if expected and not isinstance(each, classes):
                what = expected.format(field.message_type and field.message_type.name)
                return ArgumentTypeError(f"{field.name!r} of {type(node).__name__} is {what}, not {each!r}")
    return None


def _literal(node: Literal, body: Any, todo: Todo, level: int) -> None:
    value = node.value
    match node.type:
        case "null":
            encode_type(node.data_type or NullType(), body.null)
        case "decimal":
            body.decimal.value, body.decimal.precision, body.decimal.scale = value
        case "time":
            body.time.nano, body.time.precision = value
        case "array":
            encode_type(node.data_type or NullType(), body.array.element_type)
            todo.extend([(child, body.array.elements.add(), level + 2) for child in value])
        case scalar:
            setattr(body, scalar, value)


def _server_relation(node: ServerRelation, body: Any, todo: Todo, level: int) -> None:
    body.MergeFromString(node.data)
    body.common.plan_id = node.plan_id


def _subquery(node: Subquery, body: Any, todo: Todo, level: int) -> None:
    body.plan_id, body.subquery_type = node.relation.plan_id, node.subquery_type
    if node.table_arg_options is not None:
        todo.append((node.table_arg_options, body.table_arg_options, level + 1))
    todo.extend((value, body.in_subquery_values.add(), level + 1) for value in node.in_subquery_values)


_SPECIAL: dict[type[Node], Callable[[Any, Any, Todo, int], None]] = {
    Literal: _literal,
    ServerRelation: _server_relation,
    Subquery: _subquery,
}
