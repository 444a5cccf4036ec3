"""Tags: names that the operations of a thread or a task are started under, so that they can be interrupted together.

They are kept for each context: a thread begins without any, a task with those of the task that started it.
"""

import contextvars
from collections.abc import Mapping
from types import MappingProxyType

from solstice.errors import ConfigError

_SEPARATOR = ","
_tags: contextvars.ContextVar[Mapping[str, frozenset[str]]] = contextvars.ContextVar(
    "solstice.connect.tags", default=MappingProxyType({})
)


def tags_of(session_id: str) -> frozenset[str]:
    """The tags of a session's operations in this context."""
    return _tags.get().get(session_id, frozenset())


def set_tags(session_id: str, tags: frozenset[str]) -> None:
    """Replace the tags of a session's operations in this context."""
    others = {key: value for key, value in _tags.get().items() if key != session_id}
    _tags.set(MappingProxyType(others | ({session_id: tags} if tags else {})))


def check_tag(tag: object) -> str:
    """The tag, or an error if it cannot be one."""
    if isinstance(tag, str) and tag and _SEPARATOR not in tag:
        return tag
    raise ConfigError(
        f"{tag!r} is not a tag.", option="tag", value=tag, remedy="Pass text that is not empty and has no comma."
    )
