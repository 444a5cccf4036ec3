"""Chains of ``with_column``, in as few steps as they need.

A chain of two hundred is two hundred levels of a plan, each of which the server resolves by itself. Two steps are one
if the later refers to nothing that the earlier adds. Whether it does can be seen of plain expressions only, not of SQL,
of ``*`` and the like. A relation that has its id stays a step: a column may refer to it, or a server may know it.
"""

from collections.abc import Iterator

from solstice.connect._expressions import (
    Alias,
    Attribute,
    Cast,
    ExtractValue,
    Function,
    Lambda,
    LambdaVariable,
    Literal,
    Node,
    SortOrder,
    UpdateFields,
    Window,
)
from solstice.connect._plan import Relation, WithColumns

_PLAIN = {
    Alias,
    Attribute,
    Cast,
    ExtractValue,
    Function,
    Lambda,
    LambdaVariable,
    Literal,
    SortOrder,
    UpdateFields,
    Window,
}

# Spark allows one of these for a step.
_GENERATORS = {
    "explode",
    "explode_outer",
    "inline",
    "inline_outer",
    "json_tuple",
    "posexplode",
    "posexplode_outer",
    "stack",
    "variant_explode",
    "variant_explode_outer",
}


def collapsed(last: WithColumns) -> WithColumns:
    """The chain that ends here."""
    chain = [last]
    while isinstance(chain[-1].input, WithColumns) and not chain[-1].input.has_id:
        chain.append(chain[-1].input)
    relation: Relation = chain[-1].input
    while chain:
        step = chain.pop()
        aliases, added = list(step.aliases), _added(step)
        while chain and added is not None and (more := _added(chain[-1], added)) is not None:
            step = chain.pop()
            aliases += step.aliases
            added |= more
        relation = step.with_steps(relation, tuple(aliases))
    assert isinstance(relation, WithColumns)
    return relation


def _added(step: WithColumns, before: frozenset[str] = frozenset()) -> frozenset[str] | None:
    """The names that a step adds; None if it has to be a step of its own after one that adds those ``before`` it."""
    names = {name.lower() for alias in step.aliases for name in alias.name}
    if names & before or any("." in name or "`" in name for name in names):
        return None
    for node in _nodes(step):
        if type(node) not in _PLAIN:
            return None
        if isinstance(node, Function) and node.function_name in _GENERATORS:
            return None
        if isinstance(node, Attribute) and not before.isdisjoint(_parts(node)):
            return None
    return frozenset(names)


def _parts(attribute: Attribute) -> list[str]:
    return attribute.unparsed_identifier.lower().replace("`", "").split(".")


def _nodes(step: WithColumns) -> Iterator[Node]:
    todo: list[Node] = list(step.aliases)
    while todo:
        node = todo.pop()
        yield node
        for value in node.__dict__.values():
            if isinstance(value, Node):
                todo.append(value)
            elif isinstance(value, tuple):
                todo.extend(child for child in value if isinstance(child, Node))
