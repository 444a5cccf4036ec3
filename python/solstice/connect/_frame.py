"""What all parts of a DataFrame share: its plan, its session, and how one DataFrame leads to the next."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from solstice.connect import types
from solstice.connect._plan import Relation, with_references
from solstice.errors import ArgumentTypeError, InvalidPlanError

if TYPE_CHECKING:
    from solstice.connect._link import Link
    from solstice.connect._observation import Observation
    from solstice.connect._session_methods import SessionMethods


class Frame:
    """A plan and a session; nothing runs until a result is asked for."""

    __slots__ = ("_observations", "_relation", "_schema", "_session")

    def __init__(
        self,
        session: "SessionMethods[Any]",
        relation: Relation,
        *,
        schema: types.StructType | None = None,
        observations: "Mapping[str, Observation] | None" = None,
    ) -> None:
        self._session = session
        self._relation = relation
        self._schema = schema
        self._observations = observations or {}

    def _derive(self, relation: Relation, *others: "Frame", same_schema: bool = False) -> Self:
        """The DataFrame of a relation that was made of this one's and of others'."""
        observations = dict(self._observations)
        for other in others:
            observations |= other._observations
        schema = self._schema if same_schema else None
        return type(self)(self._session, with_references(relation), schema=schema, observations=observations)

    @property
    def _link(self) -> "Link":
        return self._session._link

    def _schema_now(self) -> types.StructType:
        """The schema, for a method that is not awaited, though it may need it."""
        raise NotImplementedError

    def _check_same_session(self, other: "Frame", method: str) -> None:
        if not isinstance(other, Frame):
            raise ArgumentTypeError(f"{method}() takes a DataFrame, not {other!r}")
        if other._session is not self._session:
            raise InvalidPlanError(
                f"{method}() got a DataFrame of another session.", remedy="Make both with the same session."
            )
