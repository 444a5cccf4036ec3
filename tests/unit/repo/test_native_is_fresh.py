"""A native core that was built from other sources than these must not pass."""

import shutil
from pathlib import Path

import pytest

from solstice import _native

ROOT = Path(__file__).resolve().parents[3]


def fingerprint(root: Path) -> str:
    """FNV-1a over the names and contents of the sources: the rules of crates/py/build.rs."""
    files = [root / "Cargo.toml", root / "Cargo.lock"]
    files += [path for path in (root / "crates").rglob("*") if path.suffix in (".rs", ".toml") and path.is_file()]
    value = 0xCBF29CE484222325
    for name, path in sorted((path.relative_to(root).as_posix(), path) for path in files):
        for byte in name.encode() + b"\0" + path.read_bytes() + b"\0":
            value = (value ^ byte) * 0x100000001B3 % 2**64
    return f"{value:016x}"


@pytest.fixture
def copied_tree(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "crates", tmp_path / "crates")
    for name in ("Cargo.toml", "Cargo.lock"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_the_installed_core_was_built_from_these_sources() -> None:
    assert _native.source_fingerprint() == fingerprint(ROOT), "the native core is stale: run make build"


def test_the_installed_core_is_a_release_build() -> None:
    assert _native.build_profile() == "release"


def test_one_changed_byte_changes_the_fingerprint(copied_tree: Path) -> None:
    before = fingerprint(copied_tree)
    source = copied_tree / "crates" / "core" / "src" / "lib.rs"
    content = bytearray(source.read_bytes())
    content[-2] ^= 1
    source.write_bytes(content)
    assert fingerprint(copied_tree) != before


def test_a_deleted_and_a_renamed_source_change_the_fingerprint(copied_tree: Path) -> None:
    before = fingerprint(copied_tree)
    source = copied_tree / "crates" / "core" / "src" / "lib.rs"
    renamed = source.rename(source.with_name("other.rs"))
    after_renaming = fingerprint(copied_tree)
    renamed.unlink()
    assert len({before, after_renaming, fingerprint(copied_tree)}) == 3
