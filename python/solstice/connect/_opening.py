"""The ways in: ``connect()`` to a server that runs somewhere, or ``local()`` to start one here.

The first call to the server goes out as soon as gRPC can make it. What sessions and DataFrames are made of is imported
while the server answers: that is a tenth of a program's start.
"""

import importlib
import inspect
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from solstice._core.extras import require
from solstice._core.retry import RetryPolicy
from solstice.connect._actions import run
from solstice.connect._bounds import Limits
from solstice.connect._collector import collector_paused
from solstice.connect._protocol import Protocol, load_protocol
from solstice.connect._url import Endpoint, Token, parse_endpoint
from solstice.errors import ConfigError

if TYPE_CHECKING:
    from solstice.connect._driver import Driver
    from solstice.connect._session import Session
    from solstice.connect._transport import Transport

# A server that does not answer the first call is reported soon; one that is lost later is waited for.
_FIRST_CONTACT = RetryPolicy(initial_s=0.1, max_s=1.0, multiplier=2.0, jitter=0.3, max_attempts=4)
_FIRST_CONTACT_TIMEOUT_S = 10.0


def connect(
    url: str | None = None,
    *,
    token: Token | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
    max_rows: int | None = None,
    max_bytes: int | None = None,
    allow_plaintext_token: bool = False,
) -> "Session":
    """Connect to a Spark Connect server: ``sc://host:port/;key=value;...``, or ``SPARK_REMOTE`` when no URL is given.

    The server is asked for its version, so that a wrong address or token shows here. A token for a host that is not
    local turns TLS on; with ``use_ssl=false`` it is refused unless ``allow_plaintext_token`` is set. ``token`` may be a
    function: it is asked before every call, and once more when the server refuses what it gave. An operation that takes
    longer than ``timeout_s`` is ended. ``max_rows`` and ``max_bytes`` bound every result that is fetched as a whole.
    """
    if inspect.iscoroutinefunction(token):
        raise ConfigError(
            "connect: option 'token' is a coroutine function.", option="token", remedy="Use connect_async() with it."
        )
    endpoint = parse_endpoint(url, token=token, headers=headers, allow_plaintext_token=allow_plaintext_token)
    return _session(endpoint, limits=Limits(max_rows, max_bytes), timeout_s=check_timeout(timeout_s))


def local(config: Mapping[str, str] | None = None) -> "Session":
    """Start a Spark Connect server from the installed pyspark and connect to it.

    It listens on loopback only and wants a token that only this session knows. It ends with ``stop()`` and with this
    process, even a killed one. ``config`` is Spark's own, for example ``{"spark.driver.memory": "4g"}``.
    """
    from solstice.connect._local import start_server

    server = start_server(config)
    try:
        session = _session(parse_endpoint(server.url), server_end=server.end)
    except BaseException:
        server.stop()
        raise
    # Also runs when the process ends, and when the session is dropped without stop().
    session._on_stop = weakref.finalize(session, server.stop)
    return session


def _session(
    endpoint: Endpoint,
    *,
    limits: Limits | None = None,
    timeout_s: float | None = None,
    server_end: Callable[[], str | None] = lambda: None,
) -> "Session":
    opening = open_driver(
        endpoint, blocking_transport, timeout_s=timeout_s, server_end=server_end, meanwhile=_import_session
    )
    driver, version = run(opening)
    from solstice.connect._session import Session

    return Session(driver, version, limits)


def _import_session() -> None:
    with collector_paused():
        importlib.import_module("solstice.connect._session")


async def open_driver(
    endpoint: Endpoint,
    transport: "Callable[[Protocol, Endpoint], Transport]",
    *,
    timeout_s: float | None = None,
    server_end: Callable[[], str | None] = lambda: None,
    meanwhile: Callable[[], None] = lambda: None,
) -> "tuple[Driver, str]":
    """A driver whose server has answered, and the server's version. ``meanwhile`` is called while it does."""
    with collector_paused():  # a tenth of the time that the imports take
        require("grpc", "connect")
        from solstice.connect._driver import Driver

        protocol = load_protocol()
        made = transport(protocol, endpoint)
    driver = Driver(protocol, endpoint, made, timeout_s=timeout_s, server_end=server_end)
    try:
        answer = await driver.unary(
            "AnalyzePlan",
            driver.requests.analyze(spark_version={}),
            policy=_FIRST_CONTACT,
            timeout_s=_FIRST_CONTACT_TIMEOUT_S,
            meanwhile=meanwhile,
        )
    except BaseException:
        await driver.close()
        raise
    return driver, answer.spark_version.version


def blocking_transport(protocol: Protocol, endpoint: Endpoint) -> "Transport":
    """Calls that block."""
    from solstice.connect._transport import BlockingTransport

    return BlockingTransport(protocol, endpoint)


def check_timeout(timeout_s: float | None) -> float | None:
    """Refuse what is no time."""
    if timeout_s is not None and not timeout_s > 0:
        raise ConfigError(
            f"timeout_s={timeout_s!r} is not possible.",
            option="timeout_s",
            value=timeout_s,
            remedy="Pass seconds, more than 0, or None for no limit.",
        )
    return timeout_s
