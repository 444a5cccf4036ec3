"""Sessions: the way in. ``connect()`` to a server that runs somewhere, or ``local()`` to start one here."""

import inspect
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from solstice.connect import _plan as plan
from solstice.connect import types
from solstice.connect._actions import Blocking, run
from solstice.connect._bounds import Limits
from solstice.connect._builder import BuilderProperty, get_active_session
from solstice.connect._camel import camel_cased
from solstice.connect._dataframe import DataFrame
from solstice.connect._local import start_server
from solstice.connect._protocol import Protocol
from solstice.connect._session_methods import SessionMethods, check_timeout, sql_relation
from solstice.connect._sql import is_query
from solstice.connect._url import Endpoint, Token, parse_endpoint
from solstice.errors import ConfigError, SessionClosedError

if TYPE_CHECKING:
    from solstice.connect._conf import RuntimeConfig
    from solstice.connect._transport import Transport


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
    return run(Session._open(endpoint, limits=Limits(max_rows, max_bytes), timeout_s=check_timeout(timeout_s)))


def local(config: Mapping[str, str] | None = None) -> "Session":
    """Start a Spark Connect server from the installed pyspark and connect to it.

    It listens on loopback only and wants a token that only this session knows. It ends with ``stop()`` and with this
    process, even a killed one. ``config`` is Spark's own, for example ``{"spark.driver.memory": "4g"}``.
    """
    server = start_server(config)
    try:
        session = run(Session._open(parse_endpoint(server.url), server_end=server.end))
    except BaseException:
        server.stop()
        raise
    # Also runs when the process ends, and when the session is dropped without stop().
    session._on_stop = weakref.finalize(session, server.stop)
    return session


@camel_cased(create_dataframe="createDataFrame", empty_dataframe="emptyDataFrame")
class Session(SessionMethods[DataFrame], Blocking):
    """A session on a server. A context manager: leaving it stops the session."""

    builder: ClassVar[BuilderProperty] = BuilderProperty()

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    @staticmethod
    def get_active_session() -> "Session | None":
        """The session that ``builder`` made last, unless it is stopped."""
        return get_active_session()

    @staticmethod
    def active() -> "Session":
        """The session that ``builder`` made last."""
        session = get_active_session()
        if session is None:
            raise SessionClosedError(
                "there is no active session.", remedy="Make one: SparkSession.builder.getOrCreate()."
            )
        return session

    def sql(self, sql_query: str, args: Mapping[str, Any] | Sequence[Any] | None = None, **kwargs: Any) -> DataFrame:
        """A query becomes a lazy DataFrame; any other statement runs now, once, and the DataFrame has its result.

        ``args`` are values for ``:name`` or ``?`` in the text, which need no quoting. ``kwargs`` are put in for
        ``{name}``: a DataFrame, a Column, text as a literal.
        """
        relation = sql_relation(sql_query, args, kwargs)
        if is_query(sql_query):
            self._link.driver.check_open()
            return self._frame(relation)
        return run(self._statement(relation))

    @property
    def conf(self) -> "RuntimeConfig":
        """The settings of the session."""
        from solstice.connect._conf import RuntimeConfig

        return RuntimeConfig(self._link)

    @staticmethod
    def _transport(protocol: Protocol, endpoint: Endpoint) -> "Transport":
        from solstice.connect._transport import BlockingTransport

        return BlockingTransport(protocol, endpoint)

    def _frame(self, relation: plan.Relation) -> DataFrame:
        return DataFrame(self, relation)

    def _type_now(self, text: str) -> types.DataType:
        return run(self._link.parse_type(text))
