"""The gates of `make lint types` fail on what they are for. (clippy takes too long to be tried here.)"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
BIN = Path(sys.executable).parent
UNTYPED = 'def untyped(value):\n    """Pass it on."""\n    return value\n'


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(ROOT / "python", tmp_path / "python", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    return tmp_path


def run(tree: Path, tool: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [BIN / tool, *arguments],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": "python", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def append(tree: Path, module: str, code: str) -> None:
    with (tree / "python" / module).open("a") as file:
        file.write("\n\n" + code)


@pytest.mark.parametrize(
    ("module", "imported"),
    [
        ("solstice/connect/__init__.py", "solstice.pipeline"),
        ("solstice/connect/__init__.py", "solstice.pubsub"),
        ("solstice/pubsub/__init__.py", "solstice.connect"),
        ("solstice/pubsub/__init__.py", "solstice.pipeline"),
        ("solstice/pipeline/__init__.py", "solstice.connect"),
        ("solstice/_core/__init__.py", "solstice.pubsub"),
        ("solstice/errors.py", "solstice._core"),
        ("solstice/pipeline/__init__.py", "solstice.cli"),
    ],
)
def test_an_import_against_the_direction_is_refused_even_inside_a_function(
    tree: Path, module: str, imported: str
) -> None:
    append(tree, module, f"def _sideways() -> None:\n    import {imported}\n")
    done = run(tree, "lint-imports", "--no-logo", "--no-cache")
    assert done.returncode == 1, done.stdout
    assert f"is not allowed to import {imported}" in done.stdout


def test_pipeline_may_use_the_public_pubsub_but_none_of_its_modules(tree: Path) -> None:
    append(tree, "solstice/pipeline/__init__.py", "def _public() -> None:\n    import solstice.pubsub\n")
    assert run(tree, "lint-imports", "--no-logo", "--no-cache").returncode == 0
    private = min(path.stem for path in (tree / "python" / "solstice" / "pubsub").glob("_[a-z]*.py"))
    append(tree, "solstice/pipeline/__init__.py", f"def _private() -> None:\n    import solstice.pubsub.{private}\n")
    done = run(tree, "lint-imports", "--no-logo", "--no-cache")
    assert done.returncode == 1, done.stdout
    assert f"solstice.pipeline is not allowed to import solstice.pubsub.{private}" in done.stdout


def test_a_package_without_a_place_in_the_layers_is_refused(tree: Path) -> None:
    (tree / "python" / "solstice" / "utilities.py").write_text('"""Anything."""\n')
    done = run(tree, "lint-imports", "--no-logo", "--no-cache")
    assert done.returncode == 1, done.stdout
    assert "utilities" in done.stdout


def test_an_untyped_public_function_is_refused_by_both_gates(tree: Path) -> None:
    append(tree, "solstice/errors.py", UNTYPED)
    linted = run(tree, "ruff", "check", "--no-cache", "python/solstice/errors.py")
    assert linted.returncode == 1
    assert "ANN201" in linted.stdout
    typed = run(tree, "mypy", "python/solstice/errors.py")
    assert typed.returncode == 1
    assert "[no-untyped-def]" in typed.stdout
