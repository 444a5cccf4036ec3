"""The wheel works in an empty environment outside the tree."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from solstice import _native

ROOT = Path(__file__).resolve().parents[3]
BIN = Path(sys.executable).parent


def run(*command: str | Path, cwd: Path, **environ: str) -> str:
    # What points to the tree or its environment must not reach the other one.
    hidden = ("PYTHONPATH", "VIRTUAL_ENV", "MAKEFLAGS", "MAKELEVEL", "PYO3_PYTHON")
    clean = {name: value for name, value in os.environ.items() if name not in hidden}
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, env={**clean, **environ}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with nothing in it but the wheel and the base dependencies."""
    home = tmp_path_factory.mktemp("wheel")
    run("make", "wheel", f"DIST={home / 'dist'}", cwd=ROOT)
    (wheel,) = (home / "dist").glob("*.whl")
    run(BIN / "uv", "venv", "--quiet", "--python", sys.executable, home / "env", cwd=home)
    run(
        *(BIN / "uv", "pip", "install", "--quiet", "--python", home / "env" / "bin" / "python", wheel),
        cwd=home,
        UV_CONSTRAINT=str(ROOT / "constraints.txt"),
    )
    return home / "env"


@pytest.mark.slow
def test_doctor_finds_the_installed_wheel_healthy(environment: Path, tmp_path: Path) -> None:
    output = run(environment / "bin" / "solstice", "doctor", "--no-spark", "--json", cwd=tmp_path)
    report = json.loads(output)
    checks = {check["name"]: check for check in report["checks"]}
    assert report["ok"]
    assert f"({environment}/" in checks["native core"]["detail"]
    assert "release build" in checks["native core"]["detail"]
    assert checks["extra spark"]["status"] == "note"
    assert "solstice-spark[spark]" in checks["extra spark"]["fix"]


@pytest.mark.slow
def test_the_native_core_of_the_wheel_runs_and_is_the_one_of_this_tree(environment: Path, tmp_path: Path) -> None:
    script = """
import json, sys
from solstice import _native, errors
try:
    _native.provoke_panic("on purpose")
except errors.NativeError as error:
    print(json.dumps({"file": _native.__file__, "sources": _native.source_fingerprint(), "error": str(error)}))
"""
    told = json.loads(run(environment / "bin" / "python", "-c", script, cwd=tmp_path))
    assert Path(told["file"]).is_relative_to(environment)
    assert told["sources"] == _native.source_fingerprint()
    assert "on purpose" in told["error"]


@pytest.mark.slow
def test_the_wheel_carries_the_types_the_licence_and_the_packages_that_spark_looks_for(environment: Path) -> None:
    (site,) = environment.glob("lib/python*/site-packages")
    for name in ("solstice/py.typed", "solstice/_native.pyi", "pyspark_pubsub", "pyspark_solstice"):
        assert (site / name).exists(), name
    assert list(site.glob("solstice_spark-*.dist-info/licenses/LICENSE"))
