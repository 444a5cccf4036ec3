"""PySpark's spelling, by one mechanism: a class's snake_case names also as camelCase, and its keywords too.

``camel_cased`` gives ``union_by_name(other, allow_missing_columns=...)`` the second name ``unionByName`` and lets both
take ``allowMissingColumns``. What these methods refuse with an error of Python's own is explained on the way.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from solstice.connect._record import Record
from solstice.errors import SolsticeError

_Class = TypeVar("_Class", bound=type)


class _Alias:
    """Another name of a member. It looks the member up when it is used: a subclass may have its own."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type) -> Any:
        return getattr(owner if instance is None else instance, self._name)


def camel(name: str) -> str:
    """``union_by_name`` as ``unionByName``."""
    first, *rest = name.split("_")
    return first + "".join(word[:1].upper() + word[1:] for word in rest)


def camel_cased(**spellings: str) -> Callable[[_Class], _Class]:
    """Give a class its camelCase names. ``spellings`` are those that are not regular, such as ``to_df="toDF"``."""

    def decorate(cls: _Class) -> _Class:
        fields = cls._fields if issubclass(cls, Record) else ()
        members = {name: member for base in reversed(cls.__mro__) for name, member in vars(base).items()}
        for name in {*members, *fields}:
            if name.startswith("_") and name != "__init__":
                continue
            member = members.get(name)
            wrapped = _wrapped(member, fields)
            if wrapped is not member:
                setattr(cls, name, wrapped)
            if "_" in name.strip("_"):
                setattr(cls, spellings.get(name) or camel(name), _Alias(name))
        return cls

    return decorate


def _wrapped(member: Any, fields: tuple[str, ...]) -> Any:
    """The same function, taking its keywords in both spellings; anything else as it is."""
    if isinstance(member, staticmethod | classmethod):
        inner = _wrapped(member.__func__, fields)
        return member if inner is member.__func__ else type(member)(inner)
    if not inspect.isfunction(member):
        return member
    if member is Record.__init__:
        names = {camel(field): field for field in fields if "_" in field}
    else:
        code = inspect.unwrap(member).__code__
        parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        names = {camel(name): name for name in parameters if "_" in name.strip("_")}
    if not names and (member is Record.__init__ or inspect.iscoroutinefunction(member)):
        return member

    @functools.wraps(member)
    def wrapper(*values: Any, **keywords: Any) -> Any:
        if keywords:
            keywords = {names.get(name, name): value for name, value in keywords.items()}
        try:
            return member(*values, **keywords)
        except SolsticeError:
            raise
        except (TypeError, ValueError, AttributeError) as error:
            from solstice.connect._arguments import wrong_argument

            wrong = wrong_argument(member, values, keywords)
            if wrong is None:
                raise
            raise wrong from error

    return wrapper
