"""A split (which piece of the data) and its payload (the rows)."""

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

_MAX_PARENT = 100


def source_split_id(stage: str, batch_id: str, partition: int, index: int) -> str:
    """The name of a source's split: the same piece of the same batch has the same name in every attempt."""
    return f"{stage}-b{batch_id}-p{partition}-s{index}"


def derived_split_id(parent: str, stage: str, index: int) -> str:
    """The name of the ``index``-th split that ``stage`` makes of ``parent``: it shows the lineage.

    It becomes a part of file names, so a lineage that is too long for one gives way to its digest; ``Split.parents``
    has it whole, a step at a time.
    """
    if len(parent) > _MAX_PARENT:
        parent = hashlib.sha256(parent.encode()).hexdigest()[:16]
    return f"{parent}.{stage}-{index}"


@dataclass(frozen=True)
class Split:
    """A piece of the data on its way through a stage.

    ``split_id`` is the same in every attempt, which makes it an idempotency key for calls to the outside; ``attempt``
    counts the deliveries, from 1. No order between splits is promised. A function of rows finds the number of its row
    in ``row``. ``parents`` are the ids of the splits that it was made of; a source's split has none.
    """

    split_id: str
    stage: str
    attempt: int = 1
    metadata: dict[str, Any] = field(default_factory=dict)
    row: int | None = None

    @property
    def parents(self) -> tuple[str, ...]:
        """The splits that this one was made of, those of one stage before."""
        return tuple(self.metadata.get("parents", ()))


class SplitPayload:
    """The rows of one split, as an Arrow table."""

    def __init__(self, table: "pa.Table", split_id: str) -> None:
        self._table = table
        self.split_id = split_id

    @classmethod
    def from_arrow(cls, table: "pa.Table", split_id: str) -> "SplitPayload":
        """Wrap a table."""
        return cls(table, split_id)

    def to_arrow(self) -> "pa.Table":
        """The table; it may be mapped from a file, so do not write into its buffers."""
        return self._table

    @property
    def num_records(self) -> int:
        """How many rows there are."""
        return int(self._table.num_rows)

    def __repr__(self) -> str:
        return f"SplitPayload({self.split_id!r}, {self.num_records} records)"
