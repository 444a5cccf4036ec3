import json
import subprocess
import sys

HEAVY = ["pyspark", "pyarrow", "polars", "pandas", "py4j"]


def loaded_after(code: str) -> set[str]:
    script = f"{code}\nimport json, sys\nprint(json.dumps([m for m in {HEAVY} if m in sys.modules]))"
    output = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=60)
    return set(json.loads(output.stdout.splitlines()[-1]))


def test_describing_a_job_loads_nothing_heavy():
    code = (
        "from solstice.pipeline import Job, SparkSourceV2Config, ParquetSink\n"
        "job = Job('x')\n"
        "job.source(SparkSourceV2Config(dataframe_fn=print)).map(len).sink(ParquetSink('out'))"
    )
    assert loaded_after(code) == set()


def test_a_function_travels_without_pyspark():
    code = (
        "from solstice.pipeline import _closures\n"
        "data = _closures.dumps(lambda x: x + y, 'it')\n"
        "y = 2\n"
        "assert _closures.loads(data)"
    )
    assert loaded_after(code) == set()


def test_a_worker_loads_pyarrow_but_not_pyspark():
    assert loaded_after("import solstice.pipeline._worker, solstice.pipeline._worker_process") == set()
