"""Immutable values with named fields: what frozen dataclasses are, at a tenth of their cost at import.

The client has about a hundred of them, for types, expressions and relations. Each dataclass compiles its methods when
it is made, which together would take longer than all the rest of a program's start.
"""

import inspect
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn, dataclass_transform


@dataclass_transform(frozen_default=True)
class Record:
    """The annotated names of a subclass are its fields, in order; a value in the class is a default.

    Names with a leading underscore and ClassVars are not fields.
    """

    _fields: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        own = [
            name
            for name, annotation in inspect.get_annotations(cls).items()
            if not name.startswith("_") and getattr(annotation, "__origin__", None) is not ClassVar
        ]
        cls._fields += tuple(name for name in own if name not in cls._fields)
        if cls.__init__ in _COMPILED.values():  # a base's, which knows the base's fields only
            cls.__init__ = Record.__init__  # type: ignore[method-assign]

    def __init__(self, *values: Any, **named: Any) -> None:
        cls = type(self)
        compiled = _COMPILED.get(cls) or _compile(cls)
        compiled(self, *values, **named)

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


_COMPILED: dict[type[Record], Callable[..., None]] = {}


def _compile(cls: type[Record]) -> Callable[..., None]:
    """Make a class's constructor, when it is first needed: one that is written out is five times as fast."""
    parameters = [f"{name}=defaults.{name}" if hasattr(cls, name) else name for name in cls._fields]
    lines = [f"    state[{name!r}] = {name}" for name in cls._fields]
    source = "\n".join([f"def __init__(self, {', '.join(parameters)}):", "    state = self.__dict__", *lines])
    namespace: dict[str, Any] = {"defaults": cls}
    exec(source, namespace)
    compiled: Callable[..., None] = namespace["__init__"]
    compiled.__qualname__ = f"{cls.__name__}.__init__"
    _COMPILED[cls] = compiled
    if cls.__init__ is Record.__init__:
        cls.__init__ = compiled  # type: ignore[method-assign]
        for derived in cls.__subclasses__():  # which would inherit it, and have fields of their own
            if "__init__" not in vars(derived):
                derived.__init__ = Record.__init__  # type: ignore[method-assign]
    return compiled
