"""``solstice pubsub status``: the agents of streaming queries on this host."""

import json
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from solstice.cli._output import console
from solstice.errors import SolsticeError

if TYPE_CHECKING:
    from solstice.pubsub._registry import AgentEntry

STATUS_EXAMPLES = """Examples:

solstice pubsub status                   each agent with its counts, and its rates over a second

solstice pubsub status --json | jq '.[].oldest_unacked_s'
"""

_RATES_OVER_S = 1.0


def status(
    as_json: Annotated[bool, typer.Option("--json", help="Write a JSON array, an object for each agent.")] = False,
) -> None:
    """Show the agents of this user's streaming queries on this host.

    An agent is found by its folder under the temporary folder: TMPDIR has to be that of the driver.
    """
    from solstice.pubsub._registry import living_agents

    agents = living_agents()
    before = [_look(agent) for agent in agents]
    if agents:
        time.sleep(_RATES_OVER_S)
    reports = [_report(agent, earlier) for agent, earlier in zip(agents, before, strict=True)]
    if as_json:
        json.dump(reports, sys.stdout, indent=2)
        sys.stdout.write("\n")
        return
    out = console()
    if not reports:
        out.print("No agent of yours runs on this host.")
    for report in reports:
        for line in _lines(report):
            out.print(line)


def _look(agent: "AgentEntry") -> dict[str, Any]:
    from solstice.pubsub._agent import ask_status

    try:
        return ask_status(agent.socket, agent.token) | {"looked_at": time.monotonic()}
    except SolsticeError as error:
        return {"error": str(error)}


def _report(agent: "AgentEntry", before: dict[str, Any]) -> dict[str, Any]:
    now = _look(agent)
    report = {"subscription": agent.subscription, "pid": agent.pid, "epoch": agent.epoch, "started": agent.started}
    if "error" in now or "error" in before:
        return report | {"error": now.get("error") or before["error"]}
    passed = now.pop("looked_at") - before["looked_at"]
    rates = {f"{name}_per_s": round((now[name] - before[name]) / passed, 1) for name in ("received", "acked")}
    return report | now | rates


def _lines(report: dict[str, Any]) -> list[str]:
    head = f"{report['subscription']}  agent {report['pid']}"
    if "error" in report:
        return [head, f"  does not answer: {report['error']}"]
    return [
        f"{head}, up {_duration(report['uptime_s'])}, {report['memory_bytes'] / 2**20:,.0f} MiB of memory",
        f"  holds     {report['leased']:,} messages ({report['held_bytes'] / 2**20:,.1f} MiB), "
        f"{report['buffered']:,} of them buffered; the oldest for {_duration(report['oldest_unacked_s'])}",
        f"  received  {report['received']:,} ({report['received_per_s']:,.0f} a second), "
        f"{report['redelivered']:,} of them once more",
        f"  settled   {report['acked']:,} acked ({report['acked_per_s']:,.0f} a second), {report['nacked']:,} nacked, "
        f"{report['expired']:,} expired, {report['refused']:,} refused",
        f"  streams   opened again {report['reconnects']:,} times",
    ]


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {seconds:02} s"
