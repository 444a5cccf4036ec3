"""The basics: columns, constants, conditions, order, NULL, calls by name."""

from typing import TYPE_CHECKING, Any

from solstice.connect._column import Column, ColumnOrName, _condition, column_of
from solstice.connect._expressions import CallFunction, SqlText
from solstice.connect.functions._maker import call, lit
from solstice.connect.functions._maker import column as expression
from solstice.errors import InvalidPlanError

if TYPE_CHECKING:
    from solstice.connect._group import FrameT

TABLE = {
    "coalesce(*cols)": "The first value that is not NULL.",
    "equal_null(col1, col2)": "Whether they are equal, where NULL equals NULL.",
    "ifnull(col1, col2)": "The first value or, if it is NULL, the second.",
    "isnan(col)": "Whether it is not a number.",
    "isnotnull(col)": "Whether it is not NULL.",
    "isnull(col)": "Whether it is NULL.",
    "nanvl(col1, col2)": "The first value or, if it is not a number, the second.",
    "nullif(col1, col2)": "NULL if they are equal, or else the first.",
    "nullifzero(col)": "NULL if it is zero.",
    "nvl(col1, col2)": "The first value or, if it is NULL, the second.",
    "nvl2(col1, col2, col3)": "The second value or, if the first is NULL, the third.",
    "zeroifnull(col)": "Zero if it is NULL.",
}


def col(col: str) -> Column:
    """A column by its name: ``a``, ``t.a``, ``s.field``; ``*`` is all columns."""
    return column_of(col)


def column(col: str) -> Column:
    """A column by its name: ``a``, ``t.a``, ``s.field``; ``*`` is all columns."""
    return column_of(col)


def expr(str: str) -> Column:
    """An expression in SQL."""
    return Column(SqlText(str))


def when(condition: Column, value: Any) -> Column:
    """The first of several cases: ``when(a, 1).when(b, 2).otherwise(3)``; without otherwise, NULL."""
    return call("when", _condition(condition), lit(value)._expression)


def call_function(funcName: str, *cols: ColumnOrName) -> Column:
    """Any function of the server by its name, also one of a catalog or one that this client does not know."""
    return Column(CallFunction(funcName, tuple(map(expression, cols))))


def call_udf(udfName: str, *cols: ColumnOrName) -> Column:
    """A function that was registered in the session, by its name."""
    return call(udfName, *map(expression, cols))


def broadcast(df: "FrameT") -> "FrameT":
    """The DataFrame, small enough to be sent to all tasks of a join."""
    return df.hint("broadcast")


def greatest(*cols: ColumnOrName) -> Column:
    """The largest of two or more columns; NULLs are left out."""
    return _extreme("greatest", cols)


def least(*cols: ColumnOrName) -> Column:
    """The smallest of two or more columns; NULLs are left out."""
    return _extreme("least", cols)


def _extreme(name: str, cols: tuple[ColumnOrName, ...]) -> Column:
    if len(cols) < 2:
        raise InvalidPlanError(f"{name}() compares two or more columns.", remedy="Pass at least two.")
    return call(name, *map(expression, cols))


def asc(col: ColumnOrName) -> Column:
    """To sort upwards, NULL first."""
    return column_of(col).asc()


def asc_nulls_first(col: ColumnOrName) -> Column:
    """To sort upwards, NULL first."""
    return column_of(col).asc_nulls_first()


def asc_nulls_last(col: ColumnOrName) -> Column:
    """To sort upwards, NULL last."""
    return column_of(col).asc_nulls_last()


def desc(col: ColumnOrName) -> Column:
    """To sort downwards, NULL last."""
    return column_of(col).desc()


def desc_nulls_first(col: ColumnOrName) -> Column:
    """To sort downwards, NULL first."""
    return column_of(col).desc_nulls_first()


def desc_nulls_last(col: ColumnOrName) -> Column:
    """To sort downwards, NULL last."""
    return column_of(col).desc_nulls_last()
