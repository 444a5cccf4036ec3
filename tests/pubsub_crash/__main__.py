"""``make crash``: every point at random moments, again and again, for some minutes; then a table of what came of it."""

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from brief_jvm import BRIEF_JVM, VARIABLE
from pubsub_crash.points import GROUPS, Stage, Verdict, execute

COLUMNS = (
    "point", "delivery", "runs", "faulted", "published", "lost", "acked, not stored", "duplicates", "second attempts",
    "seconds",
)  # fmt: skip


def main() -> int:
    """Run the matrix; 1 when a rule was broken."""
    parser = argparse.ArgumentParser(prog="make crash", description=__doc__)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--point", action="append", help="only this one; may be given several times")
    asked = parser.parse_args()
    os.environ.setdefault(VARIABLE, BRIEF_JVM)
    console = Console(width=160)  # also in a file
    lot = random.Random(asked.seed)
    verdicts: list[Verdict] = []
    complaints: list[str] = []
    deadline = time.monotonic() + 60 * asked.minutes
    stage = Stage()
    try:
        for seed in _until(deadline, lot):
            asked_for = ([point for point in group if not asked.point or point.name in asked.point] for group in GROUPS)
            groups = [group for group in asked_for if group]
            lot.shuffle(groups)
            for group in groups:
                if time.monotonic() > deadline:
                    break
                folder = Path(tempfile.mkdtemp(prefix="pubsub-crash-"))
                try:
                    judged = execute(group, folder, seed, stage, held=lot.random() < 0.5)
                except Exception:  # noqa: BLE001  it is told at the end, and the matrix goes on
                    names = ", ".join(point.name for point in group)
                    complaints.append(f"seed {seed}, {names}: {traceback.format_exc()}")
                    console.print(complaints[-1], markup=False)
                    continue
                finally:
                    shutil.rmtree(folder, ignore_errors=True)
                verdicts += judged
                for verdict in judged:
                    complaints += [f"seed {seed}, {complaint}" for complaint in verdict.complaints]
                    console.print(
                        f"{verdict.point.name}, {verdict.delivery}: {verdict.complaints or 'ok'}", markup=False
                    )
        stage.stop_all()
    finally:
        stage.discard()
    console.print(_table(verdicts))
    for complaint in complaints:
        console.print(complaint, style="red", markup=False)
    return 1 if complaints else 0


def _until(deadline: float, lot: random.Random):
    while time.monotonic() < deadline:
        yield lot.randrange(1_000_000)


def _table(verdicts: Sequence[Verdict]) -> Table:
    rows: dict[tuple[str, str], list[Verdict]] = defaultdict(list)
    for verdict in verdicts:
        rows[verdict.point.name, verdict.delivery].append(verdict)
    table = Table(*COLUMNS)
    for (point, delivery), found in sorted(rows.items()):
        outcomes = [verdict.outcome for verdict in found]
        sums = [
            len(outcomes),
            sum(each.faulted for each in outcomes),
            sum(each.published for each in outcomes),
            sum(each.lost for each in outcomes),
            sum(each.wrongly_acked for each in outcomes),
            sum(each.duplicates for each in outcomes),
            sum(each.second_attempts for each in outcomes),
            round(sum(each.seconds for each in outcomes)),
        ]
        table.add_row(point, delivery, *(f"{number:,}" for number in sums))
    return table


if __name__ == "__main__":
    sys.exit(main())
