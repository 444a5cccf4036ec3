"""What make does on a machine that lacks something, and when it builds the native core again."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hidden_commands import path_without

ROOT = Path(__file__).resolve().parents[3]
NATIVE = Path("python", "solstice", "_native.abi3.so")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of what make looks at, with nothing installed or built in it."""
    copy = tmp_path / "tree"
    copy.mkdir()
    for name in ("Makefile", "Cargo.toml", "Cargo.lock", "constraints.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, copy / name)
    shutil.copytree(ROOT / "crates", copy / "crates")
    return copy


@pytest.fixture
def built_tree(tree: Path) -> Path:
    """The same after a build: the environment and the core are newer than every source."""
    (tree / NATIVE).parent.mkdir(parents=True)
    (tree / ".venv").mkdir()
    for product in (tree / ".venv" / ".installed", tree / NATIVE):
        product.touch()
    an_hour_ago = time.time() - 3600
    for source in (tree, *tree.rglob("*")):
        if source.name not in (".installed", NATIVE.name):
            os.utime(source, (an_hour_ago, an_hour_ago))
    return tree


def make(tree: Path, *arguments: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    # This test may itself run below make, whose flags would reach ours through the environment.
    clean = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    return subprocess.run(
        ["make", "--no-print-directory", *arguments],
        cwd=tree,
        env={**clean, **environ},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def complaint(tree: Path, *arguments: str, **environ: str) -> str:
    """The one line in which make says what is missing, before it has done anything."""
    done = make(tree, "build", *arguments, **environ)
    assert done.returncode == 2, done.stdout
    assert done.stdout == ""
    assert not (tree / ".venv").exists()
    line, stopped = done.stderr.splitlines()
    assert stopped.startswith("make: ***")
    return line


def would_build(tree: Path) -> bool:
    done = make(tree, "--dry-run", "build", f"PYTHON={sys.executable}")
    assert done.returncode == 0, done.stderr
    return "maturin develop" in done.stdout


def script(file: Path, text: str) -> str:
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return str(file)


def test_a_python_that_is_too_old_is_named_with_the_fix(tree: Path, tmp_path: Path) -> None:
    old = script(tmp_path / "python3.9", "echo 3.9")
    line = complaint(tree, f"PYTHON={old}")
    assert line.startswith(f"Python 3.11 or newer is needed, found {old} 3.9.")
    assert "make PYTHON=" in line


def test_a_machine_without_any_python_is_told_how_to_get_one(tree: Path, tmp_path: Path) -> None:
    pythons = [f"python{version}" for version in ("", "3", "3.11", "3.12", "3.13", "3.14")]
    line = complaint(tree, PATH=path_without(tmp_path / "bin", *pythons))
    assert line.startswith("Python 3.11 or newer is needed, found python3 that does not run.")
    assert "apt-get install" in line


def test_a_machine_without_cargo_is_told_how_to_get_it(tree: Path, tmp_path: Path) -> None:
    line = complaint(tree, f"PYTHON={sys.executable}", PATH=path_without(tmp_path / "bin", "cargo"))
    assert "is needed, found none. Get it with: curl" in line
    assert line.startswith("cargo 1.")


def test_a_cargo_that_is_too_old_is_named_with_the_fix(tree: Path, tmp_path: Path) -> None:
    path = path_without(tmp_path / "bin", "cargo")
    script(tmp_path / "bin" / "cargo", "echo 'cargo 1.63.0 (fd9c4297c 2022-07-01)'")
    line = complaint(tree, f"PYTHON={sys.executable}", PATH=path)
    assert "found 1.63.0. Get it with: curl" in line


def test_a_machine_without_a_c_compiler_is_told_how_to_get_one(tree: Path, tmp_path: Path) -> None:
    line = complaint(tree, f"PYTHON={sys.executable}", PATH=path_without(tmp_path / "bin", "cc"))
    assert line == "A C compiler is needed, found none. Get it with: apt-get install gcc libc6-dev"


def test_a_built_core_is_not_built_again(built_tree: Path) -> None:
    assert not would_build(built_tree)


@pytest.mark.parametrize(
    "source", ["crates/core/src/lib.rs", "crates/py/src/lib.rs", "crates/py/build.rs", "crates/core/Cargo.toml"]
)
def test_a_changed_source_is_built(built_tree: Path, source: str) -> None:
    (built_tree / source).touch()
    assert would_build(built_tree)


@pytest.mark.parametrize("name", ["Cargo.toml", "Cargo.lock", "pyproject.toml", "constraints.txt"])
def test_a_changed_manifest_or_lock_is_built(built_tree: Path, name: str) -> None:
    (built_tree / name).touch()
    assert would_build(built_tree)


def test_a_deleted_source_is_built(built_tree: Path) -> None:
    (built_tree / "crates" / "core" / "src" / "logging.rs").unlink()
    assert would_build(built_tree)


def test_a_deleted_core_is_built(built_tree: Path) -> None:
    (built_tree / NATIVE).unlink()
    assert would_build(built_tree)


def test_help_names_every_target_that_is_for_people(tree: Path) -> None:
    listed = make(tree, "help").stdout
    for target in (
        *("demo", "test", "build", "lint", "types", "fmt", "test-unit", "test-integration"),
        *("test-rust", "wheel", "lock", "clean", "help"),
    ):
        assert f"\n  {target} " in listed


def test_ci_runs_exactly_make_test(tmp_path: Path) -> None:
    path = path_without(tmp_path / "bin", "make")
    script(tmp_path / "bin" / "make", 'echo "make $*"')
    done = subprocess.run(
        [ROOT / ".ci" / "run"], env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "make test\n"
