"""The pins: complete, and without addresses."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    matches = [re.fullmatch(r"([A-Za-z0-9._-]+)==([A-Za-z0-9.+!]+)", line) for line in lines]
    assert all(matches), [line for line, match in zip(lines, matches, strict=True) if match is None]
    return {normal(match[1]): match[2] for match in matches if match is not None}


def test_every_declared_dependency_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    declared = [
        *project["project"]["dependencies"],
        *(item for extra in project["project"]["optional-dependencies"].values() for item in extra),
        *(item for group in project["dependency-groups"].values() for item in group),
    ]
    names = {normal(re.split(r"[\s\[<>=!~;]", requirement)[0]) for requirement in declared} - {"solstice-spark"}
    assert names - set(pins()) == set(), "run make lock"


def test_no_build_file_names_a_package_index() -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "Cargo.toml", ".ci/run"):
        text = (ROOT / name).read_text()
        assert not re.search(r"index[-_]url|/simple|find[-_]links|--index", text), name


def test_the_lock_of_the_native_core_takes_crates_from_the_default_registry_only() -> None:
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())
    sources = {package.get("source") for package in lock["package"]}
    assert sources == {None, "registry+https://github.com/rust-lang/crates.io-index"}
