"""Which argument of a call has a wrong type. Looked into only when the call has failed: what works costs nothing."""

import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from solstice.errors import ArgumentTypeError


def wrong_argument(function: Callable[..., Any], values: Any, keywords: Mapping[str, Any]) -> ArgumentTypeError | None:
    """The error for the first argument that is not what the function's annotations say; None if all of them are."""
    signature = inspect.signature(function)
    try:
        given = signature.bind(*values, **keywords).arguments
    except TypeError:
        return None  # one is missing, or too many: Python has said so
    for name, value in given.items():
        parameter = signature.parameters[name]
        hint = _evaluated(parameter.annotation, function)
        if hint is parameter.empty or parameter.kind is parameter.VAR_KEYWORD:
            continue
        for each in value if parameter.kind is parameter.VAR_POSITIONAL else (value,):
            if not _fits(each, hint):
                text = re.sub(r"[A-Za-z_.]+\.(\w+)", r"\1", inspect.formatannotation(hint))
                return ArgumentTypeError(f"{function.__name__}() takes {text} as {name!r}, not {each!r}")
    return None


def _evaluated(annotation: Any, function: Callable[..., Any]) -> Any:
    """An annotation that is text as what it stands for; as Any where that is known to type checkers only."""
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, vars(sys.modules[function.__module__]))
    except (NameError, TypeError):
        return Any


def _fits(value: Any, hint: Any) -> bool:
    if hint is None or hint is Any:
        return hint is Any or value is None
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is typing.Literal:
        return value in parts
    if origin in (Sequence, list, tuple):
        is_one = isinstance(value, Sequence) and not isinstance(value, str)
        return is_one and (origin is tuple or all(_fits(each, parts[0]) for each in value))
    if origin is not None:
        hint = origin
    if hint is float:
        hint = (int, float)
    return not isinstance(hint, type | tuple) or isinstance(value, hint)
