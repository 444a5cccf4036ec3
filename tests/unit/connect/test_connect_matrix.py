"""What `make test-matrix` gives to the environments of other servers."""

import os
import subprocess
import sys

import pytest

from connect_matrix import servers
from solstice._core import java

BARE = [sys.executable, "-S"]  # without the packages that are installed here


@pytest.fixture(autouse=True)
def nothing_inherited(monkeypatch):
    monkeypatch.delenv("PYTHONPATH", raising=False)


def test_an_environment_without_this_package_has_it_from_here():
    code = "import solstice.connect._local, connect_matrix, solstice._native"
    subprocess.run([*BARE, "-c", code], env=os.environ | servers.VARIABLES, check=True)


def test_a_server_starts_with_this_package(monkeypatch, tmp_path):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nshift\nexec {" ".join(BARE)} {tmp_path}/serve.py "$@"\n')
    python.chmod(0o755)
    (tmp_path / "serve.py").write_text('import solstice.connect._local\nprint(\'{"url": "sc://here"}\')')
    monkeypatch.setattr(servers, "server_environment", lambda name: python)
    server = servers.MatrixServer("spark-4.0", {})
    assert server.url == "sc://here"
    server.stop()


def test_tests_run_on_the_java_of_their_environment(monkeypatch):
    monkeypatch.setenv("JAVA_HOME", "/usr/lib/jvm/too-new")
    assert servers.own_java(sys.executable) == str(java._bundled().home)
