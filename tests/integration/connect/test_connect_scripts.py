"""Scripts that were written for PySpark run with only their imports changed."""

import re
from pathlib import Path

import pytest

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
EXPECTED = {
    "orders": {
        "best": [("ann", "book"), ("bob", "pen"), ("cid", "lamp")],
        "totals": [0.0, 1.6, 21.5],
        "columns": ["country", "book", "lamp", "pen"],
        "types": "double",
        "empty": True,
    },
    "events": {
        "sessions": {"ann": 2, "bob": 1},
        "tags": [("b", 2), ("a", 1)],
        "longest": 2,
        "upper": ["A", "B"],
    },
    "cleaning": {
        "ids": [1, 3, 4],
        "kinds": ["x", "unknown", None],
        "quantile": [3.0],
        "summary": "3",
        "split": 3,
        "suggestion": "UNRESOLVED_COLUMN.WITH_SUGGESTION",
        "cached": True,
        "long": 6,
    },
}


@pytest.fixture(scope="module", autouse=True)
def remote(server):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_REMOTE", server.url)
        patch.setattr(_builder, "_active", [])
        yield
        SparkSession.active().stop()


def with_our_imports(source):
    modules = "|".join(map(re.escape, IMPORTS))
    return re.sub(rf"^(from|import) ({modules})(?= )", lambda m: f"{m[1]} {IMPORTS[m[2]]}", source, flags=re.MULTILINE)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_script_gives_what_it_gives_with_pyspark(name):
    source = with_our_imports((SCRIPTS / f"{name}.py").read_text())
    assert "import pyspark" not in source
    assert "from pyspark" not in source
    namespace = {}
    exec(compile(source, name, "exec"), namespace)
    assert namespace["result"] == EXPECTED[name]
