"""URLs that name a service or a place: ``sc://host:15002/;token=...``, ``kafka://host:9092``, ``file:///dir?fsync=no``."""

import re
from dataclasses import dataclass, field
from urllib.parse import unquote

from solstice.errors import ConfigError

MASK = "***"

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_PARAMS_START = re.compile(r"[;?]")
# Headers (x-...) go to the server as they are and often carry a credential.
_SECRET_PARAM = re.compile(r"token|password|secret|credential|api[-_]?key|auth|^x-", re.IGNORECASE)


@dataclass(frozen=True)
class Url:
    """A URL in its parts; ``path`` and ``params`` are percent-decoded. Parameters that look like secrets are masked.

    ``host`` and ``port`` are the first of ``addresses``: a cluster is named by several of its members.
    """

    scheme: str
    host: str
    port: int | None
    path: str
    params: dict[str, str] = field(default_factory=dict, hash=False)
    other_addresses: tuple[tuple[str, int | None], ...] = ()

    @property
    def addresses(self) -> str:
        """``host:port``, or several of them with commas between."""
        return ",".join(_address(host, port) for host, port in ((self.host, self.port), *self.other_addresses))

    def __str__(self) -> str:
        params = "".join(
            f";{name}={MASK if _SECRET_PARAM.search(name) else value}" for name, value in self.params.items()
        )
        return f"{self.scheme}://{self.addresses}{self.path}{params}"

    def __repr__(self) -> str:
        return f"Url({str(self)!r})"


def parse_url(text: str) -> Url:
    """Split ``scheme://host:port/path`` and its parameters, ``;a=b;c=d`` (as in Spark Connect) or ``?a=b&c=d``.

    Several ``host:port`` with commas between them name one cluster.
    """
    if any(character.isspace() or not character.isprintable() for character in text):
        raise _error(text, "has a space or a control character in it", "Write such characters as %20 and the like.")
    match = _SCHEME.match(text)
    if match is None:
        raise _error(text, "has no scheme", "Write it as scheme://host:port/path.")
    rest = text[match.end() :]
    start = _PARAMS_START.search(rest)
    place, params = (rest, "") if start is None else (rest[: start.start()], rest[start.start() :])
    authority, slash, path = place.partition("/")
    if "@" in authority:
        raise _error(text, "has a user name or password in it", "Leave them out; pass credentials as parameters.")
    if "#" in rest:
        raise _error(text, "has a fragment (#...)", "Leave it out, or write the character # as %23.")
    (host, port), *others = [_host_and_port(text, address) for address in authority.split(",")]
    if others and not all(address for address in authority.split(",")):
        raise _error(text, "has an empty address in its list", "Write host:port,host:port.")
    return Url(match[1].lower(), host, port, unquote(slash + path), _params(text, params), tuple(others))


def _address(host: str, port: int | None) -> str:
    return (f"[{host}]" if ":" in host else host) + ("" if port is None else f":{port}")


def _host_and_port(text: str, authority: str) -> tuple[str, int | None]:
    if authority.startswith("["):
        host, bracket, rest = authority[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise _error(text, "has a wrong IPv6 address", "Write it in brackets: [::1]:15002.")
        colon, port = rest[:1], rest[1:]
    else:
        host, colon, port = authority.partition(":")
        if ":" in port:
            raise _error(text, "has more than one colon in its host", "Write an IPv6 address in brackets: [::1]:15002.")
    if not colon:
        return host, None
    if not (host and port.isascii() and port.isdigit() and 1 <= int(port) <= 65535):
        raise _error(text, f"has the port {port!r}", "Write host:port with a port between 1 and 65535.")
    return host, int(port)


def _params(text: str, raw: str) -> dict[str, str]:
    params: dict[str, str] = {}
    separator = "&" if raw.startswith("?") else ";"
    for pair in filter(None, raw[1:].split(separator)):
        name, equals, value = pair.partition("=")
        if not name or not equals:
            # The pair is not shown: it may be a secret that lost its name.
            raise _error(
                text, "has a parameter that is not name=value", f"Write {raw[0]}name=value{separator}name=value."
            )
        name = unquote(name)
        if name in params:
            raise _error(text, f"has the parameter {name!r} twice", "Give each parameter once.")
        params[name] = unquote(value)
    return params


def _error(text: str, problem: str, remedy: str) -> ConfigError:
    """Show the URL without user information and parameters, where secrets are."""
    place = _PARAMS_START.split(text, maxsplit=1)[0]
    shown = re.sub(r"(://|^)[^/]*@", rf"\1{MASK}@", place)
    if place != text:
        shown += text[len(place)] + "..."
    return ConfigError(f"the URL {shown!r} {problem}.", option="url", value=shown, remedy=remedy)
