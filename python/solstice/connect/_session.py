"""Sessions: the way in. ``connect()`` to a server that runs somewhere, or ``local()`` to start one here."""

import contextlib
import functools
import json
import logging
import weakref
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from solstice._core.extras import require
from solstice._core.retry import RetryPolicy
from solstice.connect import _plan as plan
from solstice.connect import types
from solstice.connect._builder import BuilderProperty, get_active_session
from solstice.connect._camel import camel_cased
from solstice.connect._dataframe import DataFrame
from solstice.connect._encode import encode_command, encode_query
from solstice.connect._execution import RETRY_POLICY, CommandResult, Item, Metrics
from solstice.connect._local import start_server
from solstice.connect._protocol import load_protocol
from solstice.connect._sql import is_query
from solstice.connect._types import decode_struct, decode_type
from solstice.connect._url import Endpoint, parse_endpoint
from solstice.errors import ConnectError, SessionClosedError

if TYPE_CHECKING:
    from solstice.connect._driver import Driver
    from solstice.connect._observation import Observation
    from solstice.connect._reader import DataFrameReader
    from solstice.connect._table_functions import TableValuedFunction

_log = logging.getLogger("solstice.connect")

# Modules that no plain query needs are imported where they are used: that is a tenth of a program's start.

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


@camel_cased(create_dataframe="createDataFrame", empty_dataframe="emptyDataFrame")
class Session:
    """A session on a server. A context manager: leaving it stops the session."""

    builder: ClassVar[BuilderProperty] = BuilderProperty()

    def __init__(self, driver: "Driver", endpoint: Endpoint, version: str) -> None:
        self._driver = driver
        self._endpoint = endpoint
        self._version = version
        self._on_stop: Callable[[], Any] | None = None
        self._stopped = False
        self._forgotten: list[str] = []

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

    # DataFrames.

    def sql(self, sql_query: str, args: Mapping[str, Any] | Sequence[Any] | None = None, **kwargs: Any) -> DataFrame:
        """A query becomes a lazy DataFrame; any other statement runs now, once, and the DataFrame has its result.

        ``args`` are values for ``:name`` or ``?`` in the text, which need no quoting. ``kwargs`` are put in for
        ``{name}``: a DataFrame, a Column, text as a literal.
        """
        relation: plan.Relation = plan.Sql(sql_query)
        if args is not None or kwargs:
            from solstice.connect._sql_arguments import sql_relation

            relation = sql_relation(sql_query, args, kwargs)
        if is_query(sql_query):
            self._driver.check_open()
            return DataFrame(self, relation)
        answer = self._command(plan.SqlCommand(relation)).get("sql_command_result")
        if answer is not None:
            relation = plan.ServerRelation(answer.relation.SerializeToString())
        return DataFrame(self, relation)

    def table(self, table_name: str) -> DataFrame:
        """A table or view."""
        return self.read.table(table_name)

    def range(self, start: int, end: int | None = None, step: int = 1, num_partitions: int | None = None) -> DataFrame:
        """Numbers from 0 to ``start``, or from ``start`` to ``end``, the end excluded, as the column ``id``."""
        first, last = (0, start) if end is None else (start, end)
        partitions = None if num_partitions is None else int(num_partitions)
        return DataFrame(self, plan.Range(int(first), int(last), int(step), partitions))

    @property
    def read(self) -> "DataFrameReader":
        """Reads files, tables and other sources."""
        from solstice.connect._reader import DataFrameReader

        return DataFrameReader(self)

    @property
    def tvf(self) -> "TableValuedFunction":
        """Functions that make rows."""
        from solstice.connect._table_functions import TableValuedFunction

        return TableValuedFunction(self)

    def create_dataframe(
        self,
        data: Any,
        schema: types.DataType | str | Sequence[str] | None = None,
        sampling_ratio: float | None = None,
        verify_schema: bool | None = None,
    ) -> DataFrame:
        """Rows of this process on the server: a Polars or pandas DataFrame, Arrow data, a numpy array, or an iterable.

        An iterable has rows, tuples, dicts or single values. ``schema`` is a type, text like ``a INT, b STRING``, or
        the columns' names. What is large is uploaded in chunks, each once. The last two parameters do nothing; PySpark
        has them.
        """
        from solstice.connect._create import create_relation

        if isinstance(data, DataFrame):
            raise TypeError("create_dataframe() got a DataFrame, which is on a server already")
        if isinstance(schema, str):
            schema = self._parse_schema(schema)
        return DataFrame(self, create_relation(self, data, schema))

    def empty_dataframe(self, schema: types.StructType | str) -> DataFrame:
        """No rows, of a schema."""
        return self.create_dataframe([], schema)

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

    # What DataFrames ask of their session.

    def _query(
        self, relation: plan.Relation, observations: "Mapping[str, Observation] | None" = None
    ) -> Generator[Item, None, None]:
        return self._execute(functools.partial(encode_query, relation), observations or {})

    def _command(
        self, command: plan.Command, observations: "Mapping[str, Observation] | None" = None
    ) -> dict[str, Any]:
        """Run a command; its results by the names that the protocol has for them."""
        with contextlib.closing(self._execute(functools.partial(encode_command, command), observations or {})) as items:
            return {item.kind: item.message for item in items if isinstance(item, CommandResult)}

    def _execute(
        self, fill: Callable[[Any], None], observations: "Mapping[str, Observation]"
    ) -> Generator[Item, None, None]:
        with contextlib.closing(self._driver.execute(fill)) as items:
            for item in items:
                if isinstance(item, Metrics) and item.message.name in observations:
                    observations[item.message.name]._finish(item.message)
                yield item

    def _analyze(self, question: str, fill: Callable[[Any], None], **fields: Any) -> Any:
        """Ask about plans, which ``fill`` writes into the question; the answer of the same name."""
        request = self._driver.requests.analyze(**{question: fields})
        asked = getattr(request, question)
        asked.SetInParent()
        fill(asked)
        return getattr(self._driver.unary("AnalyzePlan", request), question)

    def _schema_of(self, relation: plan.Relation, *, one_try: bool = False) -> types.StructType:
        request = self._driver.requests.analyze(schema={})
        encode_query(relation, request.schema.plan)
        policy, timeout_s = (_ONE_TRY, _SHORT_TIMEOUT_S) if one_try else (RETRY_POLICY, None)
        answer = self._driver.unary("AnalyzePlan", request, policy=policy, timeout_s=timeout_s)
        return decode_struct(answer.schema.schema)

    def _parse_schema(self, text: str) -> types.DataType:
        """The type that text or JSON stands for; the server reads text, so that all of SQL's spellings work."""
        if text.lstrip().startswith("{"):
            from solstice.connect._type_json import parse_type

            return parse_type(json.loads(text))
        return decode_type(self._analyze("ddl_parse", lambda asked: None, ddl_string=text).parsed)

    def _config(self, keys: Iterable[str]) -> dict[str, str]:
        """The values of settings; those without a value are left out."""
        request = self._driver.requests.config(get_option={"keys": list(keys)})
        answer = self._driver.unary("Config", request)
        return {pair.key: pair.value for pair in answer.pairs if pair.HasField("value")}

    def _set_config(self, key: str, value: str) -> None:
        self._driver.unary("Config", self._driver.requests.config(set={"pairs": [{"key": key, "value": value}]}))

    def _forget_with(self, relation: plan.CachedRemoteRelation) -> None:
        """Let the server drop a relation that it keeps, once nothing here refers to it.

        That may be found out anywhere, by the garbage collector; the server is told at the next such occasion here.
        """
        while self._forgotten:
            self._command(plan.RemoveCachedRemoteRelation(plan.CachedRemoteRelation(self._forgotten.pop())))
        weakref.finalize(relation, self._forgotten.append, relation.relation_id).atexit = False
