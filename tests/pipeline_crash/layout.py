"""How many rows there are, how they are cut, and which splits no stage can digest."""

from collections.abc import Iterator
from dataclasses import dataclass

ROWS_PER_SPLIT = 2_000
ROWS_PER_PARTITION = 10_000
_BYTES_PER_ROW = 8
_PARQUET_BYTES_PER_ROW = 16  # what Spark's own writer is thought to need

# How Spark writes: the second source as its tasks end, or all at once; and the first one, which is always so.
WAYS = ("task", "job", "parquet", "V1")


@dataclass(frozen=True)
class Layout:
    """Rows have the ids from 0 on; every partition and every split of Spark has the same number of them."""

    rows: int

    def __post_init__(self) -> None:
        if self.rows % ROWS_PER_PARTITION:
            raise ValueError(f"{self.rows} rows are not cut evenly: use a multiple of {ROWS_PER_PARTITION}")

    @property
    def partitions(self) -> int:
        """How many tasks Spark has."""
        return self.rows // ROWS_PER_PARTITION

    def split_bytes(self, way: str) -> int:
        """The size that makes Spark's splits what they are."""
        return ROWS_PER_SPLIT * (_PARQUET_BYTES_PER_ROW if way == "parquet" else _BYTES_PER_ROW)

    def poisoned(self) -> Iterator[tuple[str, str, range]]:
        """Each dead letter that there has to be: its stage, its split, its ids."""
        for start in range(0, self.rows, ROWS_PER_SPLIT):
            partition, rest = divmod(start, ROWS_PER_PARTITION)
            name = f"source-b0-p{partition}-s{rest // ROWS_PER_SPLIT}"
            ids = range(start, start + ROWS_PER_SPLIT)
            if is_poisoned("score", start):
                yield "score", name, ids
            elif is_poisoned("cut", start):
                yield "cut", f"{name}.score-0", ids


def is_poisoned(stage: str, first_id: int) -> bool:
    """Whether a stage fails on the split that starts with this id, whoever tries it and however often."""
    every, which = {"score": (23, 7), "cut": (29, 11)}[stage]
    return first_id // ROWS_PER_SPLIT % every == which
