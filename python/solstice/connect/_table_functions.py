"""Functions that make rows: ``spark.tvf.explode(...)``."""

from typing import Generic

from solstice.connect import _plan as plan
from solstice.connect._camel import camel_cased
from solstice.connect._column import Column, expressions_of
from solstice.connect._session_methods import FrameT, SessionMethods
from solstice.errors import InvalidPlanError


@camel_cased()
class TableValuedFunction(Generic[FrameT]):
    """Functions that make rows, each as a DataFrame; in lateral joins they may refer to outer columns."""

    def __init__(self, session: SessionMethods[FrameT]) -> None:
        self._session = session

    def range(self, start: int, end: int | None = None, step: int = 1, num_partitions: int | None = None) -> FrameT:
        """Numbers, as the column ``id``."""
        return self._session.range(start, end, step, num_partitions)

    def explode(self, collection: Column) -> FrameT:
        """A row for each element of an array or entry of a map."""
        return self._call("explode", collection)

    def explode_outer(self, collection: Column) -> FrameT:
        """Like ``explode``, with a row of NULL for an empty one."""
        return self._call("explode_outer", collection)

    def inline(self, input: Column) -> FrameT:
        """A row for each struct of an array."""
        return self._call("inline", input)

    def inline_outer(self, input: Column) -> FrameT:
        """Like ``inline``, with a row of NULL for an empty array."""
        return self._call("inline_outer", input)

    def json_tuple(self, input: Column, *fields: Column) -> FrameT:
        """Fields of a JSON object as columns."""
        if not fields:
            raise InvalidPlanError("json_tuple() got no field.", remedy="Pass the fields' names as lit(...).")
        return self._call("json_tuple", input, *fields)

    def posexplode(self, collection: Column) -> FrameT:
        """Like ``explode``, with the position as a column."""
        return self._call("posexplode", collection)

    def posexplode_outer(self, collection: Column) -> FrameT:
        """Like ``explode_outer``, with the position as a column."""
        return self._call("posexplode_outer", collection)

    def stack(self, n: Column, *fields: Column) -> FrameT:
        """The columns as so many rows."""
        return self._call("stack", n, *fields)

    def collations(self) -> FrameT:
        """The collations that the server knows."""
        return self._call("collations")

    def sql_keywords(self) -> FrameT:
        """The key words of SQL."""
        return self._call("sql_keywords")

    def variant_explode(self, input: Column) -> FrameT:
        """A row for each element of a variant."""
        return self._call("variant_explode", input)

    def variant_explode_outer(self, input: Column) -> FrameT:
        """Like ``variant_explode``, with a row of NULL for an empty one."""
        return self._call("variant_explode_outer", input)

    def python_worker_logs(self) -> FrameT:
        """What Python functions on the server logged, where that is switched on."""
        return self._call("python_worker_logs")

    def _call(self, name: str, *arguments: Column) -> FrameT:
        relation = plan.TableFunction(name, expressions_of(arguments))
        return self._session._frame(plan.with_references(relation))
