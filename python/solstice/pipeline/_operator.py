"""What a stage does to a split."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from solstice.errors import OperatorError
from solstice.pipeline._split import Split, SplitPayload

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass
class OperatorConfig:
    """The base of the configurations of class operators and sources: plain data that can be pickled."""


class Operator(ABC):
    """The work of a stage, as a class::

        @dataclass
        class ScoreConfig(OperatorConfig):
            model: str

        class Score(Operator):
            def setup(self):
                self.model = load(self.config.model)
            def process_split(self, split, payload):
                return SplitPayload.from_arrow(self.model(payload.to_arrow()), split.split_id)

        clicks.map(Score(ScoreConfig("model.bin")))

    It is pickled to every worker before ``setup``, so what cannot be pickled is made there.
    """

    def __init__(self, config: OperatorConfig | None = None) -> None:
        self.config = config

    def setup(self) -> None:  # noqa: B027 - to be overridden where there is something to do
        """Called once in each worker, before its first split."""

    def teardown(self) -> None:  # noqa: B027 - to be overridden where there is something to do
        """Called once in each worker that ends in an orderly way; one that is killed does not get to it."""

    @abstractmethod
    def process_split(self, split: Split, payload: SplitPayload) -> SplitPayload | Iterable[SplitPayload] | None:
        """Turn a split's rows into others: one split, several, or none (None, or no rows).

        It may run more than once for a split (a retry, a worker that died), but only one result is ever used.
        """


def result_tables(operator: Operator, split: Split, payload: SplitPayload) -> "list[pa.Table]":
    """Run the operator on a split. Tables without rows are left out; what is no table is an OperatorError."""
    result: Any = operator.process_split(split, payload)
    if result is None:
        return []
    several = isinstance(result, Iterable) and not hasattr(result, "schema")  # a table is iterable too
    payloads = result if several else [result]
    return [table for payload in payloads if (table := _table(operator, payload, split)).num_rows]


def _table(operator: Operator, payload: Any, split: Split) -> "pa.Table":
    import pyarrow as pa

    held = payload.to_arrow() if isinstance(payload, SplitPayload) else payload
    if isinstance(payload, SplitPayload) and isinstance(held, pa.Table):
        return held
    raise OperatorError(
        f"{type(operator).__name__}.process_split returned a {type(held).__name__} for split {split.split_id!r}.",
        remedy="Return SplitPayload.from_arrow(table, split.split_id), an iterable of such, or None.",
    )
