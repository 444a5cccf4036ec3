"""Sessions: the way in. ``connect()`` to a server that runs somewhere, or ``local()`` to start one here."""

import contextlib
import functools
import logging
import weakref
from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING, Any

from solstice._core.extras import require
from solstice._core.retry import RetryPolicy
from solstice.connect import types
from solstice.connect._dataframe import DataFrame
from solstice.connect._encode import encode_command, encode_query
from solstice.connect._execution import RETRY_POLICY, CommandResult, Item
from solstice.connect._local import start_server
from solstice.connect._plan import Relation, ServerRelation, Sql, SqlCommand
from solstice.connect._protocol import load_protocol
from solstice.connect._sql import is_query
from solstice.connect._types import decode_struct
from solstice.connect._url import Endpoint, parse_endpoint
from solstice.errors import ConnectError

if TYPE_CHECKING:
    from solstice.connect._driver import Driver

_log = logging.getLogger("solstice.connect")

# A server that does not answer the first call is reported soon; one that is lost later is waited for.
_FIRST_CONTACT = RetryPolicy(initial_s=0.1, max_s=1.0, multiplier=2.0, jitter=0.3, max_attempts=4)
_FIRST_CONTACT_TIMEOUT_S = 10.0
_ONE_TRY = RetryPolicy(max_attempts=1)
_SHORT_TIMEOUT_S = 5.0


def connect(url: str | None = None, *, allow_plaintext_token: bool = False) -> "Session":
    """Connect to a Spark Connect server: ``sc://host:port/;key=value;...``, or ``SPARK_REMOTE`` when no URL is given.

    The server is asked for its version, so that a wrong address or token shows here. A token for a host that is not
    local turns TLS on; with ``use_ssl=false`` it is refused unless ``allow_plaintext_token`` is set.
    """
    return _open(parse_endpoint(url, allow_plaintext_token=allow_plaintext_token))


def _open(endpoint: Endpoint, **driver_options: Any) -> "Session":
    require("grpc", "connect")
    from solstice.connect._driver import Driver

    driver = Driver(load_protocol(), endpoint, **driver_options)
    try:
        request = driver.requests.analyze(spark_version={})
        answer = driver.unary("AnalyzePlan", request, policy=_FIRST_CONTACT, timeout_s=_FIRST_CONTACT_TIMEOUT_S)
    except BaseException:
        driver.close()
        raise
    return Session(driver, endpoint, answer.spark_version.version)


def local(config: Mapping[str, str] | None = None) -> "Session":
    """Start a Spark Connect server from the installed pyspark and connect to it.

    It listens on loopback only and wants a token that only this session knows. It ends with ``stop()`` and with this
    process, even a killed one. ``config`` is Spark's own, for example ``{"spark.driver.memory": "4g"}``.
    """
    server = start_server(config)
    try:
        session = _open(parse_endpoint(server.url), server_end=server.end)
    except BaseException:
        server.stop()
        raise
    # Also runs when the process ends, and when the session is dropped without stop().
    session._on_stop = weakref.finalize(session, server.stop)
    return session


class Session:
    """A session on a server. A context manager: leaving it stops the session."""

    def __init__(self, driver: "Driver", endpoint: Endpoint, version: str) -> None:
        self._driver = driver
        self._endpoint = endpoint
        self._version = version
        self._on_stop: Callable[[], Any] | None = None
        self._stopped = False

    def __repr__(self) -> str:
        state = "stopped" if self._stopped else f"Spark {self._version}"
        return f"Session({self._endpoint.address}, {state}, session_id={self.session_id!r})"

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    @property
    def version(self) -> str:
        """The server's Spark version."""
        return self._version

    @property
    def session_id(self) -> str:
        """The session's id, a UUID."""
        return self._endpoint.session_id

    def sql(self, text: str) -> DataFrame:
        """A query becomes a lazy DataFrame; any other statement runs now, once, and the DataFrame has its result."""
        if is_query(text):
            self._driver.check_open()
            return DataFrame(self, Sql(text))
        relation: Relation = Sql(text)
        with contextlib.closing(self._driver.execute(functools.partial(encode_command, SqlCommand(text)))) as items:
            for item in items:
                if isinstance(item, CommandResult) and item.kind == "sql_command_result":
                    relation = ServerRelation(item.message.relation.SerializeToString())
        return DataFrame(self, relation)

    def stop(self) -> None:
        """End the session on the server and close the connection; a server that ``local()`` started ends too."""
        if self._stopped:
            return
        self._stopped = True
        try:
            request = self._driver.requests.release_session()
            self._driver.unary("ReleaseSession", request, policy=_ONE_TRY, timeout_s=_SHORT_TIMEOUT_S)
        except ConnectError as error:
            _log.debug("the session was not released on the server, which drops it when it has been idle: %s", error)
        finally:
            self._driver.close()
            if self._on_stop is not None:
                self._on_stop()

    def _query(self, relation: Relation) -> Generator[Item, None, None]:
        return self._driver.execute(functools.partial(encode_query, relation))

    def _schema_of(self, relation: Relation, *, one_try: bool = False) -> types.StructType:
        request = self._driver.requests.analyze(schema={})
        encode_query(relation, request.schema.plan)
        policy, timeout_s = (_ONE_TRY, _SHORT_TIMEOUT_S) if one_try else (RETRY_POLICY, None)
        answer = self._driver.unary("AnalyzePlan", request, policy=policy, timeout_s=timeout_s)
        return decode_struct(answer.schema.schema)
