"""Expressions: what a Column is. Nodes and their fields have the protocol's names, so that encoding them needs no map.

``kind`` is the field of the protocol's Expression that holds a node.
"""

from typing import TYPE_CHECKING, Any, ClassVar

from solstice.connect import types
from solstice.connect._record import Record

if TYPE_CHECKING:
    from solstice.connect._plan import Relation


class Node(Record):
    """A message of the protocol. One without ``kind`` is only ever a part of another."""

    _kind: ClassVar[str] = ""

    def __init_subclass__(cls, *, kind: str = "", **options: Any) -> None:
        super().__init_subclass__(**options)
        cls._kind = kind


class Expression(Node):
    """The base of all expressions."""


class Literal(Expression, kind="literal"):
    """A constant; ``type`` is the name of its field in the protocol, for example ``integer``.

    ``data_type`` is that of an array's elements, or of NULL.
    """

    type: str
    value: Any
    data_type: types.DataType | None = None


class Attribute(Expression, kind="unresolved_attribute"):
    """A column by its name; with ``plan_id``, that of one relation."""

    unparsed_identifier: str
    plan_id: int | None = None
    is_metadata_column: bool = False


class Star(Expression, kind="unresolved_star"):
    """All columns, of all relations or of one."""

    unparsed_target: str | None = None
    plan_id: int | None = None


class Regex(Expression, kind="unresolved_regex"):
    """The columns whose names match."""

    col_name: str
    plan_id: int | None = None


class SqlText(Expression, kind="expression_string"):
    """An expression in SQL."""

    expression: str


class Function(Expression, kind="unresolved_function"):
    """A call of a built-in function by its name; operators and CASE WHEN are functions too."""

    function_name: str
    arguments: tuple[Expression, ...] = ()
    is_distinct: bool = False


class CallFunction(Expression, kind="call_function"):
    """A call of any function by its name, as SQL would resolve it."""

    function_name: str
    arguments: tuple[Expression, ...]


class Alias(Expression, kind="alias"):
    """An expression under a name, or several for one that makes several columns. ``metadata`` is JSON."""

    expr: Expression
    name: tuple[str, ...]
    metadata: str | None = None


class Cast(Expression, kind="cast"):
    """An expression as another type: a type or its text."""

    expr: Expression
    type: types.DataType | None = None
    type_str: str | None = None
    eval_mode: str | None = None


class SortOrder(Expression, kind="sort_order"):
    """An expression to sort by."""

    child: Expression
    direction: str
    null_ordering: str


class ExtractValue(Expression, kind="unresolved_extract_value"):
    """A field of a struct, an element of an array, a value of a map."""

    child: Expression
    extraction: Expression


class UpdateFields(Expression, kind="update_fields"):
    """A struct with a field set, or without it when there is no value."""

    struct_expression: Expression
    field_name: str
    value_expression: Expression | None = None


class LambdaVariable(Expression, kind="unresolved_named_lambda_variable"):
    """A parameter of a lambda function."""

    name_parts: tuple[str, ...]


class Lambda(Expression, kind="lambda_function"):
    """A function that a higher-order function applies."""

    function: Expression
    arguments: tuple[LambdaVariable, ...]


class FrameBoundary(Node):
    """One end of a window's frame; one of the three is set."""

    current_row: bool | None = None
    unbounded: bool | None = None
    value: Expression | None = None


class WindowFrame(Node):
    """The rows around the current one that a window function sees."""

    frame_type: str
    lower: FrameBoundary
    upper: FrameBoundary


class Window(Expression, kind="window"):
    """A function over a window."""

    window_function: Expression
    partition_spec: tuple[Expression, ...] = ()
    order_spec: tuple[SortOrder, ...] = ()
    frame_spec: WindowFrame | None = None


class TableArgOptions(Node):
    """How a table that is an argument is partitioned and sorted."""

    partition_spec: tuple[Expression, ...] = ()
    order_spec: tuple[SortOrder, ...] = ()
    with_single_partition: bool | None = None


class Subquery(Expression, kind="subquery_expression"):
    """A relation within an expression. The relation that holds the expression carries it, as a reference by its id."""

    relation: "Relation"
    subquery_type: str
    table_arg_options: TableArgOptions | None = None
    in_subquery_values: tuple[Expression, ...] = ()


class DirectShufflePartitionId(Expression, kind="direct_shuffle_partition_id"):
    """A number that is itself the partition."""

    child: Expression
