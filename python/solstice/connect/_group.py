"""Groups of rows and their aggregates."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from solstice.connect import _plan as plan
from solstice.connect import types
from solstice.connect._camel import camel_cased
from solstice.connect._column import Column, ColumnOrName, column_of
from solstice.connect._expressions import Alias, Expression, Function
from solstice.connect._literals import literal
from solstice.errors import InvalidPlanError

if TYPE_CHECKING:
    from solstice.connect._select import Selecting

FrameT = TypeVar("FrameT", bound="Selecting")

GROUP_BY, ROLLUP, CUBE = "GROUP_TYPE_GROUPBY", "GROUP_TYPE_ROLLUP", "GROUP_TYPE_CUBE"
PIVOT, GROUPING_SETS = "GROUP_TYPE_PIVOT", "GROUP_TYPE_GROUPING_SETS"


@camel_cased()
class GroupedData(Generic[FrameT]):
    """Groups of a DataFrame's rows, made by ``group_by`` and its relatives."""

    __slots__ = ("_frame", "_grouping", "_grouping_sets", "_kind", "_pivot")

    def __init__(
        self,
        frame: FrameT,
        kind: str,
        grouping: tuple[Expression, ...],
        *,
        pivot: plan.Pivot | None = None,
        grouping_sets: tuple[plan.GroupingSet, ...] = (),
    ) -> None:
        self._frame = frame
        self._kind = kind
        self._grouping = grouping
        self._pivot = pivot
        self._grouping_sets = grouping_sets

    def agg(self, *exprs: Column | Mapping[str, str]) -> FrameT:
        """Aggregates: Columns, or one dict of columns and functions, ``{"amount": "sum"}``."""
        if len(exprs) == 1 and isinstance(exprs[0], Mapping):
            return self._aggregate(tuple(_by_name(function, name) for name, function in exprs[0].items()))
        columns = [expr._expression for expr in exprs if isinstance(expr, Column)]
        if not exprs or len(columns) != len(exprs):
            raise InvalidPlanError(
                "agg() takes one or more Columns, or one dict.",
                remedy='For example agg(sum("a")) or agg({"a": "sum"}).',
            )
        return self._aggregate(tuple(columns))

    def count(self) -> FrameT:
        """How many rows each group has, as the column ``count``."""
        return self._aggregate((Alias(Function("count", (literal(1),)), ("count",)),))

    def min(self, *cols: str) -> FrameT:
        """The smallest values; without columns, of all that are numbers."""
        return self._numeric("min", cols)

    def max(self, *cols: str) -> FrameT:
        """The largest values; without columns, of all that are numbers."""
        return self._numeric("max", cols)

    def sum(self, *cols: str) -> FrameT:
        """The sums; without columns, of all that are numbers."""
        return self._numeric("sum", cols)

    def avg(self, *cols: str) -> FrameT:
        """The means; without columns, of all that are numbers."""
        return self._numeric("avg", cols)

    mean = avg

    def pivot(self, pivot_col: str, values: Sequence[Any] | None = None) -> "GroupedData[FrameT]":
        """The values of a column as columns. Without ``values``, Spark finds them first, at the cost of a query."""
        if self._kind != GROUP_BY:
            raise InvalidPlanError("pivot() follows group_by() only, and once.", remedy="Group by columns first.")
        column = self._frame._column(pivot_col)._expression
        pivot = plan.Pivot(column, tuple(map(literal, values or ())))
        return GroupedData(self._frame, PIVOT, self._grouping, pivot=pivot)

    def _numeric(self, function: str, names: tuple[str, ...]) -> FrameT:
        if not names:
            schema = self._frame._schema_now()
            names = tuple(field.name for field in schema if isinstance(field.data_type, types.NumericType))
        return self._aggregate(tuple(_by_name(function, name) for name in names))

    def _aggregate(self, aggregates: tuple[Expression, ...]) -> FrameT:
        frame = self._frame
        relation = plan.Aggregate(
            frame._relation, self._kind, self._grouping, aggregates, self._pivot, self._grouping_sets
        )
        return frame._derive(relation)


def _by_name(function: str, name: ColumnOrName) -> Function:
    return Function(function, (column_of(name)._expression,))
