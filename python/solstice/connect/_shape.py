"""The shape of a DataFrame: groups, partitions, samples, rows turned into columns and back."""

import itertools
import random
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Self

from solstice.connect import _plan as plan
from solstice.connect._bounds import is_whole
from solstice.connect._column import Column, ColumnOrName, column_of, expressions_of, sort_order_of
from solstice.connect._combine import Combining
from solstice.connect._expressions import DirectShufflePartitionId, Expression
from solstice.connect._group import CUBE, GROUP_BY, GROUPING_SETS, ROLLUP, GroupedData
from solstice.connect._select import _flat
from solstice.errors import InvalidPlanError

_Grouping = ColumnOrName | int | Sequence[ColumnOrName | int]
_Columns = ColumnOrName | Sequence[ColumnOrName]


class Shaping(Combining):
    """Groups, partitions, samples, pivots."""

    __slots__ = ()

    # Groups.

    def group_by(self, *cols: _Grouping) -> "GroupedData[Self]":
        """Rows that are equal in columns, names or positions from 1, belong together."""
        return GroupedData(self, GROUP_BY, self._grouping(cols))

    groupby = group_by

    def rollup(self, *cols: _Grouping) -> "GroupedData[Self]":
        """Groups, and their sums over the last column, the last two, and so on."""
        return GroupedData(self, ROLLUP, self._grouping(cols))

    def cube(self, *cols: _Grouping) -> "GroupedData[Self]":
        """Groups, and their sums over all combinations of columns."""
        return GroupedData(self, CUBE, self._grouping(cols))

    def grouping_sets(
        self, grouping_sets: Sequence[Sequence[ColumnOrName | int]], *cols: ColumnOrName
    ) -> "GroupedData[Self]":
        """Several ways to group at once."""
        sets = tuple(plan.GroupingSet(self._grouping(tuple(each))) for each in grouping_sets)
        return GroupedData(self, GROUPING_SETS, self._grouping(cols), grouping_sets=sets)

    def agg(self, *exprs: Column | Mapping[str, str]) -> Self:
        """Aggregates of all rows."""
        return self.group_by().agg(*exprs)

    def _grouping(self, cols: tuple[Any, ...]) -> tuple[Expression, ...]:
        return tuple((self._position(col) if is_whole(col) else column_of(col))._expression for col in _flat(cols))

    def _position(self, position: int) -> Column:
        if position < 1:
            raise InvalidPlanError(f"the position {position} is not a column.", remedy="Positions are from 1.")
        return column_of(self._schema_now().names[position - 1])

    # Partitions.

    def coalesce(self, num_partitions: int) -> Self:
        """In at most so many partitions, without moving rows between them."""
        relation = plan.Repartition(self._relation, _partitions(num_partitions), False)
        return self._derive(relation, same_schema=True)

    def repartition(self, num_partitions: int | ColumnOrName, *cols: ColumnOrName) -> Self:
        """In so many partitions, by a hash of columns if given."""
        if is_whole(num_partitions) and not cols:
            relation = plan.Repartition(self._relation, _partitions(num_partitions), True)
            return self._derive(relation, same_schema=True)
        number, columns = _partitions_and_columns(num_partitions, cols)
        return self._partitioned(expressions_of(columns), number)

    def repartition_by_range(self, num_partitions: int | ColumnOrName, *cols: ColumnOrName) -> Self:
        """In so many partitions, each with a range of the columns' values."""
        number, columns = _partitions_and_columns(num_partitions, cols)
        if not columns:
            raise InvalidPlanError("repartition_by_range() got no column.", remedy="Pass one or more.")
        return self._partitioned(tuple(map(sort_order_of, columns)), number)

    def repartition_by_id(self, num_partitions: int, partition_id_col: ColumnOrName) -> Self:
        """In so many partitions; a column says which row goes where."""
        partition = DirectShufflePartitionId(column_of(partition_id_col)._expression)
        return self._partitioned((partition,), _partitions(num_partitions))

    def _partitioned(self, expressions: tuple[Expression, ...], number: int | None) -> Self:
        return self._derive(plan.RepartitionByExpression(self._relation, expressions, number), same_schema=True)

    # Samples.

    def sample(
        self,
        with_replacement: bool | float | None = None,
        fraction: float | None = None,
        seed: int | None = None,
    ) -> Self:
        """A random part of the rows: ``sample(0.1)``, ``sample(0.1, seed)`` or ``sample(True, 0.1, seed)``."""
        if not isinstance(with_replacement, bool | None):
            if fraction is not None:  # the second of two numbers is the seed, unless it comes by its name
                seed = int(fraction)
            with_replacement, fraction = None, with_replacement
        if fraction is None:
            raise InvalidPlanError("sample() needs a fraction.", remedy="For example sample(fraction=0.1).")
        relation = plan.Sample(self._relation, 0.0, float(fraction), bool(with_replacement), _seed(seed))
        return self._derive(relation, same_schema=True)

    def random_split(self, weights: Sequence[float], seed: int | None = None) -> list[Self]:
        """The rows divided at random, in parts of these weights."""
        total = sum(weights)
        if total <= 0 or any(weight < 0 for weight in weights):
            raise InvalidPlanError(f"random_split({weights!r}) is not possible.", remedy="Pass positive weights.")
        bounds, seed = [0.0], _seed(seed)
        for weight in weights:
            bounds.append(bounds[-1] + weight / total)
        return [
            self._derive(plan.Sample(self._relation, low, high, False, seed, True), same_schema=True)
            for low, high in itertools.pairwise(bounds)
        ]

    def sample_by(self, col: ColumnOrName, fractions: Mapping[Any, float], seed: int | None = None) -> Self:
        """A random part of the rows, with a fraction for each value of a column; of others, none."""
        from solstice.connect._literals import literal

        parts = tuple(plan.Fraction(literal(value), float(fraction)) for value, fraction in fractions.items())
        return self._derive(plan.SampleBy(self._relation, column_of(col)._expression, parts, _seed(seed)))

    # Rows and columns exchanged.

    def unpivot(
        self, ids: _Columns, values: _Columns | None, variable_column_name: str, value_column_name: str
    ) -> Self:
        """Columns turned into rows of a name and a value; without ``values``, all that are not ids."""
        kept = None if values is None else plan.UnpivotValues(_expressions(values))
        return self._derive(
            plan.Unpivot(self._relation, _expressions(ids), kept, variable_column_name, value_column_name)
        )

    melt = unpivot

    def transpose(self, index_column: ColumnOrName | None = None) -> Self:
        """Rows and columns exchanged; the values of a column, by default the first, become the names."""
        index = () if index_column is None else _expressions(index_column)
        return self._derive(plan.Transpose(self._relation, index))


def _expressions(columns: _Columns) -> tuple[Expression, ...]:
    return expressions_of([columns] if isinstance(columns, str | Column) else columns)


def _seed(given: int | None) -> int:
    return random.randint(0, sys.maxsize) if given is None else int(given)


def _partitions(number: Any) -> int:
    if not is_whole(number) or number <= 0:
        raise InvalidPlanError(f"{number!r} partitions are not possible.", remedy="Pass a number from 1 up.")
    return int(number)


def _partitions_and_columns(first: Any, rest: tuple[ColumnOrName, ...]) -> tuple[int | None, tuple[Any, ...]]:
    if is_whole(first):
        return _partitions(first), rest
    return None, (first, *rest)
