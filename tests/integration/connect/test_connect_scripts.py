"""Scripts that were written for PySpark run with only their imports changed."""

import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

from connect_matrix import servers
from solstice.connect import SparkSession, _builder

pytestmark = pytest.mark.spark

SCRIPTS = Path(__file__).parent / "pyspark_scripts"
IMPORTS = {
    "pyspark.sql.functions": "solstice.connect.functions",
    "pyspark.sql.types": "solstice.connect.types",
    "pyspark.sql.window": "solstice.connect",
    "pyspark.errors": "solstice.connect.errors",
    "pyspark.sql": "solstice.connect",
    "pyspark": "solstice.connect",
}
NAMES = sorted(path.stem for path in SCRIPTS.glob("*.py"))
# Each script in a namespace of its own; what it gives goes out pickled. The process just ends: an orderly end waits
# forever for the thread in which PySpark's client would forget a checkpoint.
OFFICIAL = """
import os, pathlib, pickle, sys
results = {}
for path in map(pathlib.Path, sys.argv[2:]):
    namespace = {}
    try:
        exec(compile(path.read_text(), path.stem, "exec"), namespace)
        results[path.stem] = namespace["result"]
    except Exception as error:
        results[path.stem] = f"PySpark's own client fails: {error!r}"
pathlib.Path(sys.argv[1]).write_bytes(pickle.dumps(results))
os._exit(0)
"""


@pytest.fixture(scope="module", autouse=True)
def remote(server):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_REMOTE", server.url)
        patch.setattr(_builder, "_active", [])
        yield
        SparkSession.active().stop()


@pytest.fixture(scope="module")
def official(server, tmp_path_factory):
    """What the scripts give, as they are, with PySpark's own client on the same server."""
    results = tmp_path_factory.mktemp("official") / "results"
    command = [sys.executable, "-c", OFFICIAL, results, *(SCRIPTS / f"{name}.py" for name in NAMES)]
    # It sends a token without TLS to this name only.
    environ = os.environ | {"SPARK_REMOTE": server.url.replace("127.0.0.1", "localhost")}
    ran = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=100, check=False)
    assert ran.returncode == 0, ran.stderr
    return pickle.loads(results.read_bytes())


def with_our_imports(source):
    modules = "|".join(map(re.escape, IMPORTS))
    return re.sub(rf"^(from|import) ({modules})(?= )", lambda m: f"{m[1]} {IMPORTS[m[2]]}", source, flags=re.MULTILINE)


@pytest.mark.parametrize("name", NAMES)
def test_a_script_gives_what_it_gives_with_pyspark(name, official):
    source = with_our_imports((SCRIPTS / f"{name}.py").read_text())
    assert "import pyspark" not in source
    assert "from pyspark" not in source
    namespace = {}
    exec(compile(source, name, "exec"), namespace)
    if isinstance(official[name], str) and servers.VARIABLE in os.environ:
        return  # a server of the matrix for which PySpark's own client is too new
    assert namespace["result"] == official[name]
