"""Where a server is and how to speak to it: ``sc://host:port/;key=value;...``, as Spark documents it."""

import os
import re
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace

from solstice._core.options import Option, OptionTable, OptionValues, boolean, integer, text
from solstice._core.urls import parse_url
from solstice.connect._ids import new_id
from solstice.errors import ConfigError

DEFAULT_PORT = 15002
URL_VARIABLE = "SPARK_REMOTE"

_MAX_USER_AGENT_CHARS = 2048  # the server refuses longer ones
_HEADER_PREFIX = "x-"
# What gRPC can send; it says so only when the first call is made, and then not of which header.
_HEADER_NAME = re.compile(r"[0-9a-z_.-]+")
_HEADER_VALUE = re.compile(r"[ -~]*")
_LOOPBACK = re.compile(r"127(\.(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)){3}", re.ASCII)

OPTIONS = OptionTable(
    "connect",
    [
        Option(
            "token",
            text(),
            "bearer token; turns TLS on unless the host is local",
            env=("SPARK_CONNECT_AUTHENTICATE_TOKEN",),
            secret=True,
        ),
        Option("use_ssl", boolean(), "whether to use TLS", default=False),
        Option("user_id", text(), "the user on the server", env=("SPARK_USER", "USER")),
        Option("session_id", text(), "the session to join, a UUID; a new one by default"),
        Option("user_agent", text(), "what the server's logs call this client", env=("SPARK_CONNECT_USER_AGENT",)),
        Option(
            "grpc_max_message_size",
            integer(minimum=1, maximum=2**31 - 1),
            "the largest message either way; a server takes 128 MiB unless it is told otherwise",
            default=128 * 1024 * 1024,
            unit="bytes",
        ),
        Option("grpc_keepalive_enabled", boolean(), "whether to ask a silent connection if it lives", default=True),
        Option(
            "grpc_keepalive_time_ms",
            integer(minimum=1, maximum=2**31 - 1),
            "how long a connection is silent before it is asked",
            default=60_000,
            unit="ms",
        ),
        Option(
            "grpc_keepalive_timeout_ms",
            integer(minimum=1, maximum=2**31 - 1),
            "how long to wait for its answer",
            default=20_000,
            unit="ms",
        ),
        Option("grpc_keepalive_without_calls", boolean(), "whether to ask also while nothing runs", default=True),
    ],
)

Token = str | Callable[[], str]
AsyncToken = Token | Callable[[], Awaitable[str]]


@dataclass(frozen=True)
class Keepalive:
    """How a connection that died without a word is found out."""

    time_ms: int
    timeout_ms: int
    without_calls: bool


@dataclass(frozen=True)
class Endpoint:
    """A server and the identity to show it. Neither the token nor the headers are in the repr."""

    host: str
    port: int
    use_tls: bool
    user_id: str
    session_id: str
    user_agent: str
    max_message_bytes: int
    keepalive: Keepalive | None
    token: AsyncToken | None = field(default=None, repr=False)
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @property
    def address(self) -> str:
        """``host:port``, an IPv6 address in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_local(self) -> bool:
        """Whether the bytes never leave this machine."""
        return _is_local(self.host)

    def with_session(self, session_id: str | None) -> "Endpoint":
        """The same for another session, a new one by default."""
        return replace(self, session_id=_session_id(session_id))


def parse_endpoint(
    url: str | None,
    *,
    token: AsyncToken | None = None,
    headers: Mapping[str, str] | None = None,
    allow_plaintext_token: bool = False,
    environ: Mapping[str, str] | None = None,
) -> Endpoint:
    """Parse a URL, or ``SPARK_REMOTE`` when there is none, and refuse what would send a token readable by others.

    ``token``, which may be a function, and ``headers`` win over those of the URL.
    """
    environ = os.environ if environ is None else environ
    url = url or environ.get(URL_VARIABLE)
    if not url:
        raise ConfigError(
            f"there is no server to connect to: no URL was given and {URL_VARIABLE} is not set.",
            option="url",
            remedy=f'Write connect("sc://host:{DEFAULT_PORT}"), set {URL_VARIABLE}, or start a server with local().',
        )
    if not isinstance(url, str):
        raise ConfigError(f"the URL of a server is text, not {url!r}.", option="url", value=url)
    parts = parse_url(url)
    if parts.scheme != "sc" or not parts.host or parts.path not in ("", "/"):
        raise ConfigError(
            f"{parts} is not the URL of a Spark Connect server.",
            option="url",
            value=str(parts),
            remedy=f"Write it as sc://host:{DEFAULT_PORT}/;key=value;key=value.",
        )
    in_url = {name.lower(): value for name, value in parts.params.items() if name.lower().startswith(_HEADER_PREFIX)}
    given = {name: value for name, value in parts.params.items() if name.lower() not in in_url}
    options = OPTIONS.parse(given, environ)
    all_headers = in_url | {name.lower(): value for name, value in (headers or {}).items()}
    for name, value in all_headers.items():
        _check_header(name, value)
    token = options["token"] if token is None else token
    if isinstance(token, str):
        check_token(token)
    use_tls = options["use_ssl"]
    if token is not None and not use_tls and not _is_local(parts.host):
        # A token turns TLS on, as the protocol documents it; only a plain "use_ssl=false" asks for plaintext.
        use_tls = not options.given("use_ssl")
        if not use_tls and not allow_plaintext_token:
            raise ConfigError(
                f"the token would travel unencrypted to {parts.host}.",
                option="use_ssl",
                value=False,
                remedy="Leave use_ssl=false out of the URL, or pass allow_plaintext_token=True.",
            )
    return Endpoint(
        host=parts.host,
        port=parts.port or DEFAULT_PORT,
        use_tls=use_tls,
        user_id=options["user_id"] or _current_user(),
        session_id=_session_id(options["session_id"]),
        user_agent=_user_agent(options["user_agent"]),
        max_message_bytes=options["grpc_max_message_size"],
        keepalive=_keepalive(options),
        token=token,
        headers=tuple(all_headers.items()),
    )


def check_token(token: object) -> str:
    """The token, or an error that does not show it."""
    if not isinstance(token, str):
        raise ConfigError(
            f"connect: option 'token' gave a {type(token).__name__}.",
            option="token",
            remedy="Give a str, or a function that returns one.",
        )
    _check_header("token", token)
    return token


def _keepalive(options: OptionValues) -> Keepalive | None:
    if not options["grpc_keepalive_enabled"]:
        return None
    return Keepalive(
        time_ms=options["grpc_keepalive_time_ms"],
        timeout_ms=options["grpc_keepalive_timeout_ms"],
        without_calls=options["grpc_keepalive_without_calls"],
    )


def _check_header(name: str, value: str) -> None:
    """Refuse what cannot be a header; the value is not shown, it may be a secret."""
    if not _HEADER_NAME.fullmatch(name):
        problem, remedy = "has a name that no header can have", "Use ASCII letters, digits, and the characters - _ ."
    elif not _HEADER_VALUE.fullmatch(value):
        problem, remedy = "has a line break or a character that is not ASCII in its value", "Check how it was copied."
    else:
        return
    raise ConfigError(f"connect: option {name!r} {problem}.", option=name, remedy=remedy)


def _current_user() -> str:
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # in a container, a uid that has no entry in passwd
        return str(os.getuid())


def _is_local(host: str) -> bool:
    if host.lower() == "localhost" or _LOOPBACK.fullmatch(host):
        return True
    if ":" not in host:
        return False
    import ipaddress  # here, because most hosts do without

    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _session_id(given: str | None) -> str:
    if given is None:
        return new_id()
    import uuid  # here, because sessions are rarely joined

    try:
        return str(uuid.UUID(given))
    except ValueError:
        raise ConfigError(
            f"connect: option 'session_id' is {given!r}.",
            option="session_id",
            value=given,
            remedy="It must be a UUID; leave it out for a new session.",
        ) from None


def _user_agent(given: str | None) -> str:
    python = ".".join(map(str, sys.version_info[:3]))
    agent = f"{given or 'solstice'} os/{os.uname().sysname.lower()} python/{python}"
    if len(agent) > _MAX_USER_AGENT_CHARS:
        raise ConfigError(
            f"connect: option 'user_agent' has {len(agent)} characters.",
            option="user_agent",
            value=agent,
            remedy=f"It must have at most {_MAX_USER_AGENT_CHARS}.",
        )
    return agent
