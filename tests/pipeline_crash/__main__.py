"""``make crash-pipeline``: one job after the other for some minutes; then a table of what came of them."""

import argparse
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console
from rich.table import Table

from pipeline_crash.harness import Crash
from pipeline_crash.layout import WAYS
from pipeline_crash.verdict import Verdict
from solstice.testing import KafkaBroker
from spark_standalone import standalone_cluster

COLUMNS = (
    "queue, way", "jobs", "runs", "killed", "rows", "lost", "doubled", "dead letters", "expected", "orphans",
    "partitions", "computed", "after they were done", "seconds",
)  # fmt: skip


def main() -> int:
    """Crash jobs; 1 when a promise was broken."""
    parser = argparse.ArgumentParser(prog="make crash-pipeline", description=__doc__)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--queue", choices=("sqlite", "kafka", "both"), required=True)
    asked = parser.parse_args()
    console = Console(width=200)  # also in a file
    lot = random.Random(asked.seed)
    queues = ("sqlite", "kafka") if asked.queue == "both" else (asked.queue,)
    verdicts: dict[str, list[Verdict]] = defaultdict(list)
    complaints: list[str] = []
    deadline_s = time.monotonic() + 60 * asked.minutes
    while not verdicts or time.monotonic() < deadline_s:
        for queue in queues:
            seed, way = lot.randrange(1_000_000), lot.choice(WAYS)
            name = f"{queue}, {way}"
            console.print(f"{name}, seed {seed}", markup=False)
            found = _crash(queue, way, asked.rows, seed, console)
            verdicts[name].append(found)
            complaints += [f"{name}, seed {seed}: {complaint}" for complaint in found.complaints]
    console.print(_table(verdicts))
    for complaint in complaints:
        console.print(complaint, style="red", markup=False)
    return 1 if complaints else 0


def _crash(queue: str, way: str, rows: int, seed: int, console: Console) -> Verdict:
    kills = {"worker": 8 + rows // 200_000, "master": 4, "executor": 3}
    root = Path(tempfile.mkdtemp(prefix="pipeline-crash-"))
    crash: Crash | None = None
    try:
        with ExitStack() as ends:
            cluster = ends.enter_context(standalone_cluster(root))
            broker = ends.enter_context(KafkaBroker()) if queue == "kafka" else None
            crash = Crash(
                root,
                cluster,
                rows=rows,
                seed=seed,
                way=way,
                kills=kills | ({"broker": 3} if broker else {}),
                broker=broker,
                deadline_s=600 + rows / 1_000,
                say=lambda line: console.print(line, markup=False),
            )
            return crash.run()
    except Exception:  # noqa: BLE001  it is told at the end, and the next job begins
        verdict = crash.verdict if crash else Verdict(rows)
        verdict.complaints.append(traceback.format_exc())
        return verdict
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _table(verdicts: dict[str, list[Verdict]]) -> Table:
    table = Table(*COLUMNS)
    for queue, found in verdicts.items():
        kills = sum((verdict.kills for verdict in found), Counter())
        sums = [
            sum(verdict.rows for verdict in found),
            sum(verdict.lost for verdict in found),
            sum(verdict.doubled for verdict in found),
            sum(verdict.dead_found for verdict in found),
            sum(verdict.dead_expected for verdict in found),
            sum(verdict.orphans for verdict in found),
            sum(verdict.partitions for verdict in found),
            sum(verdict.computed for verdict in found),
            sum(verdict.computed_again for verdict in found),
            round(sum(verdict.seconds for verdict in found)),
        ]
        killed = ", ".join(f"{number} {kind}" for kind, number in sorted(kills.items()))
        runs = sum(verdict.runs for verdict in found)
        table.add_row(queue, str(len(found)), str(runs), killed, *(f"{number:,}" for number in sums))
    return table


if __name__ == "__main__":
    sys.exit(main())
