"""The Column: an expression with Python's operators. It knows no DataFrame and no session."""

import json
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from solstice.connect import types
from solstice.connect._camel import camel_cased
from solstice.connect._expressions import (
    Alias,
    Attribute,
    Cast,
    Expression,
    ExtractValue,
    Function,
    SortOrder,
    Star,
    Subquery,
    UpdateFields,
)
from solstice.connect._literals import literal
from solstice.connect._text import text_of
from solstice.errors import ArgumentTypeError, InvalidPlanError

if TYPE_CHECKING:
    from solstice.connect._window import WindowSpec

_ASCENDING, _DESCENDING = "SORT_DIRECTION_ASCENDING", "SORT_DIRECTION_DESCENDING"
_NULLS_FIRST, _NULLS_LAST = "SORT_NULLS_FIRST", "SORT_NULLS_LAST"


@camel_cased(is_nan="isNaN", bitwise_or="bitwiseOR", bitwise_and="bitwiseAND", bitwise_xor="bitwiseXOR")
class Column:
    """A column, or anything computed from columns. ``&``, ``|`` and ``~`` stand for and, or and not.

    ``column.name`` and ``column["name"]`` are fields of a struct; ``column[0]`` is an element of an array.
    """

    __slots__ = ("_expression",)

    def __init__(self, expression: Expression) -> None:
        if not isinstance(expression, Expression):
            raise ArgumentTypeError("Columns are made by functions.col(), functions.lit() and other functions")
        self._expression = expression

    def __repr__(self) -> str:
        return f"Column<'{text_of(self._expression)}'>"

    def _call(self, name: str, *others: Any, reverse: bool = False) -> "Column":
        arguments = (self._expression, *[expression_of(other) for other in others])
        return Column(Function(name, arguments[::-1] if reverse else arguments))

    # Comparison.

    def __eq__(self, other: object) -> "Column":  # type: ignore[override]
        return self._call("==", other)

    def __ne__(self, other: object) -> "Column":  # type: ignore[override]
        return self._call("==", other)._call("not")

    def __lt__(self, other: Any) -> "Column":
        return self._call("<", other)

    def __le__(self, other: Any) -> "Column":
        return self._call("<=", other)

    def __gt__(self, other: Any) -> "Column":
        return self._call(">", other)

    def __ge__(self, other: Any) -> "Column":
        return self._call(">=", other)

    def eq_null_safe(self, other: Any) -> "Column":
        """Equal, where NULL equals NULL."""
        return self._call("<=>", other)

    def between(self, lower_bound: Any, upper_bound: Any) -> "Column":
        """At least the lower bound and at most the upper one."""
        return self._call(">=", lower_bound)._call("and", self._call("<=", upper_bound))

    def isin(self, *cols: Any) -> "Column":
        """One of the values, which may also be one list, or one of the rows of a DataFrame."""
        from solstice.connect._frame import Frame

        if len(cols) == 1 and isinstance(cols[0], Frame):
            own = self._expression
            is_struct = isinstance(own, Function) and own.function_name == "struct"
            members = own.arguments if isinstance(own, Function) and is_struct else (own,)
            return Column(Subquery(cols[0]._relation, "SUBQUERY_TYPE_IN", in_subquery_values=members))
        values: Iterable[Any] = cols[0] if len(cols) == 1 and isinstance(cols[0], list | set) else cols
        return self._call("in", *values)

    def is_null(self) -> "Column":
        """Whether it is NULL."""
        return self._call("isNull")

    def is_not_null(self) -> "Column":
        """Whether it is not NULL."""
        return self._call("isNotNull")

    def is_nan(self) -> "Column":
        """Whether it is not a number."""
        return self._call("isNaN")

    # Arithmetic.

    def __add__(self, other: Any) -> "Column":
        return self._call("+", other)

    def __radd__(self, other: Any) -> "Column":
        return self._call("+", other, reverse=True)

    def __sub__(self, other: Any) -> "Column":
        return self._call("-", other)

    def __rsub__(self, other: Any) -> "Column":
        return self._call("-", other, reverse=True)

    def __mul__(self, other: Any) -> "Column":
        return self._call("*", other)

    def __rmul__(self, other: Any) -> "Column":
        return self._call("*", other, reverse=True)

    def __truediv__(self, other: Any) -> "Column":
        return self._call("/", other)

    def __rtruediv__(self, other: Any) -> "Column":
        return self._call("/", other, reverse=True)

    def __mod__(self, other: Any) -> "Column":
        return self._call("%", other)

    def __rmod__(self, other: Any) -> "Column":
        return self._call("%", other, reverse=True)

    def __pow__(self, other: Any) -> "Column":
        return self._call("power", other)

    def __rpow__(self, other: Any) -> "Column":
        return self._call("power", other, reverse=True)

    def __neg__(self) -> "Column":
        return self._call("negative")

    def bitwise_or(self, other: Any) -> "Column":
        """Bit by bit, or."""
        return self._call("|", other)

    def bitwise_and(self, other: Any) -> "Column":
        """Bit by bit, and."""
        return self._call("&", other)

    def bitwise_xor(self, other: Any) -> "Column":
        """Bit by bit, either but not both."""
        return self._call("^", other)

    # Logic.

    def __and__(self, other: Any) -> "Column":
        return self._call("and", other)

    def __or__(self, other: Any) -> "Column":
        return self._call("or", other)

    def __invert__(self) -> "Column":
        return self._call("not")

    __rand__ = __and__
    __ror__ = __or__

    def __bool__(self) -> NoReturn:
        raise InvalidPlanError(
            f"{self!r} is not true or false: it is not computed yet.",
            remedy="Use & for and, | for or, ~ for not, each side in parentheses.",
        )

    def __contains__(self, item: object) -> NoReturn:
        raise InvalidPlanError(
            "'in' does not work with a Column.", remedy="Use column.contains(...) or functions.array_contains."
        )

    def __iter__(self) -> NoReturn:
        raise ArgumentTypeError("a Column cannot be iterated: it is not computed yet")

    def when(self, condition: "Column", value: Any) -> "Column":
        """Another case after ``functions.when(...)``."""
        cases = self._cases("when")
        return Column(Function("when", (*cases, _condition(condition), expression_of(value))))

    def otherwise(self, value: Any) -> "Column":
        """The value where no case after ``functions.when(...)`` holds."""
        return Column(Function("when", (*self._cases("otherwise"), expression_of(value))))

    def _cases(self, method: str) -> tuple[Expression, ...]:
        own = self._expression
        if not isinstance(own, Function) or own.function_name != "when" or len(own.arguments) % 2:
            raise InvalidPlanError(
                f"{method}() does not follow functions.when(...) here.",
                remedy="Write when(...).when(...).otherwise(...), with one otherwise() at the end.",
            )
        return own.arguments

    # Text.

    def contains(self, other: Any) -> "Column":
        """Whether the text contains another."""
        return self._call("contains", other)

    def startswith(self, other: Any) -> "Column":
        """Whether the text starts with another."""
        return self._call("startsWith", other)

    def endswith(self, other: Any) -> "Column":
        """Whether the text ends with another."""
        return self._call("endsWith", other)

    def like(self, other: Any) -> "Column":
        """Whether the text matches a pattern of SQL, where ``%`` and ``_`` are any text and any character."""
        return self._call("like", other)

    def ilike(self, other: Any) -> "Column":
        """Like ``like``, for letters of either case."""
        return self._call("ilike", other)

    def rlike(self, other: Any) -> "Column":
        """Whether a regular expression of Java matches within the text."""
        return self._call("rlike", other)

    def substr(self, start_pos: "int | Column", length: "int | Column") -> "Column":
        """A part of the text or bytes; the first position is 1. Both are numbers or both are Columns."""
        if isinstance(start_pos, Column) != isinstance(length, Column):
            raise InvalidPlanError(
                "substr() takes two numbers or two Columns.", remedy="Wrap the number: functions.lit(n)."
            )
        return self._call("substr", start_pos, length)

    # Parts of structs, arrays and maps.

    def __getitem__(self, key: Any) -> "Column":
        if isinstance(key, slice):
            if key.step is not None:
                raise InvalidPlanError("a slice of a Column has no step.", remedy="Write column[start:length].")
            return self.substr(key.start, key.stop)
        return Column(ExtractValue(self._expression, expression_of(key)))

    def __getattr__(self, name: str) -> Any:  # also PySpark's spellings, for type checkers
        if name.startswith("_"):
            raise AttributeError(f"a Column has no attribute {name!r}; a field of that name is column[{name!r}]")
        return self[name]

    def get_item(self, key: Any) -> "Column":
        """An element of an array by its position from 0, or a value of a map by its key."""
        return self[key]

    def get_field(self, name: Any) -> "Column":
        """A field of a struct."""
        return self[name]

    def with_field(self, field_name: str, col: "Column") -> "Column":
        """The struct with a field added or replaced."""
        return Column(UpdateFields(self._expression, field_name, _column(col)._expression))

    def drop_fields(self, *field_names: str) -> "Column":
        """The struct without some fields."""
        if not field_names:
            raise InvalidPlanError("drop_fields() got no field.", remedy="Pass the fields' names.")
        expression = self._expression
        for name in field_names:
            expression = UpdateFields(expression, name)
        return Column(expression)

    # Type, name and order.

    def cast(self, data_type: types.DataType | str) -> "Column":
        """The value as another type: ``cast("int")`` or ``cast(types.IntegerType())``."""
        return self._cast(data_type, None)

    astype = cast

    def try_cast(self, data_type: types.DataType | str) -> "Column":
        """Like ``cast``, with NULL where the value does not fit."""
        return self._cast(data_type, "EVAL_MODE_TRY")

    def _cast(self, data_type: types.DataType | str, mode: str | None) -> "Column":
        if isinstance(data_type, str):
            return Column(Cast(self._expression, type_str=data_type, eval_mode=mode))
        if isinstance(data_type, types.DataType):
            return Column(Cast(self._expression, type=data_type, eval_mode=mode))
        raise ArgumentTypeError(f"{data_type!r} is not a type; pass types.IntegerType() or its text, 'int'")

    def alias(self, *alias: str, metadata: dict[str, Any] | None = None) -> "Column":
        """The column under another name; several names for a function that makes several columns."""
        if metadata is not None and len(alias) != 1:
            raise InvalidPlanError("metadata belongs to one column.", remedy="Pass one name with it.")
        return Column(Alias(self._expression, alias, None if metadata is None else json.dumps(metadata)))

    name = alias

    def asc(self) -> "Column":
        """To sort upwards, NULL first."""
        return self.asc_nulls_first()

    def asc_nulls_first(self) -> "Column":
        """To sort upwards, NULL first."""
        return Column(SortOrder(self._expression, _ASCENDING, _NULLS_FIRST))

    def asc_nulls_last(self) -> "Column":
        """To sort upwards, NULL last."""
        return Column(SortOrder(self._expression, _ASCENDING, _NULLS_LAST))

    def desc(self) -> "Column":
        """To sort downwards, NULL last."""
        return self.desc_nulls_last()

    def desc_nulls_first(self) -> "Column":
        """To sort downwards, NULL first."""
        return Column(SortOrder(self._expression, _DESCENDING, _NULLS_FIRST))

    def desc_nulls_last(self) -> "Column":
        """To sort downwards, NULL last."""
        return Column(SortOrder(self._expression, _DESCENDING, _NULLS_LAST))

    def over(self, window: "WindowSpec") -> "Column":
        """A function computed over a window, for each row."""
        from solstice.connect._window import WindowSpec

        if not isinstance(window, WindowSpec):
            raise ArgumentTypeError(f"{window!r} is not a window; make one with Window.partition_by(...).order_by(...)")
        return Column(window._over(self._expression))

    def outer(self) -> "Column":
        """A column of the outer query, in a subquery or a lateral join."""
        return Column(self._expression)

    def transform(self, f: "Callable[[Column], Column]") -> "Column":
        """``f(column)``, for chains."""
        return f(self)


ColumnOrName: TypeAlias = Column | str


def column_of(value: ColumnOrName) -> Column:
    """A Column as it is, or the column of that name; ``*`` and ``t.*`` are all columns."""
    if isinstance(value, Column):
        return value
    if not isinstance(value, str):
        raise ArgumentTypeError(
            f"expected a Column or a column's name, not {value!r}; a constant is functions.lit(...)"
        )
    if value == "*":
        return Column(Star())
    if value.endswith(".*"):
        return Column(Star(value))
    return Column(Attribute(value))


def expression_of(value: Any) -> Expression:
    """The expression of a Column, or a value as a literal."""
    return value._expression if isinstance(value, Column) else literal(value)


def expressions_of(values: Iterable[ColumnOrName]) -> tuple[Expression, ...]:
    """The expressions of Columns and names."""
    return tuple(column_of(value)._expression for value in values)


def sort_order_of(value: ColumnOrName) -> SortOrder:
    """What to sort by; upwards if the column does not say."""
    expression = column_of(value)._expression
    return expression if isinstance(expression, SortOrder) else SortOrder(expression, _ASCENDING, _NULLS_FIRST)


def _condition(value: Any) -> Expression:
    return _column(value)._expression


def _column(value: Any) -> Column:
    if not isinstance(value, Column):
        raise ArgumentTypeError(f"expected a Column, not {value!r}")
    return value
