"""Columns and rows of one DataFrame: choosing, adding, renaming, filtering, sorting."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, Self, overload

from solstice.connect import _plan as plan
from solstice.connect import types
from solstice.connect._bounds import is_whole
from solstice.connect._column import Column, ColumnOrName, column_of, expression_of, expressions_of, sort_order_of
from solstice.connect._expressions import Alias, Attribute, Expression, Function, Regex, SortOrder, SqlText, Star
from solstice.connect._fetch import Fetching
from solstice.connect._frame import Frame
from solstice.errors import ArgumentTypeError, InvalidPlanError

if TYPE_CHECKING:
    from solstice.connect._observation import Observation

_MAX_COUNT = 2**31 - 1
_NOT_HERE = {"executionInfo", "foreach", "foreachPartition", "mapInArrow", "mapInPandas", "mergeInto", "pandas_api"}
_NOT_HERE |= {"plot", "rdd", "write", "writeStream", "writeTo"}


class Selecting(Fetching):
    """Columns and rows."""

    __slots__ = ()

    # Columns of this DataFrame.

    @overload
    def __getitem__(self, item: int | str) -> Column: ...

    @overload
    def __getitem__(self, item: "Column | list[ColumnOrName] | tuple[ColumnOrName, ...]") -> Self: ...

    def __getitem__(self, item: Any) -> Any:
        if isinstance(item, str):
            return Column(Star(plan_id=self._relation.plan_id)) if item == "*" else self._column(item)
        if isinstance(item, Column):
            return self.filter(item)
        if isinstance(item, list | tuple):
            return self.select(*item)
        if isinstance(item, int):
            return column_of(self._schema_now().names[item])
        raise ArgumentTypeError(
            f"a DataFrame has no item {item!r}; pass a name, a position, a condition or a list of columns"
        )

    def __getattr__(self, name: str) -> Any:
        # Names of Python's own protocols, and of tools that only look whether something has them, are not columns; nor
        # is what a DataFrame of PySpark has, and this one not: as a column it would fail later, and say less.
        if (name.startswith("_") and not name[1:].isdigit()) or name in _NOT_HERE:
            raise AttributeError(f"a DataFrame has no attribute {name!r}; a column of that name is df[{name!r}]")
        return self._column(name)

    def _column(self, name: str) -> Column:
        return Column(Attribute(name, self._relation.plan_id))

    def col_regex(self, col_name: str) -> Column:
        """The columns whose names match a regular expression in backquotes."""
        return Column(Regex(col_name, self._relation.plan_id))

    def metadata_column(self, col_name: str) -> Column:
        """A column that the source has beside those of its schema."""
        return Column(Attribute(col_name, self._relation.plan_id, True))

    # Choosing and naming columns.

    def select(self, *cols: ColumnOrName | Sequence[ColumnOrName]) -> Self:
        """Columns, by name or computed."""
        return self._derive(plan.Project(self._relation, expressions_of(_flat(cols))))

    def select_expr(self, *expr: str | list[str]) -> Self:
        """Columns, by expressions in SQL."""
        return self._derive(plan.Project(self._relation, tuple(SqlText(text) for text in _flat(expr))))

    def with_column(self, col_name: str, col: Column) -> Self:
        """A column added, or replaced."""
        return self.with_columns({col_name: col})

    def with_columns(self, cols_map: Mapping[str, Column]) -> Self:
        """Columns added, or replaced; they cannot refer to one another."""
        if not cols_map:
            raise InvalidPlanError("with_columns() got no column.", remedy="Pass names and Columns.")
        return self._with_aliases(
            tuple(Alias(_only_column(name, col)._expression, (name,)) for name, col in cols_map.items())
        )

    def with_metadata(self, column_name: str, metadata: dict[str, Any]) -> Self:
        """A column with other metadata."""
        column = self._column(column_name)._expression
        return self._with_aliases((Alias(column, (column_name,), json.dumps(metadata)),))

    def _with_aliases(self, aliases: tuple[Alias, ...]) -> Self:
        return self._derive(plan.WithColumns(self._relation, aliases))

    def with_column_renamed(self, existing: str, new: str) -> Self:
        """A column under another name; nothing happens if there is none of the first name."""
        return self.with_columns_renamed({existing: new})

    def with_columns_renamed(self, cols_map: Mapping[str, str]) -> Self:
        """Columns under other names."""
        renames = tuple(plan.Rename(old, new) for old, new in cols_map.items())
        return self._derive(plan.WithColumnsRenamed(self._relation, renames))

    def drop(self, *cols: ColumnOrName) -> Self:
        """All but some columns; a name that does not exist is no error."""
        columns = tuple(column_of(col)._expression for col in cols if not isinstance(col, str))
        names = tuple(col for col in cols if isinstance(col, str))
        return self._derive(plan.Drop(self._relation, columns, names))

    def to_df(self, *cols: str) -> Self:
        """All columns under new names."""
        return self._derive(plan.ToDF(self._relation, cols))

    def to(self, schema: types.StructType) -> Self:
        """Brought to a schema: columns put in order and cast, others dropped."""
        return self._derive(plan.ToSchema(self._relation, schema))

    def to_json(self) -> Self:
        """One column, ``value``, with each row as JSON."""
        row = Function("to_json", (Function("struct", (Star(),)),))
        return self._derive(plan.Project(self._relation, (Alias(row, ("value",)),)))

    def zip_with_index(self, index_col_name: str = "index") -> Self:
        """With a column that numbers the rows from 0, without gaps."""
        index = Alias(Function("distributed_sequence_id"), (index_col_name,))
        return self._derive(plan.Project(self._relation, (Star(), index)))

    def alias(self, alias: str) -> Self:
        """The DataFrame under a name, for ``col("name.column")``."""
        return self._derive(plan.SubqueryAlias(self._relation, alias), same_schema=True)

    # Choosing rows.

    def filter(self, condition: Column | str) -> Self:
        """The rows that meet a condition, a Column or SQL."""
        if isinstance(condition, str):
            expression: Expression = SqlText(condition)
        elif isinstance(condition, Column):
            expression = condition._expression
        else:
            raise ArgumentTypeError(f"filter() takes a Column or SQL, not {condition!r}")
        return self._derive(plan.Filter(self._relation, expression), same_schema=True)

    where = filter

    def limit(self, num: int) -> Self:
        """At most the first ``num`` rows."""
        return self._derive(plan.Limit(self._relation, row_count("limit", num)), same_schema=True)

    def offset(self, num: int) -> Self:
        """All but the first ``num`` rows."""
        return self._derive(plan.Offset(self._relation, row_count("offset", num)), same_schema=True)

    def distinct(self) -> Self:
        """Each row once."""
        return self.drop_duplicates()

    def drop_duplicates(self, subset: Sequence[str] | None = None) -> Self:
        """One row of each group that is equal, in all columns or in some."""
        return self._deduplicated(subset, within_watermark=False)

    def drop_duplicates_within_watermark(self, subset: Sequence[str] | None = None) -> Self:
        """Like ``drop_duplicates``, for a stream: duplicates that come within its watermark's delay."""
        return self._deduplicated(subset, within_watermark=True)

    def _deduplicated(self, subset: Sequence[str] | None, *, within_watermark: bool) -> Self:
        if isinstance(subset, str):
            raise ArgumentTypeError(f"the columns are a list: [{subset!r}]")
        relation = plan.Deduplicate(self._relation, tuple(subset or ()), subset is None, within_watermark)
        return self._derive(relation, same_schema=True)

    def with_watermark(self, event_time: str, delay_threshold: str) -> Self:
        """How long a stream waits for late rows: ``with_watermark("time", "10 minutes")``."""
        return self._derive(plan.WithWatermark(self._relation, event_time, delay_threshold))

    # Order.

    def sort(
        self,
        *cols: ColumnOrName | int | Sequence[ColumnOrName | int],
        ascending: bool | Sequence[bool | int] = True,
    ) -> Self:
        """Sorted by columns, names or positions from 1, negative ones downwards."""
        return self._sorted(cols, ascending, is_global=True)

    order_by = sort

    def sort_within_partitions(
        self,
        *cols: ColumnOrName | int | Sequence[ColumnOrName | int],
        ascending: bool | Sequence[bool | int] = True,
    ) -> Self:
        """Each partition sorted by itself."""
        return self._sorted(cols, ascending, is_global=False)

    def _sorted(self, cols: Any, ascending: bool | Sequence[bool | int], *, is_global: bool) -> Self:
        columns = [self._ordinal(col) if is_whole(col) else column_of(col) for col in _flat(cols)]
        if not cols:  # an empty list is no order, as in PySpark
            raise InvalidPlanError("sort() got no column.", remedy="Pass what to sort by.")
        directions = ascending if isinstance(ascending, Sequence) else [ascending] * len(columns)
        if len(directions) != len(columns):
            raise InvalidPlanError(
                f"sort() got {len(columns)} columns and {len(directions)} directions.",
                remedy="Pass as many as columns.",
            )
        order = tuple(
            sort_order_of(column if up else _descending(column)) for column, up in zip(columns, directions, strict=True)
        )
        return self._derive(plan.Sort(self._relation, order, is_global), same_schema=True)

    def _ordinal(self, position: int) -> Column:
        if position == 0:
            raise InvalidPlanError("the position 0 is not a column.", remedy="Positions are from 1.")
        column = column_of(self._schema_now().names[abs(position) - 1])
        return column if position > 0 else column.desc()

    # Other.

    def hint(self, name: str, *parameters: Any) -> Self:
        """Advice for the planner: ``hint("broadcast")``."""
        if len(parameters) == 1 and isinstance(parameters[0], list):
            parameters = tuple(parameters[0])
        expressions = tuple(
            Function("array", tuple(map(expression_of, value))) if isinstance(value, list) else expression_of(value)
            for value in parameters
        )
        return self._derive(plan.Hint(self._relation, name, expressions), same_schema=True)

    def observe(self, observation: "Observation | str", *exprs: Column) -> Self:
        """Compute aggregates on the way, when a result of the DataFrame is asked for."""
        if not exprs:
            raise InvalidPlanError("observe() got no aggregate.", remedy="Pass Columns, for example count(lit(1)).")
        name = observation if isinstance(observation, str) else observation._start(self._session)
        relation = plan.CollectMetrics(self._relation, name, tuple(expr._expression for expr in exprs))
        observed = self._derive(relation, same_schema=True)
        if not isinstance(observation, str):
            observed._observations = {**observed._observations, name: observation}
        return observed

    def transform(self, func: "Callable[Concatenate[Any, ...], Self]", *args: Any, **kwargs: Any) -> Self:
        """``func(df, ...)``, for chains."""
        result = func(self, *args, **kwargs)
        if not isinstance(result, Frame):
            raise ArgumentTypeError(f"the function returned {result!r}, not a DataFrame")
        return result


def row_count(method: str, number: int, least: int = 0) -> int:
    """A number of rows, checked."""
    if not (is_whole(number) and least <= number <= _MAX_COUNT):
        raise InvalidPlanError(
            f"{method}({number!r}) is not possible.", remedy=f"Pass a number from {least} to {_MAX_COUNT}."
        )
    return int(number)


def _flat(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """The values, which may also come as one list."""
    if len(values) == 1 and isinstance(values[0], Sequence) and not isinstance(values[0], str):
        return tuple(values[0])
    return values


def _only_column(name: str, value: Any) -> Column:
    if not isinstance(value, Column):
        raise ArgumentTypeError(f"the column {name!r} is {value!r}, not a Column; a constant is functions.lit(...)")
    return value


def _descending(column: Column) -> Column:
    expression = column._expression
    return (Column(expression.child) if isinstance(expression, SortOrder) else column).desc()
