"""Two DataFrames: joins and set operations."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

from solstice.connect import _plan as plan
from solstice.connect._column import Column, ColumnOrName, column_of
from solstice.connect._expressions import Expression
from solstice.connect._frame import Frame
from solstice.connect._select import Selecting
from solstice.errors import ArgumentTypeError, InvalidPlanError

_JOIN_TYPES = {
    "inner": "JOIN_TYPE_INNER",
    "cross": "JOIN_TYPE_CROSS",
    "outer": "JOIN_TYPE_FULL_OUTER",
    "full": "JOIN_TYPE_FULL_OUTER",
    "fullouter": "JOIN_TYPE_FULL_OUTER",
    "left": "JOIN_TYPE_LEFT_OUTER",
    "leftouter": "JOIN_TYPE_LEFT_OUTER",
    "right": "JOIN_TYPE_RIGHT_OUTER",
    "rightouter": "JOIN_TYPE_RIGHT_OUTER",
    "semi": "JOIN_TYPE_LEFT_SEMI",
    "leftsemi": "JOIN_TYPE_LEFT_SEMI",
    "anti": "JOIN_TYPE_LEFT_ANTI",
    "leftanti": "JOIN_TYPE_LEFT_ANTI",
}
_LATERAL = ("inner", "left", "leftouter", "cross")
_NEAREST_TYPES, _NEAREST_MODES = ("inner", "left", "leftouter"), ("approx", "exact")
_NEAREST_DIRECTIONS, _MAX_NEAREST = ("distance", "similarity"), 100_000

On = str | Column | Sequence[str] | Sequence[Column] | None


class Combining(Selecting):
    """Joins and set operations."""

    __slots__ = ()

    def join(self, other: Frame, on: On = None, how: str | None = None) -> Self:
        """Rows of both that belong together: by columns of the same names, or by a condition.

        ``how``: inner, cross, outer, left, right, semi, anti; also spelled full, left_outer, left_semi and so on.
        """
        self._check_same_session(other, "join")
        condition, names = _condition(on)
        kind = _join_type("join", how, tuple(_JOIN_TYPES))
        return self._derive(plan.Join(self._relation, other._relation, condition, kind, names), other)

    def cross_join(self, other: Frame) -> Self:
        """Each row with each row of the other."""
        return self.join(other, how="cross")

    def lateral_join(self, other: Frame, on: Column | None = None, how: str | None = None) -> Self:
        """A join whose right side may refer to columns of the left one, as ``col("a").outer()``."""
        self._check_same_session(other, "lateral_join")
        kind = _join_type("lateral_join", how, _LATERAL)
        condition = None if on is None else column_of(on)._expression
        return self._derive(plan.LateralJoin(self._relation, other._relation, condition, kind), other)

    def nearest_by_join(
        self,
        other: Frame,
        ranking_expression: Column,
        num_results: int,
        mode: str,
        direction: str,
        *,
        join_type: str = "inner",
    ) -> Self:
        """Each row with the best rows of the other, by a ranking: the least distance or the most similarity."""
        self._check_same_session(other, "nearest_by_join")
        if not 1 <= num_results <= _MAX_NEAREST:
            raise InvalidPlanError(
                f"nearest_by_join() cannot find {num_results} rows.", remedy=f"Pass a number from 1 to {_MAX_NEAREST}."
            )
        for name, value, allowed in (
            ("join_type", join_type.replace("_", ""), _NEAREST_TYPES),
            ("mode", mode, _NEAREST_MODES),
            ("direction", direction, _NEAREST_DIRECTIONS),
        ):
            if value.lower() not in allowed:
                raise InvalidPlanError(
                    f"nearest_by_join({name}={value!r}) is not possible.", remedy=f"Pass one of: {', '.join(allowed)}."
                )
        ranking = ranking_expression._expression
        relation = plan.NearestByJoin(
            self._relation, other._relation, ranking, int(num_results), join_type, mode, direction
        )
        return self._derive(relation, other)

    def join_as_of(
        self,
        other: "Combining",
        left_as_of_column: ColumnOrName,
        right_as_of_column: ColumnOrName,
        on: On = None,
        how: str | None = None,
        *,
        tolerance: Column | None = None,
        allow_exact_matches: bool = True,
        direction: str = "backward",
    ) -> Self:
        """Each row with the last one of the other before it in time; ``direction`` may be forward or nearest."""
        self._check_same_session(other, "join_as_of")
        condition, names = _condition(on)
        relation = plan.AsOfJoin(
            self._relation,
            other._relation,
            _own_column(self, left_as_of_column),
            _own_column(other, right_as_of_column),
            condition,
            names,
            how or "inner",
            None if tolerance is None else tolerance._expression,
            allow_exact_matches,
            direction,
        )
        return self._derive(relation, other)

    def zip(self, other: Frame) -> Self:
        """The columns of both side by side; both must be projections of the same rows."""
        self._check_same_session(other, "zip")
        return self._derive(plan.Zip(self._relation, other._relation), other)

    def union(self, other: Frame) -> Self:
        """The rows of both, duplicates included, columns by position."""
        return self._combined("union", other, is_all=True)

    union_all = union

    def union_by_name(self, other: Frame, allow_missing_columns: bool = False) -> Self:
        """The rows of both, duplicates included, columns by name; missing ones as NULL if that is allowed."""
        return self._combined("union", other, is_all=True, by_name=True, allow_missing_columns=allow_missing_columns)

    def intersect(self, other: Frame) -> Self:
        """The rows that are in both, each once."""
        return self._combined("intersect", other, is_all=False)

    def intersect_all(self, other: Frame) -> Self:
        """The rows that are in both, duplicates included."""
        return self._combined("intersect", other, is_all=True)

    def subtract(self, other: Frame) -> Self:
        """The rows that are not in the other, each once."""
        return self._combined("except", other, is_all=False)

    def except_all(self, other: Frame) -> Self:
        """The rows that are not in the other, duplicates included."""
        return self._combined("except", other, is_all=True)

    def _combined(self, operation: str, other: Frame, **options: Any) -> Self:
        self._check_same_session(other, operation)
        kind = f"SET_OP_TYPE_{operation.upper()}"
        return self._derive(plan.SetOperation(self._relation, other._relation, kind, **options), other)


class _On(NamedTuple):
    condition: Expression | None
    names: tuple[str, ...]


def _condition(on: On) -> _On:
    parts: list[Any] = [] if on is None else [on] if isinstance(on, str | Column) else list(on)
    if parts and all(isinstance(part, Column) for part in parts):
        return _On(functools.reduce(lambda left, right: left & right, parts)._expression, ())
    if not all(isinstance(part, str) for part in parts):
        raise ArgumentTypeError(f"a join is on names or on Columns, not on {on!r}")
    return _On(None, tuple(parts))


def _join_type(method: str, how: str | None, allowed: tuple[str, ...]) -> str:
    kind = "inner" if how is None else how.lower().replace("_", "")
    if kind not in allowed:
        raise InvalidPlanError(f"{method}(how={how!r}) is not possible.", remedy=f"Pass one of: {', '.join(allowed)}.")
    return _JOIN_TYPES[kind]


def _own_column(frame: Selecting, column: ColumnOrName) -> Expression:
    return (column if isinstance(column, Column) else frame._column(column))._expression
