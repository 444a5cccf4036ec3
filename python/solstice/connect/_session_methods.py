"""What a session can do, for sessions that block and for those that are awaited."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from solstice.connect import _plan as plan
from solstice.connect import types
from solstice.connect._actions import action, fluent
from solstice.connect._bounds import Limits
from solstice.connect._execution import SHORT_TIMEOUT_S
from solstice.connect._frame import Frame
from solstice.connect._link import ONE_TRY, Link
from solstice.connect._opening import check_timeout, open_driver
from solstice.connect._protocol import Protocol
from solstice.connect._tags import check_tag, set_tags, tags_of
from solstice.errors import ArgumentTypeError, ConnectError

if TYPE_CHECKING:
    from solstice.connect._driver import Driver
    from solstice.connect._progress import ProgressHandler
    from solstice.connect._reader import DataFrameReader
    from solstice.connect._results import Results
    from solstice.connect._table_functions import TableValuedFunction
    from solstice.connect._transport import Transport
    from solstice.connect._url import Endpoint

_log = logging.getLogger("solstice.connect")

# Modules that no plain query needs are imported where they are used: that is a tenth of a program's start.

FrameT = TypeVar("FrameT", bound="Results")


class SessionMethods(Generic[FrameT]):
    """A session on a server: its DataFrames, settings, tags and operations."""

    def __init__(self, driver: "Driver", version: str, limits: Limits | None = None) -> None:
        self._link = Link(driver, limits or Limits())
        self._version = version
        self._on_stop: Callable[[], Any] | None = None
        self._stopped = False
        self._made_by: Any = None  # the session that this one was made from: dropped, it would end a local server

    @classmethod
    async def _open(
        cls,
        endpoint: "Endpoint",
        *,
        limits: Limits | None = None,
        timeout_s: float | None = None,
        server_end: Callable[[], str | None] = lambda: None,
    ) -> Self:
        driver, version = await open_driver(endpoint, cls._transport, timeout_s=timeout_s, server_end=server_end)
        return cls(driver, version, limits)

    @staticmethod
    def _transport(protocol: Protocol, endpoint: "Endpoint") -> "Transport":
        raise NotImplementedError

    def __repr__(self) -> str:
        state = "stopped" if self._stopped else f"Spark {self._version}"
        return f"{type(self).__name__}({self._endpoint.address}, {state}, session_id={self.session_id!r})"

    @property
    def version(self) -> str:
        """The server's Spark version."""
        return self._version

    @property
    def session_id(self) -> str:
        """The session's id, a UUID."""
        return self._endpoint.session_id

    @property
    def is_stopped(self) -> bool:
        """Whether the session was stopped here."""
        return self._stopped

    @property
    def timeout_s(self) -> float | None:
        """How long an operation may take, from its start to its last row; None for as long as it likes."""
        return self._link.driver.timeout_s

    @timeout_s.setter
    def timeout_s(self, timeout_s: float | None) -> None:
        self._link.driver.timeout_s = check_timeout(timeout_s)

    # DataFrames.

    def table(self, table_name: str) -> FrameT:
        """A table or view."""
        return self.read.table(table_name)

    def range(self, start: int, end: int | None = None, step: int = 1, num_partitions: int | None = None) -> FrameT:
        """Numbers from 0 to ``start``, or from ``start`` to ``end``, the end excluded, as the column ``id``."""
        first, last = (0, start) if end is None else (start, end)
        partitions = None if num_partitions is None else int(num_partitions)
        return self._frame(plan.Range(int(first), int(last), int(step), partitions))

    @property
    def read(self) -> "DataFrameReader[FrameT]":
        """Reads files, tables and other sources."""
        from solstice.connect._reader import DataFrameReader

        return DataFrameReader(self)

    @property
    def tvf(self) -> "TableValuedFunction[FrameT]":
        """Functions that make rows."""
        from solstice.connect._table_functions import TableValuedFunction

        return TableValuedFunction(self)

    @action
    async def create_dataframe(
        self,
        data: Any,
        schema: types.DataType | str | Sequence[str] | None = None,
        sampling_ratio: float | None = None,
        verify_schema: bool | None = None,
    ) -> FrameT:
        """Rows of this process on the server: a Polars or pandas DataFrame, Arrow data, a numpy array, or an iterable.

        An iterable has rows, tuples, dicts or single values. ``schema`` is a type, text like ``a INT, b STRING``, or
        the columns' names. What is large is uploaded in chunks, each once. The last two parameters do nothing; PySpark
        has them.
        """
        return await self._created(data, schema)

    @action
    async def empty_dataframe(self, schema: types.StructType | str) -> FrameT:
        """No rows, of a schema."""
        return await self._created([], schema)

    # Operations.

    def add_tag(self, tag: str) -> None:
        """Start the operations of this thread or task under a tag, from now on."""
        set_tags(self.session_id, tags_of(self.session_id) | {check_tag(tag)})

    def remove_tag(self, tag: str) -> None:
        """Start no more operations of this thread or task under a tag."""
        set_tags(self.session_id, tags_of(self.session_id) - {check_tag(tag)})

    def get_tags(self) -> set[str]:
        """The tags that operations of this thread or task start under."""
        return set(tags_of(self.session_id))

    def clear_tags(self) -> None:
        """Start no more operations of this thread or task under any tag."""
        set_tags(self.session_id, frozenset())

    @action
    async def interrupt_all(self) -> list[str]:
        """End all operations of the session, also those of other clients; their ids."""
        return await self._interrupt("ALL")

    @action
    async def interrupt_tag(self, tag: str) -> list[str]:
        """End the operations that were started under a tag; their ids."""
        return await self._interrupt("TAG", operation_tag=check_tag(tag))

    @action
    async def interrupt_operation(self, op_id: str) -> list[str]:
        """End one operation; its id, if it was running."""
        return await self._interrupt("OPERATION_ID", operation_id=op_id)

    def register_progress_handler(self, handler: "ProgressHandler") -> None:
        """Call ``handler(stages, inflight_tasks, operation_id, done)`` while operations of this session run."""
        if handler not in self._link.progress_handlers:
            self._link.progress_handlers.append(handler)

    def remove_progress_handler(self, handler: "ProgressHandler") -> None:
        """Call the handler no more."""
        self._link.progress_handlers.remove(handler)

    def clear_progress_handlers(self) -> None:
        """Call no handler any more."""
        self._link.progress_handlers.clear()

    # The session itself.

    @fluent
    async def clone_session(self, new_session_id: str | None = None) -> Self:
        """Another session on the same server, with this one's settings, temporary views and functions."""
        endpoint = self._endpoint.with_session(new_session_id)
        driver = self._link.driver
        await driver.unary("CloneSession", driver.requests.clone(endpoint.session_id))
        return await self._sibling(endpoint)

    @fluent
    async def new_session(self) -> Self:
        """Another session on the same server, with nothing of this one's but how to connect.

        After a SessionLostError this is the way to go on; what lived in the lost session has to be made again.
        """
        return await self._sibling(self._endpoint.with_session(None))

    @action
    async def stop(self) -> None:
        """End the session on the server and close the connection; a server that ``local()`` started ends too."""
        if self._stopped:
            return
        self._stopped = True
        driver = self._link.driver
        try:
            request = driver.requests.release_session()
            await driver.unary("ReleaseSession", request, policy=ONE_TRY, timeout_s=SHORT_TIMEOUT_S)
        except ConnectError as error:
            _log.debug("the session was not released on the server, which drops it when it has been idle: %s", error)
        finally:
            await driver.close()
            if self._on_stop is not None:
                self._on_stop()

    # What the methods are made of.

    @property
    def _endpoint(self) -> "Endpoint":
        return self._link.driver.endpoint

    def _frame(self, relation: plan.Relation) -> FrameT:
        raise NotImplementedError

    def _type_now(self, text: str) -> types.DataType:
        """The type that text stands for, for a method that is not awaited."""
        raise NotImplementedError

    async def _statement(self, relation: plan.Relation) -> FrameT:
        """Run a statement, once; a DataFrame of its result."""
        answer = (await self._link.command(plan.SqlCommand(relation))).get("sql_command_result")
        if answer is not None:
            relation = plan.ServerRelation(answer.relation.SerializeToString())
        return self._frame(relation)

    async def _created(self, data: Any, schema: types.DataType | str | Sequence[str] | None) -> FrameT:
        from solstice.connect._create import create_relation

        if isinstance(data, Frame):
            raise ArgumentTypeError("create_dataframe() got a DataFrame, which is on a server already")
        if isinstance(schema, str):
            schema = await self._link.parse_type(schema)
        return self._frame(await create_relation(self._link, data, schema))

    async def _interrupt(self, kind: str, **which: str) -> list[str]:
        driver = self._link.driver
        return list((await driver.unary("Interrupt", driver.requests.interrupt(kind, **which))).interrupted_ids)

    async def _sibling(self, endpoint: "Endpoint") -> Self:
        driver = self._link.driver
        sibling = await self._open(
            endpoint, limits=self._link.limits, timeout_s=driver.timeout_s, server_end=driver.server_end
        )
        sibling._made_by = self
        return sibling


def sql_relation(
    sql_query: str, args: Mapping[str, Any] | Sequence[Any] | None, kwargs: Mapping[str, Any]
) -> plan.Relation:
    """The relation of a query and its arguments."""
    if args is None and not kwargs:
        return plan.Sql(sql_query)
    from solstice.connect import _sql_arguments

    return _sql_arguments.sql_relation(sql_query, args, kwargs)
