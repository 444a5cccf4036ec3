"""``solstice demo``: the whole of Solstice once, small but real, with a summary whose numbers are checked."""

import shutil
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from solstice.cli._demo_job import SUBSCRIPTION, TOPIC, build, events, score
from solstice.cli._output import console
from solstice.errors import ConfigError, JobFailedError

_PLAIN_EVERY_S = 2.0
_MARK = ".solstice-demo"
_CONTENT = ("state", "events")
_LABELS = {"published": "published", "spark": "through Spark", "scored": "scored", "stored": "in parquet"}


def demo(
    events: Annotated[int, typer.Option(help="How many events to publish.", min=1)] = 100_000,
    output: Annotated[Path, typer.Option(help="Where the output goes; made anew by each run.")] = Path("demo-output"),
) -> None:
    """Run events through an emulator, Spark, two workers, parquet and a Connect query, and check the numbers."""
    from solstice.testing import PubSubEmulator

    folder = _fresh(output)
    state, parquet = (folder / name for name in _CONTENT)
    with PubSubEmulator() as emulator:
        emulator.create_topic(TOPIC)
        emulator.create_subscription(SUBSCRIPTION, TOPIC, ack_deadline_s=60)
        console().print(f"Pub/Sub emulator at {emulator.address}, Spark starting, {events:,} events to come.")
        job = build(emulator.address, state, parquet)
        run = _Run(job, emulator, events)
        seconds = run.until_done()
        counters = emulator.counters(SUBSCRIPTION)
    console().print("Asking Spark Connect about the output.")
    answer = _query(parquet)
    _summary(answer, events, seconds, counters, parquet)


class _Run:
    """Publishes, runs the job, shows how far it is, and stops it when everything is in the sink and acknowledged."""

    def __init__(self, job: Any, emulator: Any, count: int) -> None:
        self._job = job
        self._emulator = emulator
        self._count = count
        self._began: float | None = None
        self._ended: float | None = None
        self._failure: Exception | None = None

    def until_done(self) -> float:
        """Seconds from the first delivery of Pub/Sub to the last event settled."""
        publisher = threading.Thread(target=self._publish, name="publisher", daemon=True)
        with _Display(self._count) as display:
            publisher.start()
            self._job.run(on_progress=lambda stages: self._look(stages, display))
        publisher.join()
        if self._failure is not None:
            raise self._failure
        if self._began is None or self._ended is None:
            raise JobFailedError(
                "the demo was stopped before all events were processed.", remedy="Run it again; it starts over."
            )
        return self._ended - self._began

    def _publish(self) -> None:
        from solstice.pubsub import publish

        try:
            for table in events(self._count):
                publish(TOPIC, table, emulator_host=self._emulator.address)
        # Whatever it is, the main thread raises it; it must not die silently in this one.
        except Exception as error:  # noqa: BLE001
            self._failure = error
            self._job.stop(drain=False)

    def _look(self, stages: list[Any], display: "_Display") -> None:
        if self._failure is not None:
            self._job.stop(drain=False)  # the publisher's own stop found no run yet if it failed before there was one
        published = self._emulator.published(TOPIC)
        by_name = {stage.stage: stage for stage in stages}
        spark, scored, stored = (
            by_name["source"].produced_records,
            by_name[score.__name__].settled_records,
            by_name["sink"].settled_records,
        )
        display.show(published=published, spark=spark, scored=scored, stored=stored)
        counters = self._emulator.counters(SUBSCRIPTION)
        if self._began is None and counters["delivered"]:
            self._began = time.monotonic()
        settled = counters["outstanding"] == counters["backlog"] == 0
        if published == self._count and stored >= self._count and settled and self._ended is None:
            self._ended = time.monotonic()
            self._job.stop()


class _Display:
    """Bars on a terminal, a line every two seconds elsewhere."""

    def __init__(self, total: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._console = console()
        self._said, self._said_at = "", 0.0
        self._progress = Progress(
            TextColumn("{task.description:>14}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._bars = {name: self._progress.add_task(label, total=total) for name, label in _LABELS.items()}

    def __enter__(self) -> "_Display":
        self._progress.start()
        return self

    def __exit__(self, *ignored: object) -> None:
        self._progress.stop()

    def show(self, **counts: int) -> None:
        """Show how far each step is."""
        for name, count in counts.items():
            self._progress.update(self._bars[name], completed=count)
        line = "  ".join(f"{_LABELS[name]} {count:,}" for name, count in counts.items())
        due = time.monotonic() - self._said_at >= _PLAIN_EVERY_S
        if not self._console.is_terminal and due and line != self._said:
            self._said, self._said_at = line, time.monotonic()
            self._console.print(line)


@dataclass(frozen=True)
class _Answer:
    rows: int
    distinct_events: int
    by_country: Any
    spark_version: str


def _query(parquet: Path) -> _Answer:
    """Count the output with another Spark, asked through Spark Connect."""
    import solstice.connect as sc

    with sc.local() as spark:
        table = "parquet.`" + str(parquet).replace("`", "``") + "`"
        [(rows, distinct)] = spark.sql(f"select count(*), count(distinct event) from {table}").collect()
        by_country = spark.sql(
            f"select country, count(*) as clicks, round(avg(score), 3) as score from {table} group by 1 order by 1"
        ).to_polars()
        return _Answer(rows, distinct, by_country, spark.version)


def _summary(answer: _Answer, published: int, seconds: float, counters: dict[str, int], parquet: Path) -> None:
    from rich.table import Table

    lost, duplicates = published - answer.distinct_events, answer.rows - answer.distinct_events
    out = console()
    table = Table("country", "clicks", "mean score", title=f"Spark {answer.spark_version} through solstice.connect")
    for country, clicks, mean in answer.by_country.iter_rows():
        table.add_row(country, f"{clicks:,}", f"{mean}")
    out.print(table)
    lines: list[tuple[str, str]] = [
        ("published", f"{published:,}"),
        ("processed", f"{answer.distinct_events:,}"),
        ("lost", f"{lost:,}"),
        ("duplicates", f"{duplicates:,}"),
        ("acknowledged", f"{counters['acked']:,}  (redelivered {counters['redelivered']:,})"),
        ("rate", f"{published / seconds:,.0f} events/s from the first delivery to the last file ({seconds:.1f} s)"),
        ("output", str(parquet)),
    ]
    for label, value in lines:
        out.print(f"{label:>14}  {value}")
    if lost or duplicates or counters["acked"] != published:
        raise JobFailedError(
            f"the numbers do not add up: {lost} lost, {duplicates} twice, {counters['acked']} acknowledged.",
            remedy="Please report this with the output of: solstice doctor",
        )


def _fresh(output: Path) -> Path:
    """An empty folder; what an earlier demo left there goes, anything else stays."""
    folder = output.resolve()
    try:
        if folder.exists() and any(folder.iterdir()):
            if not (folder / _MARK).exists():
                raise _refused(output, "is not empty and not from an earlier demo")
            for left in (_MARK, *_CONTENT):
                _remove(folder / left)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _MARK).touch()
    except OSError as error:
        raise _refused(output, f"cannot be used: {error}") from error
    return folder


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _refused(output: Path, why: str) -> ConfigError:
    return ConfigError(
        f"{output} {why}.",
        option="output",
        value=str(output),
        remedy="Name another folder: solstice demo --output FOLDER",
    )
