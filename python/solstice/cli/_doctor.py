"""``solstice doctor``: is this machine ready, and if not, what to do about it."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from solstice.cli._checks import Finding, Limits, Status, examine
from solstice.cli._output import console

_STYLES = {Status.OK: "green", Status.NOTE: "yellow", Status.PROBLEM: "bold red"}


def doctor(
    spark: Annotated[bool, typer.Option(help="Start a small Spark session (takes some seconds).")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Write the findings as JSON.")] = False,
) -> None:
    """Check Python, Java, Spark, the native core, extras, memory, space and ports; name the fix of each problem.

    A missing extra is a note; exit code 1 means that something that is needed is broken.
    """
    raise typer.Exit(report(examine(Limits(), start_spark=spark), as_json=as_json))


def report(findings: Iterable[Finding], *, as_json: bool = False) -> int:
    """Show the findings and return the exit code."""
    out = console()
    if as_json:
        known = list(findings)
        out.print(json.dumps({"ok": not _problems(known), "checks": [asdict(found) for found in known]}, indent=2))
        return 1 if _problems(known) else 0
    if out.is_terminal:
        with out.status("Looking at this machine ..."):
            known = list(findings)
        _show_table(out, known)
    else:
        known = []
        for found in findings:
            known.append(found)
            fix = f" -> {found.fix}" if found.fix else ""
            out.print(f"{found.status:<8} {found.name:<14} {found.detail}{fix}")
    problems = _problems(known)
    if problems:
        out.print(f"Not ready: {', '.join(found.name for found in problems)}.", style=_STYLES[Status.PROBLEM])
        return 1
    out.print("Ready.", style=_STYLES[Status.OK])
    return 0


def _show_table(out: Console, findings: list[Finding]) -> None:
    table = Table(box=None, pad_edge=False)
    for heading in ("", "check", "found"):
        table.add_column(heading, overflow="fold")
    for found in findings:
        detail = Text(found.detail)
        if found.fix:
            detail.append(f"\n{found.fix}", style=_STYLES[found.status])
        table.add_row(Text(found.status, style=_STYLES[found.status]), found.name, detail)
    out.print(table, soft_wrap=False)


def _problems(findings: list[Finding]) -> list[Finding]:
    return [found for found in findings if found.status is Status.PROBLEM]
