"""Immutable values with named fields: what frozen dataclasses are, at a tenth of their cost at import.

The client has about a hundred of them, for types, expressions and relations. Each dataclass compiles its methods when
it is made, which together would take longer than all the rest of a program's start.
"""

import inspect
from typing import Any, ClassVar, NoReturn, dataclass_transform


@dataclass_transform(frozen_default=True)
class Record:
    """The annotated names of a subclass are its fields, in order; a value in the class is a default.

    Names with a leading underscore and ClassVars are not fields.
    """

    _fields: ClassVar[tuple[str, ...]] = ()
    _required: ClassVar[int] = 0

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        own = [
            name
            for name, annotation in inspect.get_annotations(cls).items()
            if not name.startswith("_") and getattr(annotation, "__origin__", None) is not ClassVar
        ]
        cls._fields += tuple(name for name in own if name not in cls._fields)
        defaults = [hasattr(cls, name) for name in cls._fields]
        cls._required = defaults.index(True) if True in defaults else len(defaults)

    def __init__(self, *values: Any, **named: Any) -> None:
        fields = self._fields
        if named or not self._required <= len(values) <= len(fields):
            self._check(len(values), named)
        self.__dict__.update(zip(fields, values, strict=False), **named)

    def _check(self, count: int, named: dict[str, Any]) -> None:
        rest = self._fields[count:]
        unknown = [name for name in named if name not in rest]
        missing = [name for name in self._fields[: self._required][count:] if name not in named]
        if count > len(self._fields) or unknown or missing:
            raise TypeError(f"{type(self).__name__} takes ({', '.join(self._fields)}); got {count} values and {named}")

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} cannot be changed")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} cannot be changed")

    def _values(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self._fields)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._values() == other._values()

    def __hash__(self) -> int:
        return hash((type(self), self._values()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in self._fields)})"
