"""``solstice status``, ``dlq`` and ``gc``: jobs as their state directories show them. No file of the job is needed."""

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from solstice.cli._output import console
from solstice.errors import ConfigError

if TYPE_CHECKING:
    from solstice.pipeline import DeadLetter
    from solstice.pipeline._queue import Queue
    from solstice.pipeline._state import JobRecord

JobName = Annotated[str, typer.Argument(help="The job; its state is .solstice/JOB below the current directory.")]
StateDirectory = Annotated[str | None, typer.Option("--state", help="The job's state directory, if it is elsewhere.")]
AsJson = Annotated[bool, typer.Option("--json", help="Write JSON.")]

dlq = typer.Typer(help="Splits that were given up: look at them, and give them back.", no_args_is_help=True)

STATUS_EXAMPLES = """Examples:

solstice status                    every job below this directory

solstice status clicks --json | jq '.stages[] | {stage, settled, waiting}'
"""


def status(
    job: Annotated[str | None, typer.Argument(help="A job; else all of this directory.")] = None,
    state: StateDirectory = None,
    as_json: AsJson = False,
) -> None:
    """Show how far jobs are, whether they run or not."""
    reports = [_report(directory) for directory in _states(job, state)]
    if as_json:
        json.dump(reports[0] if job or state else reports, sys.stdout, indent=2)
        sys.stdout.write("\n")
        return
    out = console()
    if not reports:
        out.print("There is no job here: .solstice has none.")
    for report in reports:
        running = f"runs in process {report['pid']}" if report["pid"] else "does not run"
        out.print(f"{report['job']}  {running}; {report['runner']} workers, {report['queue']}")
        for stage in report["stages"]:
            out.print(_line(stage))


def gc(job: JobName, state: StateDirectory = None) -> None:
    """Remove payloads that nobody will ask for: left by writers that are gone. Every start of a job does so too."""
    from solstice.errors import JobRunningError
    from solstice.pipeline._state import exclusive
    from solstice.pipeline._store import open_store
    from solstice.pipeline._sweep import sweep

    (directory,) = _states(job, state)
    with _opened(job, state) as (record, queue), contextlib.ExitStack() as ends:
        with contextlib.suppress(JobRunningError):
            ends.enter_context(exclusive(directory, record.job))
            queue.fence(record.owned)  # the job does not run: what its writers have not made visible, nobody will
        console().print(f"removed {sweep(queue, open_store(record.payloads))} payloads")


@dlq.command("list", epilog="Example: solstice dlq list clicks")
def list_letters(job: JobName, state: StateDirectory = None, as_json: AsJson = False) -> None:
    """The splits that were given up, a line each."""
    with _opened(job, state) as (_, queue):
        letters = queue.dead_letters()
    if as_json:
        json.dump([_fields(letter) for letter in letters], sys.stdout, indent=2)
        sys.stdout.write("\n")
        return
    for letter in letters:
        at = datetime.fromtimestamp(letter.at).isoformat(" ", "seconds")
        console().print(
            f"{letter.message.split_id}  {letter.group}  {at}  attempt {letter.attempt}  {letter.error.splitlines()[0]}"
        )


@dlq.command("show", epilog="Example: solstice dlq show clicks source-b0-p2-s0 --rows 3")
def show_letter(
    job: JobName,
    split: Annotated[str, typer.Argument(help="The split, as `list` shows it.")],
    state: StateDirectory = None,
    rows: Annotated[int, typer.Option(help="How many of its rows.", min=0)] = 5,
) -> None:
    """One split: where it failed, its traceback, and its first rows."""
    from solstice.pipeline._message import payload_ref
    from solstice.pipeline._store import open_store

    out = console()
    with _opened(job, state) as (record, queue):
        for letter in _chosen(queue, [split], None):
            for name, value in _fields(letter).items():
                out.print(f"{name}: {value}")
            out.print(letter.traceback.rstrip())
            ref = payload_ref(letter.message.stored_key, letter.message.metadata)
            payload = open_store(record.payloads).get(ref) if ref.key else None
            if payload is None:
                out.print("its payload is not there")
                continue
            for row in payload.to_arrow().slice(0, rows).to_pylist():
                out.print(f"  {row}")


@dlq.command("replay", epilog="Example: solstice dlq replay clicks --stage score")
def replay_letters(
    job: JobName,
    splits: Annotated[list[str] | None, typer.Argument(help="Splits; else all.")] = None,
    state: StateDirectory = None,
    stage: Annotated[str | None, typer.Option(help="Only those that this stage gave up.")] = None,
) -> None:
    """Give splits back to the stage that gave them up, each once. The job takes them if it runs, else when it does."""
    with _opened(job, state) as (_, queue):
        replayed = queue.replay(_chosen(queue, splits, stage))
    console().print(f"gave {replayed} splits back")


@contextlib.contextmanager
def _opened(job: str, state: str | None) -> "Iterator[tuple[JobRecord, Queue]]":
    from solstice.pipeline._queue import open_queue
    from solstice.pipeline._state import JobRecord

    (directory,) = _states(job, state)
    record = JobRecord.read(directory)
    with contextlib.closing(open_queue(record.queue)) as queue:
        yield record, queue


def _states(job: str | None, state: str | None) -> list[Path]:
    from solstice.pipeline._state import STATES, JobRecord, state_directory

    if state is not None or job is not None:
        directory = Path(state) if state is not None else state_directory(job or "")
        JobRecord.read(directory)
        return [directory]
    return sorted(path.parent for path in STATES.glob("*/job.json"))


def _report(directory: Path) -> dict[str, Any]:
    from solstice.pipeline._events import read_progress
    from solstice.pipeline._state import JobRecord, running_pid

    record, progress, pid = JobRecord.read(directory), read_progress(directory) or {}, running_pid(directory)
    for stage in progress.get("stages", []) if pid is None else []:
        stage |= {"workers": 0, "records_per_s": 0.0}  # as a killed process has left them
    return {
        "job": record.job,
        "pid": pid,
        "runner": record.runner,
        "queue": record.queue,
        "state": str(directory),
        "age_s": round(time.time() - progress["at"], 1) if progress else None,
        "stages": progress.get("stages", []),
    }


def _line(stage: dict[str, Any]) -> str:
    end = ", done" if stage["done"] else ""
    if not (stage["settled"] or stage["waiting"] or stage["in_flight"] or stage["dead"]):
        return f"  {stage['stage']:<20} produced {stage['produced']:,} splits, {stage['produced_records']:,} rows{end}"
    return (
        f"  {stage['stage']:<20} settled {stage['settled']:,} splits, {stage['settled_records']:,} rows;"
        f" {stage['in_flight']:,} in work, {stage['waiting']:,} waiting, {stage['dead']:,} dead;"
        f" {stage['workers']} workers, {stage['records_per_s']:,.0f} rows/s{end}"
    )


def _chosen(queue: "Queue", splits: list[str] | None, stage: str | None) -> "list[DeadLetter]":
    letters = [letter for letter in queue.dead_letters() if stage is None or letter.group == stage]
    known = {letter.message.split_id for letter in letters}
    for split in splits or ():
        if split not in known:
            raise ConfigError(
                f"{split!r} is no dead letter.",
                option="split",
                value=split,
                remedy="`solstice dlq list` shows them.",
            )
    return [letter for letter in letters if not splits or letter.message.split_id in splits]


def _fields(letter: "DeadLetter") -> dict[str, Any]:
    return {
        "split": letter.message.split_id,
        "stage": letter.group,
        "from": letter.topic,
        "attempt": letter.attempt,
        "at": letter.at,
        "records": letter.message.num_records,
        "payload": letter.message.stored_key,
        "error": letter.error,
    }
