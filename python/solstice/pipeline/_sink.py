"""Where the rows of a job end up."""

import copy
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Self

from solstice.errors import SolsticeError
from solstice.pipeline._function import FunctionOperator
from solstice.pipeline._queue import Prepared
from solstice.pipeline._split import Split, SplitPayload


def blames_rows(error: BaseException) -> bool:
    """Whether Arrow failed to write because of the rows: a full disk is nobody's fault but the place's."""
    import pyarrow as pa

    return isinstance(error, (pa.ArrowException, TypeError, ValueError)) and not isinstance(
        error, (OSError, SolsticeError)
    )


class Sink(ABC):
    """The end of a branch of a job. It is pickled to every worker before ``setup``.

    ``write`` comes before the commit of the split. A sink that can keep what it wrote out of sight until then returns
    what is to be finished afterwards, and so takes every row once; the others take it at least once.
    """

    def owned_by(self, queue: str, stage: str) -> Self:
        """This sink as a stage of the job that has this queue."""
        return copy.copy(self)

    def setup(self) -> None:  # noqa: B027 - to be overridden where there is something to do
        """Called once in each worker, before its first split."""

    def teardown(self) -> None:  # noqa: B027 - to be overridden where there is something to do
        """Called once in each worker that ends in an orderly way."""

    @abstractmethod
    def write(self, split: Split, payload: SplitPayload) -> Prepared | None:
        """Write the rows of a split out."""

    def finish(self, prepared: Prepared) -> None:  # noqa: B027 - only for those that prepare
        """Make what is committed visible; correct however often and by whomever it is done."""

    def discard(self, prepared: Prepared) -> None:  # noqa: B027 - only for those that prepare
        """Remove what was written and will not be committed."""

    def sweep(self) -> None:  # noqa: B027 - only for those that prepare
        """Remove what crashed workers of this sink left, when none is alive and everything committed is finished."""

    def remove_output(self) -> None:  # noqa: B027 - only for those that can tell
        """Remove what this sink has written, and nothing else, so that the job can start over."""

    def blames_rows(self, error: BaseException) -> bool:
        """Whether a write failed because of the rows, which is the split's failure, or of the place: the job's."""
        return True


class FunctionSink(Sink):
    """Calls a function with the rows of each split, at least once; ``ctx.split_id`` tells a repetition.

    What the function takes is chosen by its annotations, as for ``map``; what it returns is ignored.
    """

    def __init__(self, function: Callable[..., Any], *, concurrency: int = 16) -> None:
        self._operator = FunctionOperator("sink", function, concurrency=concurrency)

    def setup(self) -> None:
        """Prepare the function's event loop, if it is asynchronous."""
        self._operator.setup()

    def teardown(self) -> None:
        """End it."""
        self._operator.teardown()

    def write(self, split: Split, payload: SplitPayload) -> None:
        """Call the function."""
        self._operator.process_split(split, payload)


class PrintSink(Sink):
    """Writes the first ``rows`` rows of each split to standard output, at least once."""

    def __init__(self, rows: int = 10) -> None:
        self._rows = rows

    def write(self, split: Split, payload: SplitPayload) -> None:
        """Print, in one piece: other workers print too."""
        lines = [f"{split.split_id}: {payload.num_records} rows"]
        lines += [f"  {row}" for row in payload.to_arrow().slice(0, self._rows).to_pylist()]
        sys.stdout.write("\n".join(lines) + "\n")
        sys.stdout.flush()
