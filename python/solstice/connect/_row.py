"""Rows: tuples that know the names of their columns.

The rows of one result share a class that has the names, so that a row costs no more than its tuple.
"""

import functools
from typing import Any

from solstice.connect._camel import camel_cased
from solstice.errors import ArgumentTypeError, InvalidPlanError


class _RowMeta(type):
    """Makes ``Row(a=1, b=2)`` work without a ``__new__`` on Row, which would slow down every row of every result."""

    def __call__(cls, *values: Any, **named: Any) -> Any:
        if values and named:
            raise ArgumentTypeError("a Row takes values or named values, not both")
        return row_class(tuple(named))(named.values()) if named else row_class(())(values)


class _ResultRowMeta(_RowMeta):
    """The classes of results take an iterable, as tuple does, and at tuple's speed."""

    __call__ = type.__call__


@camel_cased()
class Row(tuple[Any, ...], metaclass=_RowMeta):
    """A row: a tuple whose values are also found by name, ``row.city`` or ``row["city"]``.

    ``Row(name="Ann", age=5)`` makes one; ``Person = Row("name", "age")`` makes a maker, for ``Person("Ann", 5)``.

    A name that is a method of tuples (``count``, ``index``) is only found as ``row["count"]``. Of two columns with the
    same name, the name finds the first.
    """

    __slots__ = ()
    __fields__: list[str] = []  # noqa: RUF012  (as PySpark's; replaced by row_class)
    _positions: dict[str, int] = {}  # noqa: RUF012  (replaced, never changed, by row_class)

    def as_dict(self, recursive: bool = False) -> dict[str, Any]:
        """Names and values; rows inside become dicts too when ``recursive``."""
        if not self.__fields__:
            raise ArgumentTypeError("a Row without names cannot become a dict")
        return {name: _plain(value) if recursive else value for name, value in zip(self.__fields__, self, strict=False)}

    def __call__(self, *values: Any) -> "Row":
        """A row with these values, whose names are the values of this one."""
        if self.__fields__ or len(values) > len(self):
            raise InvalidPlanError(f"{self!r} does not make rows of {len(values)} values.")
        row: Row = row_class(tuple(self))(values)
        return row

    def __getattr__(self, name: str) -> Any:
        position = self._positions.get(name)
        if position is None or position >= len(self):  # a maker may be given fewer values than it has names
            raise AttributeError(f"the row has no column {name!r}; it has: {', '.join(self.__fields__)}")
        return tuple.__getitem__(self, position)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            try:
                return tuple.__getitem__(self, self._positions[key])
            except LookupError:
                raise InvalidPlanError(f"the row has no column {key!r}; it has: {', '.join(self.__fields__)}") from None
        return tuple.__getitem__(self, key)

    def __contains__(self, item: object) -> bool:
        return item in self.__fields__ if self.__fields__ else tuple.__contains__(self, item)

    def __repr__(self) -> str:
        if self and not self.__fields__:
            return f"<Row({', '.join(map(repr, self))})>"
        return f"Row({', '.join(f'{name}={value!r}' for name, value in zip(self.__fields__, self, strict=False))})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (tuple(self.__fields__), tuple(self)))


@functools.lru_cache(maxsize=1024)
def row_class(names: tuple[str, ...]) -> Any:
    """The class of rows with these column names; it takes one iterable, like tuple."""
    positions = {name: index for index, name in reversed(list(enumerate(names)))}
    return _ResultRowMeta("Row", (Row,), {"__slots__": (), "__fields__": list(names), "_positions": positions})


def _rebuild(names: tuple[str, ...], values: tuple[Any, ...]) -> Row:
    row: Row = row_class(names)(values)
    return row


def _plain(value: Any) -> Any:
    if isinstance(value, Row):
        return value.as_dict(recursive=True)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value
