"""Runs the integration tests against each server and prints a table; the exit status is 1 if one went otherwise."""

import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from rich.console import Console
from rich.table import Table

from connect_matrix.servers import SERVERS, VARIABLE, VARIABLES, own_java, server_environment, unsupported
from environments import ROOT, environment

CONNECT = ["tests/integration/connect"]
# With the pyspark of that version in the environment of the tests themselves.
PARTS = ("pubsub", "pubsub_crash", "pipeline", "pipeline_spark")
WHOLE = {"spark-4.2": [f"tests/integration/{part}" for part in PARTS]}
TEST_TIMEOUT_S = 120


def run(python, paths, expected=(), **variables):
    """Passed, unsupported and failed tests, and how long it took; an expected test that did not run has failed."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        options = ["-q", "--timeout", str(TEST_TIMEOUT_S), f"--junitxml={report}", "-o", "junit_family=xunit1"]
        environ = os.environ | VARIABLES | variables
        subprocess.run([python, "-m", "pytest", *options, *paths], cwd=ROOT, env=environ, check=False)
        cases = list(ElementTree.parse(report).iter("testcase")) if report.exists() else []
    missing = set(expected) - {f"{Path(case.get('file', '')).name}::{case.get('name')}" for case in cases}
    for test in sorted(missing):
        sys.stdout.write(f"unsupported.toml names a test that there is not: {test}\n")
    failed = sum(case.find("failure") is not None or case.find("error") is not None for case in cases)
    unsupported = sum(case.find("skipped") is not None for case in cases)
    passed = len(cases) - failed - unsupported
    return passed, unsupported, failed + len(missing) + (not cases), time.monotonic() - started


def whole_environment(name):
    """Everything that the tests need, with the pyspark and the Java of a server."""
    replaced = {requirement.partition("==")[0]: requirement for requirement in SERVERS[name][1]}
    pins = (ROOT / "constraints.txt").read_text().split()
    return environment(f"{name}-whole", tuple(replaced.get(pin.partition("==")[0], pin) for pin in pins), pinned=False)


def main(names):
    """Run the chosen servers, or all."""
    rows = []
    for name in names or SERVERS:
        if name not in SERVERS:
            sys.exit(f"there is no server {name!r} in the matrix, only: {', '.join(SERVERS)}")
        server_environment(name)
        rows.append((name, "connect", *run(sys.executable, CONNECT, unsupported(name), **{VARIABLE: name})))
        if name in WHOLE:
            python = whole_environment(name)
            variables = {"PYSPARK_PYTHON": str(python), "JAVA_HOME": own_java(python)}
            rows.append((name, "pubsub, pipeline", *run(python, WHOLE[name], **variables)))
    table = Table(title="test-matrix", title_justify="left")
    for heading in ("server", "tests", "passed", "unsupported", "failed", "seconds"):
        table.add_column(heading, justify="left" if heading in ("server", "tests") else "right")
    for *texts, seconds in rows:
        table.add_row(*map(str, texts), f"{seconds:.0f}")
    Console(width=120).print(table)
    sys.exit(int(any(row[4] for row in rows)))


if __name__ == "__main__":
    main(sys.argv[1:])
