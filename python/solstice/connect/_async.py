"""Sessions and DataFrames to await: ``async with await sc.connect_async(url) as spark: ...``.

What makes a DataFrame of another is the same code and is not awaited; what asks the server is. Properties that ask the
server (``schema columns dtypes storage_level is_cached is_streaming``, ``conf.get_all``) are methods here.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from solstice.connect import _plan as plan
from solstice.connect import types
from solstice.connect._actions import Asynchronous, run
from solstice.connect._bounds import Limits
from solstice.connect._camel import camel_cased
from solstice.connect._link import is_json
from solstice.connect._opening import check_timeout
from solstice.connect._protocol import Protocol
from solstice.connect._results import Results
from solstice.connect._row import Row
from solstice.connect._session_methods import SessionMethods, sql_relation
from solstice.connect._sql import is_query
from solstice.connect._statistics import StatFunctions
from solstice.connect._url import AsyncToken, Endpoint, parse_endpoint
from solstice.errors import InvalidPlanError

if TYPE_CHECKING:
    from solstice.connect._conf import AsyncRuntimeConfig
    from solstice.connect._transport import Transport


async def connect_async(
    url: str | None = None,
    *,
    token: AsyncToken | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
    max_rows: int | None = None,
    max_bytes: int | None = None,
    allow_plaintext_token: bool = False,
) -> "AsyncSession":
    """``connect`` in an event loop, to which the session then belongs. A ``token`` function may be a coroutine too."""
    endpoint = parse_endpoint(url, token=token, headers=headers, allow_plaintext_token=allow_plaintext_token)
    return await AsyncSession._open(endpoint, limits=Limits(max_rows, max_bytes), timeout_s=check_timeout(timeout_s))


@camel_cased(to_df="toDF", to_json="toJSON", join_as_of="_joinAsOf")
class AsyncDataFrame(Results, Asynchronous):
    """A lazy table on the server, as ``DataFrame``; what asks the server is awaited.

    Positions (``df[0]``, ``group_by(1)``) and ``group_by(...).sum()`` without columns need the schema, and there is
    nothing to await: ask for it before, ``await df.schema()``, and they work.
    """

    __slots__ = ()

    _session: "AsyncSession"

    def __repr__(self) -> str:
        """The columns and their types, if they were asked for already."""
        if self._schema is None:
            return "AsyncDataFrame[await schema() for the columns]"
        return (
            f"AsyncDataFrame[{', '.join(f'{field.name}: {field.data_type.simple_string()}' for field in self._schema)}]"
        )

    @property
    def spark_session(self) -> "AsyncSession":
        """The session."""
        return self._session

    @property
    def stat(self) -> "AsyncStatFunctions":
        """Statistics, as PySpark groups these methods."""
        return AsyncStatFunctions(self)

    @overload
    async def head(self, n: None = None) -> Row | None: ...

    @overload
    async def head(self, n: int) -> list[Row]: ...

    async def head(self, n: int | None = None) -> Row | list[Row] | None:
        """The first row, or None if there is none; with a number, at most so many rows as a list."""
        return await self.first() if n is None else await self.take(n)

    def _schema_now(self) -> types.StructType:
        if self._schema is None:
            raise InvalidPlanError(
                "the columns of this DataFrame are not known yet.",
                remedy="Use names instead of positions, or write `await df.schema()` before.",
            )
        return self._schema


@camel_cased()
class AsyncStatFunctions(StatFunctions[AsyncDataFrame], Asynchronous):
    """``AsyncDataFrame.stat``."""

    __slots__ = ()


@camel_cased(create_dataframe="createDataFrame", empty_dataframe="emptyDataFrame")
class AsyncSession(SessionMethods[AsyncDataFrame], Asynchronous):
    """A session on a server, in an event loop. An asynchronous context manager: leaving it stops the session."""

    async def __aenter__(self) -> "AsyncSession":
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.stop()

    def sql(
        self, sql_query: str, args: Mapping[str, Any] | Sequence[Any] | None = None, **kwargs: Any
    ) -> AsyncDataFrame:
        """A query as a lazy DataFrame. A statement that has to run at once is refused: ``await execute(...)`` it.

        ``args`` are values for ``:name`` or ``?`` in the text, which need no quoting. ``kwargs`` are put in for
        ``{name}``: a DataFrame, a Column, text as a literal.
        """
        if not is_query(sql_query):
            raise InvalidPlanError(
                "sql() of an asynchronous session takes SELECT, VALUES and TABLE; another statement runs at once.",
                remedy="Write `await spark.execute(...)`.",
            )
        self._link.driver.check_open()
        return self._frame(sql_relation(sql_query, args, kwargs))

    async def execute(
        self, sql_query: str, args: Mapping[str, Any] | Sequence[Any] | None = None, **kwargs: Any
    ) -> AsyncDataFrame:
        """Run a statement now, once; the DataFrame has its result. The arguments are those of ``sql``."""
        return await self._statement(sql_relation(sql_query, args, kwargs))

    @property
    def conf(self) -> "AsyncRuntimeConfig":
        """The settings of the session."""
        from solstice.connect._conf import AsyncRuntimeConfig

        return AsyncRuntimeConfig(self._link)

    @staticmethod
    def _transport(protocol: Protocol, endpoint: Endpoint) -> "Transport":
        from solstice.connect._aio import AsyncTransport

        return AsyncTransport(protocol, endpoint)

    def _frame(self, relation: plan.Relation) -> AsyncDataFrame:
        return AsyncDataFrame(self, relation)

    def _type_now(self, text: str) -> types.DataType:
        if not is_json(text):
            raise InvalidPlanError(
                f"the schema {text!r} has to be read by the server, and there is nothing to await here.",
                remedy="Pass a StructType.",
            )
        return run(self._link.parse_type(text))
