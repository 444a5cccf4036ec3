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


def test_connecting_loads_dataframes_only_when_its_first_call_is_under_way():
    script = """
import sys
import solstice.connect as sc
from solstice.connect import _transport

def unary(self, method, request, metadata, timeout_s, meanwhile):
    print(method, "solstice.connect._dataframe" in sys.modules)
    meanwhile()
    print("solstice.connect._dataframe" in sys.modules)
    raise SystemExit

_transport.BlockingTransport.unary = unary
sc.connect("sc://localhost:1")
"""
    result = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert result.stdout.split() == ["AnalyzePlan", "False", "True"]


def test_the_protocol_does_without_the_half_of_protobuf_that_is_python():
    script = """
import sys
from solstice.connect._protocol import load_protocol
print(load_protocol().Plan.__name__, "google.protobuf.internal.python_message" in sys.modules)
"""
    result = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert result.stdout.split() == ["Plan", "False"]


def test_the_protocol_works_with_a_protobuf_that_has_no_c_part(monkeypatch):
    script = """
import sys
sys.modules["google._upb._message"] = None
from solstice.connect._protocol import load_protocol
protocol = load_protocol()
plan = protocol.Plan.FromString(protocol.Plan(root={"limit": {"limit": 5}}).SerializeToString())
print(plan.root.limit.limit, protocol.message("spark.connect.Plan") is protocol.Plan)
"""
    monkeypatch.setenv("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION", "python")
    result = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert result.stdout.split() == ["5", "True"]


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
