import subprocess
import sys

import solstice.connect as sc


def test_the_public_names_are_pinned():
    assert sc.__all__ == [
        "AsyncDataFrame",
        "AsyncSession",
        "Column",
        "DataFrame",
        "GroupedData",
        "Observation",
        "Row",
        "Session",
        "SparkSession",
        "StorageLevel",
        "Window",
        "WindowSpec",
        "connect",
        "connect_async",
        "errors",
        "functions",
        "local",
        "types",
    ]
    assert all(hasattr(sc, name) for name in sc.__all__)


def test_importing_the_package_loads_no_optional_dependency():
    heavy = ["grpc", "google.protobuf", "pyarrow", "polars", "pandas", "numpy", "pyspark"]
    script = f"import sys, solstice.connect; print([name for name in {heavy!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert result.stdout.strip() == "[]"


def test_no_module_of_the_client_imports_pyspark():
    script = """
import importlib, pathlib, sys
import solstice.connect
root = pathlib.Path(solstice.connect.__file__).parent
for file in root.rglob("*.py"):
    parts = file.relative_to(root).with_suffix("").parts
    importlib.import_module(".".join(["solstice.connect", *(part for part in parts if part != "__init__")]))
from solstice.connect._protocol import load_protocol
load_protocol()
print("pyspark" in sys.modules)
"""
    result = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert result.stdout.strip() == "False"
