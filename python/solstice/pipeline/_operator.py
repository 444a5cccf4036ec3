"""What a stage does to a split."""

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from solstice.errors import OperatorError
from solstice.pipeline._split import Split, SplitPayload


@dataclass
class OperatorConfig:
    """The base of the configurations of class operators and sources: plain data that can be pickled."""


class Operator(ABC):
    """The work of a stage. It is pickled to the workers, so what cannot be pickled is made on first use."""

    @abstractmethod
    def process_split(self, split: Split, payload: SplitPayload) -> SplitPayload | None:
        """Turn a split's rows into others; None, or no rows, ends the split here.

        It may run more than once for a split (a retry, a worker that died), but only one result is ever used.
        """


class MapOperator(Operator):
    """A function from table to table: pyarrow, or Polars if its first parameter is annotated so."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function
        self._polars = _takes_polars(function)

    def process_split(self, split: Split, payload: SplitPayload) -> SplitPayload | None:
        """Call the function and check what it returns."""
        table: Any = payload.to_arrow()
        if self._polars:
            import polars

            table = polars.from_arrow(table)
        return self._to_payload(self._function(table), split)

    def _to_payload(self, result: Any, split: Split) -> SplitPayload | None:
        import pyarrow as pa

        if result is None:
            return None
        if type(result).__module__.startswith("polars."):
            result = result.collect() if hasattr(result, "collect") else result
            result = result.to_arrow()
        elif isinstance(result, pa.RecordBatch):
            result = pa.Table.from_batches([result])
        if not isinstance(result, pa.Table):
            raise OperatorError(
                f"{_name(self._function)} returned a {type(result).__name__} for split {split.split_id!r}.",
                remedy="Return a pyarrow.Table, a Polars DataFrame, or None to drop the split.",
            )
        return SplitPayload.from_arrow(result, split.split_id)


def check_result(operator: Operator, result: Any, split: Split) -> SplitPayload | None:
    """What ``process_split`` returned, if it is what it has to be."""
    import pyarrow as pa

    if result is None or (isinstance(result, SplitPayload) and isinstance(result.to_arrow(), pa.Table)):
        return result
    held = result.to_arrow() if isinstance(result, SplitPayload) else result
    raise OperatorError(
        f"{type(operator).__name__}.process_split returned a {type(held).__name__} for split {split.split_id!r}.",
        remedy="Return SplitPayload.from_arrow(table, split.split_id), or None to drop the split.",
    )


def _takes_polars(function: Callable[[Any], Any]) -> bool:
    """Read the annotation without resolving it: a name such as "pl.DataFrame" need not be importable here."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # some built-in callables have no signature
        return False
    annotation: Any = parameters[0].annotation if parameters else None
    if isinstance(annotation, str):
        return annotation in ("pl.DataFrame", "polars.DataFrame")
    return getattr(annotation, "__module__", "").startswith("polars.") and annotation.__name__ == "DataFrame"


def _name(function: Callable[[Any], Any]) -> str:
    inner = function.func if isinstance(function, functools.partial) else function
    return getattr(inner, "__qualname__", repr(inner))
