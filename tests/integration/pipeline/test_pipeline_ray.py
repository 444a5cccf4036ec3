"""Workers as actors of a real Ray cluster of this machine; one start for all, because it takes seconds."""

import os
import subprocess
import sys
from pathlib import Path

UNIT = Path(__file__).parents[2] / "unit" / "pipeline"

JOB = """
import os, sys, time
sys.path.insert(0, {unit!r})
from pathlib import Path
from pipeline_support import TableSource, make_job, output_ids, sink

root = Path({root!r})

def odd(table, ctx):
    first = table["id"][0].as_py()
    if first == 20 and ctx.attempt == 1:
        os.kill(os.getpid(), 9)
    if first == 30:
        raise ValueError("thirty")
    if first == 40 and ctx.attempt == 1:
        time.sleep(100)
    return table

job = make_job(root, TableSource(splits=12), runner="ray")
job.stages[0].map(odd, workers=2, retries=1, timeout_s=4.0, rate_limit="50 splits/s").sink(sink(root))
result = job.run()
letters = sorted((letter.message.split_id, letter.error.partition(":")[0]) for letter in job.dead_letters())
assert output_ids(root) == [n for n in range(120) if not 30 <= n < 40]
print("ended", result.stage("sink").settled, result.dead, letters)
print("token", os.environ["RAY_AUTH_MODE"])
"""


def test_a_job_runs_on_ray_through_deaths_errors_and_time_outs(tmp_path):
    code = JOB.format(unit=str(UNIT), root=str(tmp_path))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert run.returncode == 0, run.stderr[-4_000:]
    assert "ended 11 1 [('source-b0-p3-s0', 'ValueError')]" in run.stdout
    assert "timeout_s=4" in run.stdout + run.stderr  # Ray shows what its workers say
    assert "token token" in run.stdout
