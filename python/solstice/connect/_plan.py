"""Relations and commands: what a DataFrame is, an immutable tree that is encoded when something is asked of it.

Nodes and their fields have the protocol's names, so that encoding them needs no map: ``kind`` is the field of the
protocol's Relation or Command that holds a node. A relation gets its id when it is first asked for and keeps it, so
that columns can refer to it, and that a server which caches analyzed plans recognizes it within a larger one.
"""

import itertools
from collections.abc import Mapping

from solstice.connect import types
from solstice.connect._expressions import (
    Alias,
    Attribute,
    Expression,
    LambdaVariable,
    Literal,
    Node,
    Regex,
    SortOrder,
    SqlText,
    Star,
    Subquery,
)
from solstice.connect._storage import StorageLevel

_next_plan_id = itertools.count().__next__


class Relation(Node):
    """The base of all relations."""

    @property
    def plan_id(self) -> int:
        """The id that columns refer to the relation by, unique in the process."""
        number: int | None = self.__dict__.get("_id")
        return self.__dict__.setdefault("_id", _next_plan_id()) if number is None else number

    @property
    def has_id(self) -> bool:
        """Whether somebody has asked for it."""
        return "_id" in self.__dict__


class Sql(Relation, kind="sql"):
    """The result of a query in SQL, with its parameters."""

    query: str
    pos_arguments: tuple[Expression, ...] = ()
    named_arguments: Mapping[str, Expression] | None = None


class ServerRelation(Relation):
    """A relation that the server itself named, as the result of a command: a serialized Relation."""

    data: bytes


class CachedRemoteRelation(Relation, kind="cached_remote_relation"):
    """A relation that the server keeps under an id."""

    relation_id: str


class NamedTable(Node):
    """A table or view."""

    unparsed_identifier: str
    options: Mapping[str, str] | None = None


class DataSource(Node):
    """Files or another source that Spark reads."""

    format: str | None = None
    schema: str | None = None
    options: Mapping[str, str] | None = None
    paths: tuple[str, ...] = ()
    predicates: tuple[str, ...] = ()


class Read(Relation, kind="read"):
    """What is read: a table or a source."""

    named_table: NamedTable | None = None
    data_source: DataSource | None = None


class RelationChanges(Relation, kind="relation_changes"):
    """The changes of a table."""

    unparsed_identifier: str
    options: Mapping[str, str] | None = None


class Parse(Relation, kind="parse"):
    """Rows out of a column of text."""

    input: Relation
    format: str
    schema: types.DataType | None = None
    options: Mapping[str, str] | None = None


class LocalRelation(Relation, kind="local_relation"):
    """Rows of the client: an Arrow stream, and a schema as text or JSON."""

    data: bytes | None = None
    schema: str | None = None


class CachedLocalRelation(Relation, kind="cached_local_relation"):
    """Rows of the client that were uploaded before, whole, by their hash."""

    hash: str


class ChunkedCachedLocalRelation(Relation, kind="chunked_cached_local_relation"):
    """Rows of the client that were uploaded before, by their hashes."""

    dataHashes: tuple[str, ...]  # the protocol's spelling
    schemaHash: str | None = None


class Range(Relation, kind="range"):
    """Numbers."""

    start: int
    end: int
    step: int
    num_partitions: int | None = None


class TableFunction(Relation, kind="unresolved_table_valued_function"):
    """The rows that a function makes."""

    function_name: str
    arguments: tuple[Expression, ...] = ()


class Project(Relation, kind="project"):
    """Columns of a relation."""

    input: Relation
    expressions: tuple[Expression, ...]


class WithColumns(Relation, kind="with_columns"):
    """Columns added to a relation, or replaced."""

    input: Relation
    aliases: tuple[Alias, ...]

    def with_steps(self, input: Relation, aliases: tuple[Alias, ...]) -> "WithColumns":
        """This relation, under its id, with what steps before it add."""
        whole = WithColumns(input, aliases)
        whole.__dict__["_id"] = self.plan_id
        return whole


class Rename(Node):
    """A column's old name and its new one."""

    col_name: str
    new_col_name: str


class WithColumnsRenamed(Relation, kind="with_columns_renamed"):
    """A relation with columns renamed."""

    input: Relation
    renames: tuple[Rename, ...]


class ToDF(Relation, kind="to_df"):
    """A relation with all columns renamed."""

    input: Relation
    column_names: tuple[str, ...]


class ToSchema(Relation, kind="to_schema"):
    """A relation brought to a schema."""

    input: Relation
    schema: types.DataType


class Drop(Relation, kind="drop"):
    """A relation without some columns."""

    input: Relation
    columns: tuple[Expression, ...] = ()
    column_names: tuple[str, ...] = ()


class Filter(Relation, kind="filter"):
    """The rows that meet a condition."""

    input: Relation
    condition: Expression


class Sort(Relation, kind="sort"):
    """A relation sorted, as a whole or within each partition."""

    input: Relation
    order: tuple[SortOrder, ...]
    is_global: bool


class Limit(Relation, kind="limit"):
    """The first rows."""

    input: Relation
    limit: int


class Tail(Relation, kind="tail"):
    """The last rows."""

    input: Relation
    limit: int


class Offset(Relation, kind="offset"):
    """All but the first rows."""

    input: Relation
    offset: int


class Sample(Relation, kind="sample"):
    """A random part of the rows."""

    input: Relation
    lower_bound: float
    upper_bound: float
    with_replacement: bool
    seed: int
    deterministic_order: bool = False


class Deduplicate(Relation, kind="deduplicate"):
    """One row of each group of equal ones."""

    input: Relation
    column_names: tuple[str, ...] = ()
    all_columns_as_keys: bool = False
    within_watermark: bool = False


class Hint(Relation, kind="hint"):
    """A relation with advice for the planner."""

    input: Relation
    name: str
    parameters: tuple[Expression, ...] = ()


class SubqueryAlias(Relation, kind="subquery_alias"):
    """A relation under a name."""

    input: Relation
    alias: str


class Repartition(Relation, kind="repartition"):
    """A relation in another number of partitions."""

    input: Relation
    num_partitions: int
    shuffle: bool


class RepartitionByExpression(Relation, kind="repartition_by_expression"):
    """A relation partitioned by expressions, by range where they are sort orders."""

    input: Relation
    partition_exprs: tuple[Expression, ...]
    num_partitions: int | None = None


class WithWatermark(Relation, kind="with_watermark"):
    """A stream that waits only so long for late rows."""

    input: Relation
    event_time: str
    delay_threshold: str


class Pivot(Node):
    """The column whose values become columns."""

    col: Expression
    values: tuple[Literal, ...] = ()


class GroupingSet(Node):
    """One of several ways to group."""

    grouping_set: tuple[Expression, ...] = ()


class Aggregate(Relation, kind="aggregate"):
    """Aggregates by groups or, with no grouping, of all rows."""

    input: Relation
    group_type: str
    grouping_expressions: tuple[Expression, ...] = ()
    aggregate_expressions: tuple[Expression, ...] = ()
    pivot: Pivot | None = None
    grouping_sets: tuple[GroupingSet, ...] = ()


class Join(Relation, kind="join"):
    """Two relations joined, on a condition or on columns of the same names."""

    left: Relation
    right: Relation
    join_condition: Expression | None = None
    join_type: str = "JOIN_TYPE_INNER"
    using_columns: tuple[str, ...] = ()


class LateralJoin(Relation, kind="lateral_join"):
    """A join whose right side may refer to the left one."""

    left: Relation
    right: Relation
    join_condition: Expression | None = None
    join_type: str = "JOIN_TYPE_INNER"


class AsOfJoin(Relation, kind="as_of_join"):
    """A join with the nearest row in time."""

    left: Relation
    right: Relation
    left_as_of: Expression
    right_as_of: Expression
    join_expr: Expression | None = None
    using_columns: tuple[str, ...] = ()
    join_type: str = "inner"
    tolerance: Expression | None = None
    allow_exact_matches: bool = True
    direction: str = "backward"


class NearestByJoin(Relation, kind="nearest_by_join"):
    """A join with the best rows by a ranking."""

    left: Relation
    right: Relation
    ranking_expression: Expression
    num_results: int
    join_type: str
    mode: str
    direction: str


class Zip(Relation, kind="zip"):
    """The columns of two relations side by side."""

    left: Relation
    right: Relation


class SetOperation(Relation, kind="set_op"):
    """Union, intersection or difference."""

    left_input: Relation
    right_input: Relation
    set_op_type: str
    is_all: bool
    by_name: bool = False
    allow_missing_columns: bool = False


class UnpivotValues(Node):
    """The columns that become rows."""

    values: tuple[Expression, ...] = ()


class Unpivot(Relation, kind="unpivot"):
    """Columns turned into rows."""

    input: Relation
    ids: tuple[Expression, ...]
    values: UnpivotValues | None
    variable_column_name: str
    value_column_name: str


class Transpose(Relation, kind="transpose"):
    """Rows and columns exchanged."""

    input: Relation
    index_columns: tuple[Expression, ...] = ()


class CollectMetrics(Relation, kind="collect_metrics"):
    """A relation, observed while it is computed."""

    input: Relation
    name: str
    metrics: tuple[Expression, ...]


class NaFill(Relation, kind="fill_na"):
    """NULL and NaN replaced."""

    input: Relation
    cols: tuple[str, ...]
    values: tuple[Literal, ...]


class NaDrop(Relation, kind="drop_na"):
    """Rows with NULL or NaN left out."""

    input: Relation
    cols: tuple[str, ...] = ()
    min_non_nulls: int | None = None


class Replacement(Node):
    """A value and what replaces it."""

    old_value: Literal
    new_value: Literal


class NaReplace(Relation, kind="replace"):
    """Values replaced by others."""

    input: Relation
    cols: tuple[str, ...]
    replacements: tuple[Replacement, ...]


class Summary(Relation, kind="summary"):
    """Chosen statistics of all columns."""

    input: Relation
    statistics: tuple[str, ...] = ()


class Describe(Relation, kind="describe"):
    """Basic statistics of columns."""

    input: Relation
    cols: tuple[str, ...] = ()


class Cov(Relation, kind="cov"):
    """The sample covariance of two columns."""

    input: Relation
    col1: str
    col2: str


class Corr(Relation, kind="corr"):
    """The correlation of two columns."""

    input: Relation
    col1: str
    col2: str
    method: str


class ApproxQuantile(Relation, kind="approx_quantile"):
    """Approximate quantiles of columns."""

    input: Relation
    cols: tuple[str, ...]
    probabilities: tuple[float, ...]
    relative_error: float


class Crosstab(Relation, kind="crosstab"):
    """How often pairs of values occur."""

    input: Relation
    col1: str
    col2: str


class FreqItems(Relation, kind="freq_items"):
    """Frequent values of columns."""

    input: Relation
    cols: tuple[str, ...]
    support: float


class Fraction(Node):
    """How much to take of the rows with one value."""

    stratum: Literal
    fraction: float


class SampleBy(Relation, kind="sample_by"):
    """A random part of the rows, with a fraction for each value of a column."""

    input: Relation
    col: Expression
    fractions: tuple[Fraction, ...]
    seed: int


class ShowString(Relation, kind="show_string"):
    """The first rows as a text table."""

    input: Relation
    num_rows: int
    truncate: int
    vertical: bool


class WithRelations(Relation, kind="with_relations"):
    """A relation and those that its expressions refer to."""

    root: Relation
    references: tuple[Relation, ...]


class Command(Node):
    """The base of what the server runs at once."""


class SqlCommand(Command, kind="sql_command"):
    """A statement in SQL."""

    input: Relation


class CreateView(Command, kind="create_dataframe_view"):
    """Give a relation a name in the session, or for all sessions."""

    input: Relation
    name: str
    is_global: bool
    replace: bool


class Checkpoint(Command, kind="checkpoint_command"):
    """Compute a relation and keep it on the server."""

    relation: Relation
    local: bool
    eager: bool
    storage_level: StorageLevel | None = None


class RemoveCachedRemoteRelation(Command, kind="remove_cached_remote_relation_command"):
    """Let the server forget a relation that it kept."""

    relation: CachedRemoteRelation


def with_references(relation: Relation) -> Relation:
    """The relation, together with the relations that subqueries in its expressions refer to, if there are any."""
    references = tuple(_subqueries(relation))
    return WithRelations(relation, references) if references else relation


# What has no expressions within; this is looked for in all expressions of a large select.
_LEAVES = {int, float, str, bool, bytes, type(None), Literal, Attribute, Star, Regex, SqlText, LambdaVariable}


def _subqueries(relation: Relation) -> list[Relation]:
    """The relations of subqueries in a relation's own expressions, in the order in which they stand there."""
    found: list[Relation] = []
    stack = list(reversed(relation.__dict__.values()))
    while stack:
        value = stack.pop()
        kind = type(value)
        if kind in _LEAVES:
            continue
        if kind is tuple:
            stack.extend(reversed(value))
        elif kind is Subquery:
            found.append(value.relation)
        elif isinstance(value, Node):
            if not isinstance(value, Relation):
                stack.extend(reversed(value.__dict__.values()))
        elif isinstance(value, Mapping):
            stack.extend(reversed(list(value.values())))
    return found
