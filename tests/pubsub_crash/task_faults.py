"""What goes wrong inside a task. The functions run in Spark's Python workers, over the rows of the source."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil
import pyarrow as pa

RELEASE_S = 60.0
ROWS_FOR_ALL = 50  # of one task of a shuffle: then no other task is without rows
# The stages of a query. Spark's own number of a stage may be another one when the stage runs again.
READING, SHUFFLED = range(2)

Rows = Iterator[pa.RecordBatch]


@dataclass(frozen=True)
class TaskFault:
    """One fault: in the first task of batch ``batch`` or a later one that gets there; once, or in ``every`` such task,
    at its first attempt.

    What stalls goes on when the file ``released`` is there.
    """

    kind: Literal["raise", "kill", "stall"]
    where: Literal["before", "during", "after"] = "during"
    batch: int = 0
    every: bool = False


def faulty(folder: Path, life: int, fault: TaskFault | None) -> Callable[[Rows], Rows]:
    """A function for ``mapInArrow`` that passes the rows on, notes each attempt, and fails as it was asked to."""

    def rows(batches: Rows) -> Rows:
        first_attempt = _note_attempt(folder, life, READING)

        def here(where: str) -> None:
            if fault is None or fault.where != where or _batch_id() < fault.batch:
                return
            if first_attempt or not fault.every:  # the first attempt may have died of another's fault
                _happen(fault, folder)

        here("before")
        for batch in batches:
            yield batch
            here("during")
        here("after")

    return rows


def without_shuffle_files(folder: Path, life: int, batch_id: int, shuffle_root: str) -> Callable[[Rows], Rows]:
    """A function for the stage after a shuffle that deletes the shuffle's files under the tasks still to come.

    The first task deletes; those beside it wait for that, so that what follows finds no files and Spark has to run the
    stage before again. There have to be more tasks than Spark runs at a time, and rows for all of them: Spark does not
    look for a file that has none for a task.
    """

    def rows(batches: Rows) -> Rows:
        from pyspark import TaskContext

        _note_attempt(folder, life, SHUFFLED)
        fired, decided = folder / "fired", folder / f"decided-{life}-{_batch_id()}"
        if _batch_id() >= batch_id and not fired.exists():
            if TaskContext.get().partitionId() == 0:
                mine = list(batches)
                if sum(len(batch) for batch in mine) >= ROWS_FOR_ALL:
                    for file in Path(shuffle_root).rglob("shuffle_*"):
                        file.unlink(missing_ok=True)
                    fired.touch()
                batches = iter(mine)
                decided.touch()
            _wait_for(decided)
        yield from batches

    return rows


@dataclass(frozen=True)
class Attempt:
    """A note that a task left: who tried what."""

    life: int
    batch: int
    stage: int
    partition: int
    attempt: int
    task: int

    @property
    def work(self) -> tuple[int, int, int, int]:
        """What was tried; the same for every attempt."""
        return (self.life, self.batch, self.stage, self.partition)


def attempts(folder: Path) -> list[Attempt]:
    """Every attempt of every task that ran so far."""
    return [Attempt(*map(int, file.name.split("-")[1:])) for file in folder.glob("attempt-*")]


def _note_attempt(folder: Path, life: int, stage: int) -> bool:
    from pyspark import TaskContext

    task = TaskContext.get()
    note = (life, _batch_id(), stage, task.partitionId(), task.attemptNumber(), task.taskAttemptId())
    (folder / f"attempt-{'-'.join(map(str, note))}").touch()
    return task.attemptNumber() == 0


def _batch_id() -> int:
    from pyspark import TaskContext

    return int(TaskContext.get().getLocalProperty("streaming.sql.batchId"))


def _happen(fault: TaskFault, folder: Path) -> None:
    try:
        (folder / "fired").touch(exist_ok=False)
    except FileExistsError:
        if not fault.every:
            return
    if fault.kind == "raise":
        raise RuntimeError("this attempt was asked to fail")
    if fault.kind == "stall":
        _wait_for(folder / "released")
        return
    # The worker that reads the source is another child of the same daemon.
    parent = psutil.Process(os.getppid())
    siblings = parent.children() if "pyspark.daemon" in parent.cmdline() else []
    for victim in siblings:
        if victim.pid != os.getpid():
            victim.kill()
    os.kill(os.getpid(), signal.SIGKILL)


def _wait_for(file: Path) -> None:
    deadline = time.monotonic() + RELEASE_S
    while not file.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{file} did not come")
        time.sleep(0.02)


def as_json(fault: TaskFault | None) -> str:
    """For the way to the driver program."""
    return json.dumps(None if fault is None else vars(fault))


def from_json(text: str) -> TaskFault | None:
    """What :func:`as_json` made."""
    given = json.loads(text)
    return None if given is None else TaskFault(**given)
