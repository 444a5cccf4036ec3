"""What asks the server is written once, as a coroutine, and is there twice: as a plain method and as an awaitable one.

    class Results(Frame):
        @action
        async def count(self) -> int: ...

    class DataFrame(Results, Blocking): ...            # df.count() is the number
    class AsyncDataFrame(Results, Asynchronous): ...   # await df.count() is

A coroutine over a transport that blocks never suspends: ``run`` takes its one step and has the result. There is no
event loop, no thread, and Ctrl-C arrives where the call waits. ``Blocking`` and ``Asynchronous`` put the methods into
their subclasses as plain functions when the class is made; the ``__get__`` below are for type checkers and editors.
"""

import functools
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, overload

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result", covariant=True)
_Item = TypeVar("_Item")
_Blocking = TypeVar("_Blocking", bound="Blocking")
_Asynchronous = TypeVar("_Asynchronous", bound="Asynchronous")


def run(coroutine: Coroutine[Any, Any, _Result]) -> _Result:
    """The result of a coroutine that waits for nothing but calls that block."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: _Result = end.value
        return result
    coroutine.close()
    raise RuntimeError("a coroutine that needs an event loop was run without one")


def iterate(chunks: AsyncGenerator[Iterable[_Item], None]) -> Generator[_Item, None, None]:
    """The items of the chunks that come of such coroutines. Closing the iterator ends what makes them."""
    try:
        while True:
            try:
                chunk = run(chunks.__anext__())
            except StopAsyncIteration:
                return
            yield from chunk
            del chunk  # not held while the next one is made
    finally:
        run(chunks.aclose())


async def aiterate(chunks: AsyncGenerator[Iterable[_Item], None]) -> AsyncGenerator[_Item, None]:
    """The same in an event loop."""
    try:
        async for chunk in chunks:
            for item in chunk:
                yield item
    finally:
        await chunks.aclose()


class Blocking:
    """Its subclasses have all actions as plain methods and all questions as properties."""

    __slots__ = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name, member in _deferred_of(cls):
            setattr(cls, name, member.blocking())


class Asynchronous:
    """Its subclasses have all actions and all questions as methods to await."""

    __slots__ = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name, member in _deferred_of(cls):
            setattr(cls, name, member.asynchronous())


class _Deferred:
    """A method that becomes one or the other in a class that blocks or does not."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def blocking(self) -> Any:
        function = self.function

        @functools.wraps(function)
        def method(*values: Any, **keywords: Any) -> Any:
            return run(function(*values, **keywords))

        return method

    def asynchronous(self) -> Any:
        return self.function


def _deferred_of(cls: type) -> list[tuple[str, _Deferred]]:
    members = {name: member for base in reversed(cls.__mro__) for name, member in vars(base).items()}
    return [(name, member) for name, member in members.items() if isinstance(member, _Deferred)]


class action(_Deferred, Generic[_Parameters, _Result]):
    """A method that asks the server and returns what it said."""

    def __init__(self, function: Callable[Concatenate[Any, _Parameters], Coroutine[Any, Any, _Result]]) -> None:
        super().__init__(function)

    if TYPE_CHECKING:

        @overload
        def __get__(self, instance: Blocking, owner: Any = None) -> Callable[_Parameters, _Result]: ...

        @overload
        def __get__(
            self, instance: Asynchronous, owner: Any = None
        ) -> Callable[_Parameters, Coroutine[Any, Any, _Result]]: ...

        def __get__(self, instance: Any, owner: Any = None) -> Any: ...


class fluent(_Deferred, Generic[_Parameters]):
    """An action that returns a DataFrame of the same class."""

    def __init__(self, function: Callable[Concatenate[Any, _Parameters], Coroutine[Any, Any, Any]]) -> None:
        super().__init__(function)

    if TYPE_CHECKING:

        @overload
        def __get__(self, instance: _Blocking, owner: Any = None) -> Callable[_Parameters, _Blocking]: ...

        @overload
        def __get__(
            self, instance: _Asynchronous, owner: Any = None
        ) -> Callable[_Parameters, Coroutine[Any, Any, _Asynchronous]]: ...

        def __get__(self, instance: Any, owner: Any = None) -> Any: ...


class question(_Deferred, Generic[_Result]):
    """A property where it may block; to await, it is a method: reading an attribute should not start a call."""

    def __init__(self, function: Callable[[Any], Coroutine[Any, Any, _Result]]) -> None:
        super().__init__(function)

    def blocking(self) -> Any:
        return property(super().blocking())

    if TYPE_CHECKING:

        @overload
        def __get__(self, instance: Blocking, owner: Any = None) -> _Result: ...

        @overload
        def __get__(self, instance: Asynchronous, owner: Any = None) -> Callable[[], Coroutine[Any, Any, _Result]]: ...

        def __get__(self, instance: Any, owner: Any = None) -> Any: ...


class stream(_Deferred, Generic[_Parameters, _Item]):
    """A method whose items come while the server works: an iterator, or an asynchronous one.

    The function makes them in chunks, each what is there at a time, so that single rows cost no step of a coroutine.
    """

    def __init__(
        self, function: Callable[Concatenate[Any, _Parameters], AsyncGenerator[Iterable[_Item], None]]
    ) -> None:
        super().__init__(function)

    def blocking(self) -> Any:
        return self._with(iterate)

    def asynchronous(self) -> Any:
        return self._with(aiterate)

    def _with(self, items: Callable[[Any], Any]) -> Any:
        function = self.function

        @functools.wraps(function)
        def method(*values: Any, **keywords: Any) -> Any:
            return items(function(*values, **keywords))

        return method

    if TYPE_CHECKING:

        @overload
        def __get__(
            self, instance: Blocking, owner: Any = None
        ) -> Callable[_Parameters, Generator[_Item, None, None]]: ...

        @overload
        def __get__(
            self, instance: Asynchronous, owner: Any = None
        ) -> Callable[_Parameters, AsyncGenerator[_Item, None]]: ...

        def __get__(self, instance: Any, owner: Any = None) -> Any: ...
