"""What importing costs, and that the public names are the ones that ``__all__`` says."""

import importlib
import json
import os
import pkgutil
import resource
import subprocess
import sys

import pytest

HEAVY = ("grpc", "numpy", "pandas", "polars", "prometheus_client", "pyarrow", "pyspark", "ray", "rich", "typer")
BUDGET_S = 0.050
RUNS = 7

# Every public package, with the modules in it whose names may be public.
PUBLIC_MODULES = {
    "solstice": {"cli", "connect", "errors", "pipeline", "pubsub", "testing"},
    "solstice.connect": {"errors", "functions", "types"},
    "solstice.pipeline": set(),
    "solstice.pubsub": set(),
    "solstice.testing": set(),
}


def run(code, *flags):
    environ = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
    command = [sys.executable, *flags, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environ, timeout=60).stdout


def cpu_s(code):
    """The CPU time of one fresh interpreter, user and system."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run(code)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


@pytest.mark.parametrize("module", [*PUBLIC_MODULES, "solstice.errors", "solstice._core.arrow"])
def test_importing_loads_no_optional_package(module):
    loaded = json.loads(run(f"import json, sys, {module}; sys.stdout.write(json.dumps(list(sys.modules)))"))
    assert module in loaded
    assert not {name.partition(".")[0] for name in loaded} & set(HEAVY)


def test_importing_solstice_loads_none_of_its_parts():
    loaded = json.loads(run("import json, sys, solstice; sys.stdout.write(json.dumps(list(sys.modules)))"))
    assert {name for name in loaded if name.startswith("solstice")} == {"solstice", "solstice.errors"}


def test_importing_solstice_costs_little_more_than_an_empty_interpreter():
    run("import solstice")  # writes the bytecode cache, which is no cost of a later import
    empty, full = [], []
    for _ in range(RUNS):
        empty.append(cpu_s("pass"))
        full.append(cpu_s("import solstice"))
    # Other processes can only add to a measurement, so the least one is the nearest to the truth.
    assert min(full) - min(empty) < BUDGET_S


@pytest.mark.parametrize("package", PUBLIC_MODULES)
def test_every_public_name_resolves_and_is_listed_by_dir(package):
    module = importlib.import_module(package)
    assert len(set(module.__all__)) == len(module.__all__)
    for name in module.__all__:
        assert getattr(module, name) is not None, name
    assert set(module.__all__) <= set(dir(module))


@pytest.mark.parametrize("package", PUBLIC_MODULES)
def test_a_star_import_gives_exactly_the_public_names(package):
    code = f"before = set(globals()); from {package} import *; import json, sys\n"
    code += "sys.stdout.write(json.dumps(sorted(set(globals()) - before - {'before', 'json', 'sys'})))"
    assert json.loads(run(code)) == sorted(importlib.import_module(package).__all__)


@pytest.mark.parametrize("package", PUBLIC_MODULES)
def test_every_other_module_of_a_public_package_is_private_by_name(package):
    path = importlib.import_module(package).__path__
    public = {name for _, name, _ in pkgutil.iter_modules(path) if not name.startswith("_")}
    assert public <= PUBLIC_MODULES[package]


@pytest.mark.parametrize("package", PUBLIC_MODULES)
def test_an_unknown_name_is_an_attribute_error(package):
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = importlib.import_module(package).no_such_name
