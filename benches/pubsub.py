"""Receive, publish and project: messages per second of one core's time, ours and the official client's, in one run.

The emulator runs in this process, each measured client in a process of its own (``_pubsub_client.py``), which reports
the CPU time it used itself: the figures hold while the server has a core of its own. The emulator's own rate is by the
clock. Every case, ours or a peer's, runs ``RUNS`` times and the best run counts: whatever else the machine does only
ever adds to the CPU time.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from _report import Row, report

from pubsub_authority import Authority, ServiceAccount, TokenServer
from solstice.testing import PubSubEmulator

CLIENT = Path(__file__).with_name("_pubsub_client.py")
RUNS = 3
TOPIC, SUBSCRIPTION = "projects/bench/topics/events", "projects/bench/subscriptions/events"
OUR_MESSAGES = {200: 2_000_000, 1_000: 600_000}
OFFICIAL_MESSAGES = {200: 60_000, 1_000: 60_000}
# Targets at 200 B, messages per core-second.
RECEIVE, RECEIVE_TLS, RECEIVE_ACKED, PUBLISH, JSON_ROWS, EMULATOR = 3e6, 2.5e6, 2e6, 5e6, 2e6, 1e6


def measure(case: str, count: int, size: int, environment: dict[str, str], **arguments: object) -> dict[str, float]:
    """Run one case in a fresh process."""
    command = [sys.executable, str(CLIENT), json.dumps({"case": case, "count": count, "size": size} | arguments)]
    ran = subprocess.run(command, env=os.environ | environment, stdout=subprocess.PIPE, check=True)
    figures: dict[str, float] = json.loads(ran.stdout)
    return figures


@contextmanager
def served(tls: Authority | None = None) -> Iterator[tuple[PubSubEmulator, dict[str, str]]]:
    """An emulator with a topic and a subscription, and the environment that leads a client to it."""
    with ExitStack() as stack:
        emulator = stack.enter_context(PubSubEmulator(tls=tls.identity if tls else None))
        emulator.create_topic(TOPIC)
        emulator.create_subscription(SUBSCRIPTION, TOPIC, ack_deadline_s=600)
        if tls is None:
            yield emulator, {"PUBSUB_EMULATOR_HOST": emulator.address}
            return
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        authority = folder / "ca.pem"
        authority.write_text(tls.certificate)
        account = ServiceAccount(folder, stack.enter_context(TokenServer()).uri)
        emulator.require_token("token")
        environment = {"SSL_CERT_FILE": str(authority), "GOOGLE_APPLICATION_CREDENTIALS": str(account.file)}
        yield emulator, environment | {"BENCH_ENDPOINT": emulator.address}


def received(case: str, count: int, size: int, tls: Authority | None = None) -> dict[str, float]:
    """Fill a subscription, then let one client drain it."""

    def once() -> dict[str, float]:
        with served(tls) as (_, environment):
            measure("publish", count, size, environment, topic=TOPIC)
            return measure(case, count, size, environment, subscription=SUBSCRIPTION)

    return best(once)


def published(case: str, count: int, size: int, tls: Authority | None = None) -> dict[str, float]:
    """Let one client publish to a topic without subscriptions: nothing is kept."""

    def once() -> dict[str, float]:
        with served(tls) as (emulator, environment):
            emulator.create_topic(f"{TOPIC}-unread")
            return measure(case, count, size, environment, topic=f"{TOPIC}-unread")

    return best(once)


def best(once: Callable[[], dict[str, float]]) -> dict[str, float]:
    """The run that took the least CPU time a message."""
    return max((once() for _ in range(RUNS)), key=rate)


def rate(figures: dict[str, float]) -> float:
    """Messages per second of CPU time."""
    return figures["messages"] / figures["cpu_s"]


def message_rows(size: int, notes: list[str]) -> list[Row]:
    """Receive and publish with messages of one size."""
    ours, theirs, authority = OUR_MESSAGES[size], OFFICIAL_MESSAGES[size], Authority()
    official_receive, official_publish = (
        received("official-receive", theirs, size),
        published("official-publish", theirs, size),
    )
    peer: dict[str, Any] = {"peer": "google-cloud-pubsub"}
    goals = {} if size != 200 else {"receive": RECEIVE, "tls": RECEIVE_TLS, "acked": RECEIVE_ACKED, "publish": PUBLISH}
    drained = received("receive", ours, size)
    rows = []
    for work, figures, other, goal in (
        ("receive", drained, official_receive, "receive"),
        ("receive, TLS", received("receive", ours, size, authority), official_receive, "tls"),
        ("receive, acks and leases", received("receive-acked", ours, size), official_receive, "acked"),
        ("publish", published("publish", ours, size), official_publish, "publish"),
        ("publish, TLS", published("publish", ours, size, authority), official_publish, None),
    ):
        target = goals.get(goal) if goal else None
        rows.append(
            Row(f"{work}, {size} B", "messages/core-s", rate(figures), peer_value=rate(other), target=target, **peer)
        )
        notes.append(f"{work}, {size} B: {figures['messages'] / figures['wall_s']:,.0f} messages/s by the clock")
    by_clock = drained["messages"] / drained["wall_s"]
    rows.append(Row(f"emulator StreamingPull, {size} B", "messages/s", by_clock, target=EMULATOR if goals else None))
    return rows


def projection_rows() -> list[Row]:
    """JSON documents into seven typed columns."""
    cases = ("json", "json-polars", "json-pyarrow")
    figures = {case: best(lambda case=case: measure(case, 400_000, 200, {})) for case in cases}
    return [
        Row(
            "JSON to 7 columns",
            "rows/core-s",
            rate(figures["json"]),
            peer,
            rate(figures[f"json-{peer}"]),
            True,
            JSON_ROWS,
        )
        for peer in ("polars", "pyarrow")
    ]


def main() -> None:
    """Measure everything and report it."""
    notes: list[str] = []
    rows = [*message_rows(200, notes), *message_rows(1_000, notes), *projection_rows()]
    report("pubsub", rows, notes)


if __name__ == "__main__":
    main()
