"""What must hold when the job is done."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil
import pyarrow.parquet as pq

from pipeline_crash.layout import Layout
from pipeline_crash.program import TAG, make_job
from solstice.pipeline._message import payload_ref
from solstice.pipeline._queue import Queue, open_queue
from solstice.pipeline._store import file_name, open_store


@dataclass
class Verdict:
    """What came of one job. ``complaints`` say which promise was broken, in words."""

    rows: int
    runs: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    doubled: int = 0
    dead_expected: int = 0
    dead_found: int = 0
    orphans: int = 0
    partitions: int = 0
    computed: int = 0
    computed_again: int = 0
    seconds: float = 0.0
    complaints: list[str] = field(default_factory=list)


def judge(verdict: Verdict, root: Path, way: str, queue_url: str, completed: dict[int, set[int]]) -> None:
    """Look at everything that a job has left; ``completed`` has the partitions that were there when a run began."""
    layout = Layout(verdict.rows)
    job = make_job(root, layout, way, queue_url, "local[1]", 0)
    queue = open_queue(job.queue)
    try:
        _judge_rows(verdict, layout, root / "out")
        kept = _judge_dead_letters(verdict, layout, queue, job.payloads)
        _judge_orphans(verdict, root, queue, kept)
    finally:
        queue.close()
    _judge_recomputation(verdict, layout, root / "marks", completed)


def _judge_rows(verdict: Verdict, layout: Layout, out: Path) -> None:
    counts = np.zeros(layout.rows, dtype=np.int64)
    for path in out.glob("*.parquet"):
        table = pq.read_table(path)
        ids, scores = table["id"].to_numpy(), table["score"].to_numpy()
        np.add.at(counts, ids, 1)
        if not (scores == 3 * ids + 1).all():
            verdict.complaints.append(f"{path.name} has wrong values")
    expected = np.ones(layout.rows, dtype=np.int64)
    for _, _, ids in layout.poisoned():
        expected[ids.start : ids.stop] = 0
    verdict.lost = int((counts < expected).sum())
    verdict.doubled = int((counts > expected).sum())
    for what, number in (("lost", verdict.lost), ("doubled, or of a poisoned split", verdict.doubled)):
        if number:
            where = np.flatnonzero((counts < expected) if what == "lost" else (counts > expected))
            verdict.complaints.append(f"{number} rows are {what}: {where[0]} to {where[-1]}")


def _judge_dead_letters(verdict: Verdict, layout: Layout, queue: Queue, payloads: str) -> set[str]:
    """Dead letters are the poisoned splits, with all their rows; returns the keys of their payloads."""
    expected = {(stage, split): ids for stage, split, ids in layout.poisoned()}
    letters = queue.dead_letters()
    found = Counter((letter.group, letter.message.split_id) for letter in letters)
    verdict.dead_expected, verdict.dead_found = len(expected), len(letters)
    for letter in letters:
        name = (letter.group, letter.message.split_id)
        if name not in expected:
            verdict.complaints.append(f"dead, but not poisoned: {name}: {letter.error}")
            continue
        payload = open_store(payloads).get(payload_ref(letter.message.stored_key, letter.message.metadata))
        if payload is None or payload.to_arrow()["id"].to_pylist() != list(expected[name]):
            verdict.complaints.append(f"the dead letter {name} has not kept its rows")
    verdict.complaints += [f"poisoned, but no dead letter: {name}" for name in expected.keys() - found.keys()]
    verdict.complaints += [f"a dead letter {number} times: {name}" for name, number in found.items() if number > 1]
    return {letter.message.stored_key for letter in letters}


def _judge_orphans(verdict: Verdict, root: Path, queue: Queue, kept: set[str]) -> None:
    (payloads,), temporary = (root / "state" / "payloads").iterdir(), root / "out" / "_tmp"
    writers = {key.rpartition("/")[0] for key in kept}
    files = {str(path.relative_to(payloads)) for path in payloads.rglob("*") if path.is_file()}
    orphans = [f"payload {file}" for file in files - {file_name(key) for key in kept}]
    orphans += [
        f"folder {path.relative_to(payloads)}"
        for path in payloads.glob("*/*")
        if str(path.relative_to(payloads)) not in writers
    ]
    orphans += [f"temporary file {path.relative_to(root)}" for path in temporary.rglob("*") if path.is_file()]
    orphans += [f"writer {writer}" for writer in queue.live_writers()]
    orphans += [f"unfinished file {prepared.final}" for prepared in queue.prepared("sink")]
    verdict.orphans = len(orphans)
    if orphans:
        verdict.complaints.append(f"{len(orphans)} orphans: {', '.join(sorted(orphans)[:5])}")


def _judge_recomputation(verdict: Verdict, layout: Layout, marks: Path, completed: dict[int, set[int]]) -> None:
    """A partition that was there when a run began is not computed by that run."""
    verdict.partitions = layout.partitions
    for partition in range(layout.partitions):
        runs = [int(line) for line in (marks / str(partition)).read_text().split()]
        verdict.computed += len(runs)
        again = [run for run in runs if partition in completed[run]]
        verdict.computed_again += len(again)
        if again:
            verdict.complaints.append(f"partition {partition} was computed again by the runs {again}")


def processes_of(tag: str) -> list[psutil.Process]:
    """All processes of a job: the program, its workers, Spark's JVMs and their Python workers."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(TAG) == tag and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found
