"""Aggregates that are computed on the way, while a result is."""

from typing import TYPE_CHECKING, Any

from solstice.connect._ids import new_id
from solstice.connect._literals import value_of
from solstice.errors import InvalidPlanError

if TYPE_CHECKING:
    from solstice.connect._session_methods import SessionMethods


class Observation:
    """Names the aggregates of ``DataFrame.observe``; ``get`` has them once a result has been asked for."""

    def __init__(self, name: str | None = None) -> None:
        if name == "":
            raise InvalidPlanError(
                "an Observation has a name that is not empty.", remedy="Leave it out for a random one."
            )
        self._name = name
        self._session: SessionMethods[Any] | None = None
        self._result: dict[str, Any] | None = None

    def __repr__(self) -> str:
        return f"Observation({self._name!r})"

    @property
    def get(self) -> dict[str, Any]:
        """The aggregates by their names; empty until a result of the DataFrame has been asked for."""
        if self._session is None:
            raise InvalidPlanError("the Observation observes nothing.", remedy="Pass it to DataFrame.observe() first.")
        return self._result or {}

    def _start(self, session: "SessionMethods[Any]") -> str:
        """The name to observe under; an Observation is good for one DataFrame."""
        if self._session is not None:
            raise InvalidPlanError("an Observation is used once.", remedy="Make another one.")
        self._session = session
        self._name = self._name or new_id()
        return self._name

    def _finish(self, metrics: Any) -> None:
        """Take the aggregates out of an ObservedMetrics message; those of the first action stay."""
        if self._result is None:
            self._result = dict(zip(metrics.keys, map(value_of, metrics.values), strict=False))
