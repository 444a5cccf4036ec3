"""What a DataFrame is: an immutable tree of relations and expressions, encoded when something is asked of it.

Equality is structural. The same node may stand in several places of a tree; it then has one plan id on the wire.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant: NULL, a boolean, a whole number, a float or a string."""

    value: bool | int | float | str | None


@dataclass(frozen=True, slots=True)
class Function:
    """A call of a function by its name."""

    name: str
    arguments: tuple["Expression", ...]


Expression = Literal | Function


@dataclass(frozen=True, slots=True)
class Sql:
    """The result of a query in SQL."""

    query: str


@dataclass(frozen=True, slots=True)
class ServerRelation:
    """A relation that the server itself named, as the result of a command: a serialized Relation."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Limit:
    """The first rows of a relation."""

    input: "Relation"
    row_count: int


@dataclass(frozen=True, slots=True)
class Aggregate:
    """Aggregates of a relation, by groups or, with no grouping, of all of it."""

    input: "Relation"
    grouping: tuple[Expression, ...]
    aggregates: tuple[Expression, ...]


Relation = Sql | ServerRelation | Limit | Aggregate


@dataclass(frozen=True, slots=True)
class SqlCommand:
    """A statement that the server runs at once."""

    query: str


Command = SqlCommand
