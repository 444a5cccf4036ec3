"""The Spark Connect client against the official one and pyspark-client-rust: start, memory, rows, plans, cuts, Ctrl-C.

One local server for all, warmed up before anything is measured. Each measurement has a process of its own
(``_connect_client.py``), with bytecode compiled beforehand, and runs ``RUNS`` times in turns with those of the peers;
the best run counts, since whatever else the machine does only ever adds. pyspark-client-rust lives in an environment of
its own; where it cannot be installed, its rows are left out.
"""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _report import Row, report
from connect_server import ENDLESS, CuttingProxy, operations

import solstice.connect as sc
from environments import environment
from solstice.connect._local import LocalServer, start_server

CLIENT = Path(__file__).with_name("_connect_client.py")
RUNS = 5
ROWS, READ_ROWS, CUT_ROWS = 1_000_000, 10_000_000, 1_000_000
CUT_AFTER_BYTES, CUTS = 2_000_000, 10
OURS, OFFICIAL, RUST = "solstice", "pyspark", "pyspark-client-rust"
RUST_VERSION = "4.2.0"
PATIENCE_S, TIMEOUT_S = 20.0, 180.0
# Targets.
START_S, START_MB, ROWS_CPU_S, READ_MB, PLAN_MS, INTERRUPT_S = 0.25, 60.0, 0.7, 30.0, 50.0, 0.3

Figures = dict[str, Any]


class Bench:
    """Runs the clients, each with its Python, against one server."""

    def __init__(self, server: LocalServer, pythons: dict[str, str], bytecode: str) -> None:
        # By this name: the official client takes no other host for local, and wants TLS for a token then.
        self.url = server.url.replace("127.0.0.1", "localhost") + ";user_id=bench"
        self.clients = list(pythons)
        self._pythons = pythons
        self._environment = os.environ | {"PYTHONPYCACHEPREFIX": bytecode}
        self._environment.pop("PYTHONDONTWRITEBYTECODE", None)

    def measure(self, case: str, client: str, **arguments: object) -> Figures:
        """One case of one client in a fresh process."""
        with self.process(case, client, **arguments) as (process, started):
            output, _ = process.communicate(timeout=TIMEOUT_S)
            wall_s = time.perf_counter() - started
        if process.returncode:
            raise RuntimeError(f"{client}: the case {case!r} failed with exit status {process.returncode}")
        figures: Figures = json.loads(output.splitlines()[-1])
        return figures | {"process_s": wall_s}

    @contextlib.contextmanager
    def process(self, case: str, client: str, **arguments: object) -> Iterator[tuple["subprocess.Popen[str]", float]]:
        """A client that does one case; killed at the end if it still runs."""
        given = {"case": case, "client": client, "url": self.url} | arguments
        command = [self._pythons[client], str(CLIENT), json.dumps(given)]
        started = time.perf_counter()
        with subprocess.Popen(command, env=self._environment, stdout=subprocess.PIPE, text=True) as process:
            try:
                yield process, started
            finally:
                process.kill()

    def best(self, case: str, key: str, runs: int = RUNS, **arguments: object) -> dict[str, Figures]:
        """Each client's run with the least of ``key``."""
        found: dict[str, list[Figures]] = {client: [] for client in self.clients}
        for _ in range(runs):
            for client in self.clients:
                found[client].append(self.measure(case, client, **arguments))
        return {client: min(runs, key=lambda figures: figures[key]) for client, runs in found.items()}


def compared(work: str, unit: str, values: dict[str, float], target: float, *, higher: bool = False) -> list[Row]:
    """A row for each peer."""
    peers = [client for client in values if client != OURS] or [None]
    return [
        Row(work, unit, values[OURS], peer, None if peer is None else values[peer], higher, target) for peer in peers
    ]


def start_rows(bench: Bench, notes: list[str]) -> list[Row]:
    """A process that starts, connects and has its first row; what the interpreter needs is part of it."""
    for client in bench.clients:  # compiles the bytecode, and warms the server
        bench.measure("start", client)
    times: dict[str, list[float]] = {client: [] for client in bench.clients}
    memory: dict[str, list[float]] = {client: [] for client in bench.clients}
    for _ in range(3 * RUNS):
        for client in bench.clients:
            with bench.process("start", client) as (process, started):
                assert process.stdout is not None
                line = process.stdout.readline()
                times[client].append(time.perf_counter() - started)
                memory[client].append(json.loads(line)["rss_mb"])
                process.wait()
    return [
        *compared("cold start to first row", "s", {client: min(runs) for client, runs in times.items()}, START_S),
        *compared("resident memory then", "MB", {client: min(runs) for client, runs in memory.items()}, START_MB),
    ]


def row_rows(bench: Bench, notes: list[str]) -> list[Row]:
    """Python rows of five columns: a long, a double, a text, a date, a timestamp."""
    found = bench.best("rows", "cpu_s", runs=3, count=ROWS)
    notes.append(
        "1M rows by the clock: " + ", ".join(f"{client} {figures['wall_s']:.2f} s" for client, figures in found.items())
    )
    values = {client: figures["cpu_s"] for client, figures in found.items()}
    return compared("1M x 5 to Python rows, client CPU", "s", values, ROWS_CPU_S)


def read_rows(bench: Bench, notes: list[str]) -> list[Row]:
    """The growth of memory while ten million rows of five numbers are read: ours in batches, the peers' whole."""
    ways = [(OURS, "iter_batches"), (OFFICIAL, "toArrow"), (OFFICIAL, "toPandas"), (RUST, "toArrow")]
    found = {
        (client, method): min(
            (bench.measure("read", client, count=READ_ROWS, method=method) for _ in range(2)),
            key=lambda figures: figures["peak_mb"],
        )
        for client, method in ways
        if client in bench.clients
    }
    notes += [
        f"10M rows, {client} {method}: {figures['wall_s']:.1f} s by the clock"
        for (client, method), figures in found.items()
    ]
    ours = found.pop((OURS, "iter_batches"))["peak_mb"]
    return [
        Row("10M x 5 read, growth of memory", "MB", ours, f"{client} {method}", figures["peak_mb"], False, READ_MB)
        for (client, method), figures in found.items()
    ]


def plan_rows(bench: Bench, notes: list[str]) -> list[Row]:
    """A select of a thousand expressions."""
    found = bench.best("plan", "cpu_s")
    if RUST in found:
        notes.append(f"{RUST} encodes out of reach: its figure has the CPU time of one question for the schema in it")
    values = {client: figures["cpu_s"] * 1e3 for client, figures in found.items()}
    return compared("1,000-expression select, build and encode", "ms", values, PLAN_MS)


def cut_rows(bench: Bench, notes: list[str]) -> list[Row]:
    """A result through a connection that is reset again and again: 1 if it is exact."""
    port = int(bench.url.partition("/;")[0].rpartition(":")[2])
    values = {}
    for client in bench.clients:
        proxy = CuttingProxy(port, CUT_AFTER_BYTES, CUTS)
        with contextlib.closing(proxy):
            url = bench.url.replace(f":{port}/", f":{proxy.port}/")
            figures = bench.measure("cut", client, url=url, count=CUT_ROWS)
        values[client] = float(figures["exact"])
        outcome = "exact" if figures["exact"] else f"failed: {figures['error'] or 'wrong rows'}"
        notes.append(f"connection cut {proxy.cuts} times, {client}: {outcome}")
    return compared(f"1M x 5 through {CUTS} cuts (1: exact)", "", values, 1.0, higher=True)


def interrupt_rows(bench: Bench, notes: list[str]) -> list[Row]:
    """From Ctrl-C to the client's next statement."""
    values = {}
    for client in bench.clients:
        # Once where the server works on: it has no core left for another run. Such clients come last.
        runs = [interrupt(bench, client) for _ in range(1 if client == RUST else 3)]
        values[client], outcome = min(runs)
        shown = f"more than {PATIENCE_S:.0f} s" if values[client] >= PATIENCE_S else f"{values[client]:.2f} s"
        notes.append(f"Ctrl-C, {client}: {shown}; the operation on the server {outcome}")
    return compared("Ctrl-C to return", "s", values, INTERRUPT_S)


def interrupt(bench: Bench, client: str) -> tuple[float, str]:
    """How long a client takes to return, and what becomes of its operation."""
    with bench.process("interrupted", client, query=ENDLESS) as (process, _):
        assert process.stdout is not None
        session_id = json.loads(process.stdout.readline())["session_id"]
        with sc.connect(f"{bench.url};session_id={session_id}") as session:

            def runs(expected: bool, patience_s: float) -> bool:
                deadline = time.monotonic() + patience_s
                while ("RUNNING" in operations(session).values()) is not expected and time.monotonic() < deadline:
                    time.sleep(0.05)
                return "RUNNING" in operations(session).values()

            seen = runs(True, 5.0)
            time.sleep(1.0)  # well under way
            sent = time.perf_counter()
            process.send_signal(signal.SIGINT)
            with selectors.DefaultSelector() as ready:
                ready.register(process.stdout, selectors.EVENT_READ)
                ready.select(timeout=PATIENCE_S)
            taken_s = time.perf_counter() - sent
            if taken_s < PATIENCE_S and process.stdout.readline().strip() != "{}":
                raise RuntimeError(f"{client}: ended by Ctrl-C, not returned")
            outcome = "is not visible" if not seen else "ran on" if runs(False, 2.0) else "was ended"
            process.kill()
            session.interrupt_all()
    return min(taken_s, PATIENCE_S), outcome


WORKS = {
    "start": start_rows,
    "rows": row_rows,
    "read": read_rows,
    "plan": plan_rows,
    "cut": cut_rows,
    "interrupt": interrupt_rows,
}


def main(chosen: list[str]) -> None:
    """Measure everything, or what was chosen, and report it."""
    notes: list[str] = []
    pythons = {OURS: sys.executable, OFFICIAL: sys.executable}
    try:
        pythons[RUST] = str(environment(RUST, (f"{RUST}=={RUST_VERSION}",), pinned=False))
    except RuntimeError as error:
        notes.append(f"{RUST} is left out: {error}")
    server = start_server({"spark.master": "local[2]", "spark.driver.memory": "3g"})
    try:
        with tempfile.TemporaryDirectory() as bytecode:
            bench = Bench(server, pythons, bytecode)
            rows = [row for name in chosen for row in WORKS[name](bench, notes)]
    finally:
        server.stop()
    report("connect", rows, notes)


if __name__ == "__main__":
    main(sys.argv[1:] or list(WORKS))
