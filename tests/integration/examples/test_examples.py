"""The examples run as a user would run them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from solstice._core.java import spark_environment

pytestmark = pytest.mark.spark

EXAMPLES = Path(__file__).parents[3] / "examples"
EXPECTED = {
    "call_api_job.py": ["asked for 190 users, 1 split given up", "the service does not like 13"],
    "pubsub_exactly_once.py": ["the query died once: True", "stored 10000 messages in 10000 rows"],
    "pubsub_json.py": ["CZ 3000 orders 7500.00", "DE 3000 orders 7500.00", "PL 3000 orders 7500.00"],
    "pubsub_parquet.py": ["stored 10000 events"],
    "pubsub_sink.py": [
        "published 5000 orders as a batch",
        "published 5000 orders as a stream",
        "the stream had 5000 orders of 6248750.0",
    ],
    "pull_publish.py": ["published 10000", "sum 49995000 acknowledged 10000"],
    "score_job.py": ["scored 100000 rows, 0 splits given up", "stored 100000 rows"],
    "ask_connect.py": ["columns ['id', 'kind']", "166833", "rows 1000"],
}


def test_every_example_is_tried() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(EXPECTED)


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_an_example_prints_what_it_promises(name: str, tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, str(EXAMPLES / name)],
        cwd=tmp_path,
        env=os.environ | spark_environment(),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-4_000:]
    for line in EXPECTED[name]:
        assert line in run.stdout
