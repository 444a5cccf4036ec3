import subprocess
import sys

import solstice.connect as sc


def test_the_public_names_are_pinned():
    assert sc.__all__ == ["DataFrame", "Row", "Session", "connect", "local", "types"]
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
for file in pathlib.Path(solstice.connect.__file__).parent.glob("*.py"):
    importlib.import_module(f"solstice.connect.{file.stem}" if file.stem != "__init__" else "solstice.connect")
from solstice.connect._protocol import load_protocol
load_protocol()
print("pyspark" in sys.modules)
"""
    result = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert result.stdout.strip() == "False"
