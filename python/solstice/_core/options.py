"""Typed options: one table holds name, type, default, unit, environment and text, for the code and for the docs.

Names are compared without case, as Spark does. What wins: the option, then the environment, then the default.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from solstice._core.parsers import (
    Parser,
    boolean,
    duration_s,
    integer,
    names,
    number,
    one_of,
    size_bytes,
    text,
)
from solstice.errors import ConfigError, UnknownOptionError

__all__ = [
    "Option",
    "OptionTable",
    "OptionValues",
    "Parser",
    "boolean",
    "duration_s",
    "integer",
    "names",
    "number",
    "one_of",
    "size_bytes",
    "text",
]

MASK = "***"


@dataclass(frozen=True)
class Option:
    """One option. A ``default`` that is a string is parsed like a value that a user wrote; any other is taken as it is.

    ``env`` names environment variables, the first that is set and not empty counts. ``secret`` values show nowhere.
    """

    name: str
    parse: Parser
    doc: str
    default: Any = None
    unit: str | None = None
    env: tuple[str, ...] = ()
    secret: bool = False
    required: bool = False


class OptionValues:
    """The parsed values of a table, by name in any case. It can be pickled; its repr masks the secrets."""

    def __init__(
        self, values: dict[str, Any], given: frozenset[str], written: frozenset[str], secrets: frozenset[str]
    ) -> None:
        self._values = values
        self._keys = {name.lower(): name for name in values}
        self._given = given
        self._written = written
        self._secrets = secrets

    def __getitem__(self, name: str) -> Any:
        return self._values[self._keys[name.lower()]]

    def given(self, name: str) -> bool:
        """Whether the option was set, by the caller or by the environment, rather than left to its default."""
        return self._keys[name.lower()] in self._given

    def written(self, name: str) -> bool:
        """Whether the caller set the option, rather than the environment or its default."""
        return self._keys[name.lower()] in self._written

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        shown = (f"{name}={self._shown(name)}" for name in self._values)
        return f"OptionValues({', '.join(shown)})"

    def _shown(self, name: str) -> str:
        value = self._values[name]
        return MASK if name in self._secrets and value is not None else repr(value)


class OptionTable:
    """The options that ``owner`` (as a user knows it, for example ``pubsub``) takes."""

    def __init__(self, owner: str, options: Iterable[Option]) -> None:
        self.owner = owner
        self.options = tuple(options)
        self._by_key: dict[str, Option] = {}
        self._defaults: dict[str, Any] = {}
        for option in self.options:
            if option.name.lower() in self._by_key:
                raise ValueError(f"{owner} has two options {option.name!r}")
            self._by_key[option.name.lower()] = option
            default = option.default
            self._defaults[option.name] = option.parse(default) if isinstance(default, str) else default

    def parse(self, given: Mapping[str, str], environ: Mapping[str, str] | None = None) -> OptionValues:
        """Check and convert what was given; ``environ`` is the process's own environment unless one is passed."""
        environ = os.environ if environ is None else environ
        written = self._written(given)
        values: dict[str, Any] = {}
        set_names = set()
        for option in self.options:
            source, raw = self._source(option, written, environ)
            if raw is None:
                values[option.name] = self._default(option)
            else:
                values[option.name] = self._convert(option, source, raw)
                set_names.add(option.name)
        secrets = frozenset(option.name for option in self.options if option.secret)
        by_caller = frozenset(self._by_key[key].name for key in written)
        return OptionValues(values, frozenset(set_names), by_caller, secrets)

    def markdown(self) -> str:
        """The table for the docs."""
        lines = ["| option | type | default | unit | environment | meaning |", "| --- | --- | --- | --- | --- | --- |"]
        for option in self.options:
            cells = (
                f"`{option.name}`",
                option.parse.kind,
                self._shown_default(option),
                option.unit or "",
                ", ".join(f"`{name}`" for name in option.env),
                option.doc,
            )
            lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
        return "\n".join(lines) + "\n"

    def _written(self, given: Mapping[str, str]) -> dict[str, tuple[str, str]]:
        """Lower-case name -> (the spelling used, the text); rejects unknown names and contradicting spellings."""
        written: dict[str, tuple[str, str]] = {}
        for name, raw in given.items():
            option = self._by_key.get(name.lower())
            if option is None:
                raise self._unknown(name)
            if not isinstance(raw, str):
                raise ConfigError(
                    f"{self.owner}: option {option.name!r} must be given as text, not as {type(raw).__name__}.",
                    option=option.name,
                    remedy="Pass a string.",
                )
            other = written.setdefault(name.lower(), (name, raw))
            if other[1] != raw:
                raise ConfigError(
                    f"{self.owner}: option {option.name!r} is given twice, as {other[0]!r} and as {name!r}, "
                    "with different values.",
                    option=option.name,
                    remedy=f"Set {option.name!r} once: names are compared without case.",
                )
        return written

    def _source(
        self, option: Option, written: Mapping[str, tuple[str, str]], environ: Mapping[str, str]
    ) -> tuple[str, str | None]:
        if option.name.lower() in written:
            return f"option {option.name!r}", written[option.name.lower()][1]
        for name in option.env:
            if raw := environ.get(name):
                return f"environment variable {name} (option {option.name!r})", raw
        return "", None

    def _default(self, option: Option) -> Any:
        if option.required:
            alternatives = f" or the environment variable {' or '.join(option.env)}" if option.env else ""
            raise ConfigError(
                f"{self.owner}: option {option.name!r} is missing ({option.doc.rstrip('.')}).",
                option=option.name,
                remedy=f"Set the option {option.name!r}{alternatives}.",
            )
        return self._defaults[option.name]

    def _convert(self, option: Option, source: str, raw: str) -> Any:
        try:
            return option.parse(raw)
        except ValueError:
            shown = MASK if option.secret else raw
        # Raised outside the handler: a parser's own error may quote a secret and must not be chained.
        raise ConfigError(
            f"{self.owner}: {source} is {shown!r}.",
            option=option.name,
            value=shown,
            remedy=f"It must be {option.parse.expects}.",
        )

    def _unknown(self, name: str) -> UnknownOptionError:
        import difflib  # here, because it is only for errors

        near = difflib.get_close_matches(name.lower(), self._by_key, n=1)
        if near:
            remedy = f"Did you mean {self._by_key[near[0]].name!r}?"
        else:
            remedy = f"Known options: {', '.join(sorted(option.name for option in self.options))}."
        # The value is left out on purpose: it may be a secret under a misspelled name.
        return UnknownOptionError(f"{self.owner}: there is no option {name!r}.", option=name, remedy=remedy)

    def _shown_default(self, option: Option) -> str:
        if option.required:
            return "required"
        default = option.default
        if default is None or default == () or default == "":
            return ""
        if isinstance(default, bool):
            return f"`{str(default).lower()}`"
        if isinstance(default, tuple):
            return f"`{','.join(map(str, default))}`"
        return f"`{default}`"
