"""Windows: the rows around each row that a function may look at."""

import sys
import warnings
from typing import ClassVar

from solstice.connect._camel import camel_cased
from solstice.connect._column import ColumnOrName, expressions_of, sort_order_of
from solstice.connect._expressions import Expression, FrameBoundary, Literal, SortOrder, Star, WindowFrame
from solstice.connect._expressions import Window as WindowExpression
from solstice.connect._text import window_text
from solstice.errors import InvalidPlanError

_MIN_LONG, _MAX_LONG = -(1 << 63), (1 << 63) - 1
_INT32 = range(-(1 << 31), 1 << 31)
# PySpark takes -sys.maxsize and sys.maxsize for "no bound", too.
_PRECEDING, _FOLLOWING = max(-sys.maxsize, _MIN_LONG), min(sys.maxsize, _MAX_LONG)


@camel_cased()
class WindowSpec:
    """How rows are partitioned, sorted and framed. Immutable: each method returns a new one."""

    __slots__ = ("_frame", "_order", "_partition")

    def __init__(
        self,
        partition: tuple[Expression, ...] = (),
        order: tuple[SortOrder, ...] = (),
        frame: WindowFrame | None = None,
    ) -> None:
        self._partition, self._order, self._frame = partition, order, frame

    def __repr__(self) -> str:
        return f"WindowSpec({window_text(self._expression(Star()))})"

    def partition_by(self, *cols: ColumnOrName | list[ColumnOrName]) -> "WindowSpec":
        """Rows that are equal in these columns belong together."""
        return WindowSpec(expressions_of(_flat(cols)), self._order, self._frame)

    def order_by(self, *cols: ColumnOrName | list[ColumnOrName]) -> "WindowSpec":
        """The order within a partition."""
        return WindowSpec(self._partition, tuple(map(sort_order_of, _flat(cols))), self._frame)

    def rows_between(self, start: int, end: int) -> "WindowSpec":
        """From so many rows before the current one (a negative number) to so many after it."""
        frame = WindowFrame("FRAME_TYPE_ROW", _boundary(start, "integer"), _boundary(end, "integer"))
        return WindowSpec(self._partition, self._order, frame)

    def range_between(self, start: int, end: int) -> "WindowSpec":
        """From so much less than the current row's value to so much more, in the column of the order."""
        frame = WindowFrame("FRAME_TYPE_RANGE", _boundary(start, "long"), _boundary(end, "long"))
        return WindowSpec(self._partition, self._order, frame)

    def _over(self, function: Expression) -> WindowExpression:
        if not self._partition:
            warnings.warn(
                "the window has no partition_by(): all rows go to one task, which is slow for many rows",
                stacklevel=3,
            )
        return self._expression(function)

    def _expression(self, function: Expression) -> WindowExpression:
        return WindowExpression(function, self._partition, self._order, self._frame)


@camel_cased()
class Window:
    """The start of a window: ``Window.partition_by("user").order_by("time")``."""

    unbounded_preceding: ClassVar[int] = _MIN_LONG
    unbounded_following: ClassVar[int] = _MAX_LONG
    current_row: ClassVar[int] = 0

    @staticmethod
    def partition_by(*cols: ColumnOrName | list[ColumnOrName]) -> WindowSpec:
        """Rows that are equal in these columns belong together."""
        return WindowSpec().partition_by(*cols)

    @staticmethod
    def order_by(*cols: ColumnOrName | list[ColumnOrName]) -> WindowSpec:
        """The order of the rows."""
        return WindowSpec().order_by(*cols)

    @staticmethod
    def rows_between(start: int, end: int) -> WindowSpec:
        """From so many rows before the current one (a negative number) to so many after it."""
        return WindowSpec().rows_between(start, end)

    @staticmethod
    def range_between(start: int, end: int) -> WindowSpec:
        """From so much less than the current row's value to so much more, in the column of the order."""
        return WindowSpec().range_between(start, end)


def _flat(cols: tuple[ColumnOrName | list[ColumnOrName], ...]) -> list[ColumnOrName]:
    return [each for col in cols for each in (col if isinstance(col, list) else [col])]


def _boundary(offset: int, kind: str) -> FrameBoundary:
    if offset == 0:
        return FrameBoundary(current_row=True)
    if offset <= _PRECEDING or offset >= _FOLLOWING:
        return FrameBoundary(unbounded=True)
    if kind == "integer" and offset not in _INT32:
        raise InvalidPlanError(
            f"a frame of {offset} rows is not possible.",
            remedy="Pass a number of 32 bits, or Window.unbounded_preceding or Window.unbounded_following.",
        )
    return FrameBoundary(value=Literal(kind, offset))
