"""Sessions that block."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from solstice.connect import _plan as plan
from solstice.connect import types
from solstice.connect._actions import Blocking, run
from solstice.connect._builder import BuilderProperty, get_active_session
from solstice.connect._camel import camel_cased
from solstice.connect._dataframe import DataFrame
from solstice.connect._opening import blocking_transport
from solstice.connect._session_methods import SessionMethods, sql_relation
from solstice.connect._sql import is_query
from solstice.errors import SessionClosedError

if TYPE_CHECKING:
    from solstice.connect._conf import RuntimeConfig


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

    _transport = staticmethod(blocking_transport)

    def _frame(self, relation: plan.Relation) -> DataFrame:
        return DataFrame(self, relation)

    def _type_now(self, text: str) -> types.DataType:
        return run(self._link.parse_type(text))

    def _ddl_now(self, schema: types.StructType) -> str:
        answer = run(self._link.analyze("json_to_ddl", lambda asked: None, json_string=schema.json()))
        ddl: str = answer.ddl_string
        return ddl


SparkSession = Session  # PySpark's name
