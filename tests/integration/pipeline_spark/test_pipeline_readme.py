"""The job of the README, as it stands there: other places and runners are `--set`, and no other code."""

import contextlib
import json
import os
import re
import secrets
import subprocess
import sys
import textwrap
import uuid
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from object_store import s3_bucket
from solstice._core.java import spark_environment

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(600)]

README = Path(__file__).parents[3] / "README.md"
ROWS = 1000
SCORE = """
import pyarrow as pa
import pyarrow.compute as pc

def score(clicks: pa.Table) -> pa.Table:
    return clicks.append_column("score", pc.multiply(clicks["id"], 2))
"""

# One Spark for all runs; each begins where a user's first one does, in a folder with events and nothing else.
RUNS = """
import json, shutil, sys
from pathlib import Path
from pyspark.sql import SparkSession
from solstice.cli._app import build_app, run

settings, rows = json.loads(sys.argv[1]), int(sys.argv[2])
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.range(0, rows, 1, 3).write.parquet("events")
for place, options in settings.items():
    assert run(build_app(rich_help=False), ["run", "job.py", "--quiet", *options]) == 0, place
    Path(place).mkdir()
    for folder in ("out", ".solstice"):
        shutil.move(folder, place)
spark.stop()
"""


SOMEBODY_ELSE = """
import ray
ray.init(num_cpus=1, include_dashboard=False, object_store_memory=100 << 20, log_to_driver=False)
print("started", flush=True)
input()
"""


@contextlib.contextmanager
def a_cluster_of_somebody_else():
    """Ray on this machine that does not know the token."""
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    with subprocess.Popen(
        [sys.executable, "-c", SOMEBODY_ELSE],
        env=os.environ | token,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout.readline() == "started\n"
        yield
        other.communicate("\n", timeout=60)


def job_of_the_readme() -> str:
    after = README.read_text().partition("**A job of stages**")[2]
    return SCORE + textwrap.dedent(re.search(r"(?:^(?:    .*)?\n)+", after.partition("\n\n")[2], re.MULTILINE)[0])


def test_the_job_of_the_readme_runs_unchanged_on_kafka_on_ray_and_on_both(tmp_path, kafka_broker):
    (tmp_path / "job.py").write_text(job_of_the_readme())

    def kafka() -> list[str]:
        return ["--set", f"queue={kafka_broker.url}/clicks-{uuid.uuid4().hex[:8]}?partitions=2"]

    def payloads(url: str) -> list[str]:
        return ["--set", f"payloads={url}"]

    ray = ["--set", "runner=ray"]
    # This Spark is there before Ray is, and its tasks store payloads there: it has to have been told the token.
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    with s3_bucket() as url, a_cluster_of_somebody_else():
        places = {
            "default": [],
            "kafka": kafka(),
            "ray": [*ray, *payloads("ray://clicks"), "--fresh"],
            "kafka-ray-s3": [*kafka(), *ray, *payloads(url % "clicks")],
        }
        done = subprocess.run(
            [sys.executable, "-c", RUNS, json.dumps(places), str(ROWS)],
            cwd=tmp_path,
            env=os.environ | spark_environment() | token,
            capture_output=True,
            text=True,
            timeout=500,
        )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "Failed to connect to GCS" not in done.stderr  # a task of Spark has left the cluster when it is over
    for place, options in places.items():
        rows = ds.dataset(tmp_path / place / "out", format="parquet").to_table().to_pylist()
        assert sorted((row["id"], row["score"]) for row in rows) == [(n, 2 * n) for n in range(ROWS)], place
        state = tmp_path / place / ".solstice" / "clicks"
        started = json.loads((state / "events.jsonl").read_text().splitlines()[0])
        assert started["runner"] == ("ray" if ray[1] in options else "local")
        assert started["queue"].startswith("kafka://" if "kafka" in place else "sqlite://")
        assert not list(state.rglob("*.arrow"))
