"""``spark.conf``: the settings of a session."""

from typing import TYPE_CHECKING, Any

from solstice.connect._actions import Asynchronous, Blocking, action, question
from solstice.connect._camel import camel_cased
from solstice.errors import ArgumentTypeError

if TYPE_CHECKING:
    from solstice.connect._link import Link

_NO_VALUE: Any = object()


class ConfMethods:
    """Settings by their names, such as ``spark.sql.shuffle.partitions``."""

    __slots__ = ("_link",)

    def __init__(self, link: "Link") -> None:
        self._link = link

    @action
    async def get(self, key: str, default: str | None = _NO_VALUE) -> str | None:
        """The value of a setting. One without a value gives ``default``; NoSuchElementError if that is left out."""
        if not isinstance(key, str):
            raise ArgumentTypeError(f"the name of a setting is text, not {key!r}")
        if default is _NO_VALUE:
            return (await self._link.config(get={"keys": [key]}))[key]
        pair = {"key": key} if default is None else {"key": key, "value": default}
        return (await self._link.config(get_with_default={"pairs": [pair]}))[key]

    @question
    async def get_all(self) -> dict[str, str]:
        """All settings that have a value."""
        return {key: value for key, value in (await self._link.config(get_all={})).items() if value is not None}

    @action
    async def set(self, key: str, value: str | int | float | bool) -> None:
        """Change a setting of this session."""
        if not isinstance(value, str | int | float):
            raise ArgumentTypeError(f"the value of the setting {key!r} is text, a number or a bool, not {value!r}")
        text = str(value).lower() if isinstance(value, bool) else str(value)
        await self._link.config(set={"pairs": [{"key": key, "value": text}]})

    @action
    async def unset(self, key: str) -> None:
        """Give a setting its default again."""
        await self._link.config(unset={"keys": [key]})

    @action
    async def is_modifiable(self, key: str) -> bool:
        """Whether the setting can be changed in a session."""
        return (await self._link.config(is_modifiable={"keys": [key]}))[key] == "true"


@camel_cased()
class RuntimeConfig(ConfMethods, Blocking):
    """``spark.conf``."""

    __slots__ = ()


@camel_cased()
class AsyncRuntimeConfig(ConfMethods, Asynchronous):
    """``spark.conf`` of a session to await."""

    __slots__ = ()
