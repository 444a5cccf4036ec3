"""What ``solstice doctor`` looks at. Each check is a function that returns findings and never raises."""

import importlib.metadata
import json
import os
import platform
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from solstice._core.java import find_java, spark_environment
from solstice.errors import MachineError

_DISTRIBUTION = "solstice-spark"
_GIB = 1024**3
_SPARK_TIMEOUT_S = 120.0

_NATIVE_PROBE = """
import json
from solstice import _native
print(json.dumps([_native.__version__, _native.build_profile(), _native.source_fingerprint(), _native.__file__]))
"""

_SPARK_PROBE = """
from pyspark.sql import SparkSession
spark = (
    SparkSession.builder.master("local[1]").appName("solstice-doctor")
    .config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
    .config("spark.ui.enabled", "false").getOrCreate()
)
# One row through a Python worker: both the JVM and the interpreter that it starts have to work.
assert spark.sparkContext.parallelize([1, 2], 1).map(lambda row: row + 1).sum() == 5
print(spark.version)
spark.stop()
"""


class Status(StrEnum):
    """How a thing is: a note needs nothing done, a problem does."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at; ``fix`` is one line, there when something can be done."""

    name: str
    status: Status
    detail: str
    fix: str | None = None


@dataclass(frozen=True)
class Limits:
    """What the machine must have free."""

    memory_bytes: int = 1 * _GIB
    shm_bytes: int = 256 * 1024**2
    temp_bytes: int = 1 * _GIB


def examine(limits: Limits, *, start_spark: bool) -> Iterator[Finding]:
    """Look at everything, the quick things first; each finding comes as soon as it is known."""
    yield check_python()
    yield check_native()
    java = check_java()
    yield java
    yield from check_extras()
    yield check_memory(limits.memory_bytes)
    yield check_space(
        "/dev/shm",
        Path("/dev/shm"),
        limits.shm_bytes,
        "Run: mount -o remount,size=1g /dev/shm  (in a container: docker run --shm-size=1g)",
    )
    temp = Path(tempfile.gettempdir())
    yield check_space("temp folder", temp, limits.temp_bytes, f"Free space in {temp}, or set TMPDIR to another folder")
    yield check_loopback()
    if start_spark:
        yield check_spark(java)


def check_python() -> Finding:
    """The interpreter; one that is too old never gets this far."""
    return Finding("python", Status.OK, f"{platform.python_version()} ({sys.executable})")


def check_native() -> Finding:
    """The native core loads, in a process of its own: one that crashes must not take the doctor with it."""
    done = subprocess.run([sys.executable, "-c", _NATIVE_PROBE], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        fix = f"Run: pip install --force-reinstall {_DISTRIBUTION}  (in a source tree: make build)"
        return Finding("native core", Status.PROBLEM, f"does not load: {_last_line(done.stderr)}", fix)
    version, profile, fingerprint, file = json.loads(done.stdout)
    detail = f"{version}, {profile} build of sources {fingerprint} ({file})"
    if profile != "release":
        fix = "Run: make build  (a debug build is many times slower)"
        return Finding("native core", Status.NOTE, detail, fix)
    return Finding("native core", Status.OK, detail)


def check_java() -> Finding:
    """There is a Java for Spark. Without pyspark nobody needs one."""
    try:
        java = find_java()
    except MachineError as error:
        status = Status.PROBLEM if _installed("pyspark") else Status.NOTE
        return Finding("java", status, error.message, error.remedy)
    return Finding("java", Status.OK, f"{java.version} from {java.origin} ({java.home})")


def check_extras() -> Iterator[Finding]:
    """The optional extras, as the installed distribution declares them."""
    try:
        requirements = importlib.metadata.requires(_DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        fix = f"Run: pip install {_DISTRIBUTION}  (in a source tree: make build)"
        yield Finding("extras", Status.PROBLEM, f"{_DISTRIBUTION} is not installed", fix)
        return
    packages: dict[str, list[tuple[str, str]]] = {}
    for requirement in requirements:
        if match := re.fullmatch(r"([\w.-]+)([^;\[]*?)\s*;\s*extra == ['\"](\w+)['\"]", requirement):
            packages.setdefault(match[3], []).append((match[1], match[2]))
    for extra, wanted in sorted(packages.items()):
        yield _check_extra(extra, wanted)


def _check_extra(extra: str, wanted: list[tuple[str, str]]) -> Finding:
    fix = f"Run: pip install '{_DISTRIBUTION}[{extra}]'"
    found = {package: _installed(package) for package, _ in wanted}
    if missing := [package for package, version in found.items() if version is None]:
        return Finding(f"extra {extra}", Status.NOTE, f"{', '.join(missing)} not installed", fix)
    for package, bounds in wanted:
        if not _within(found[package] or "", bounds):
            detail = f"{package} {found[package]} does not suit ({bounds} is needed)"
            return Finding(f"extra {extra}", Status.PROBLEM, detail, fix)
    return Finding(f"extra {extra}", Status.OK, ", ".join(f"{name} {version}" for name, version in found.items()))


def check_memory(minimum_bytes: int) -> Finding:
    """Enough memory is free, in the machine and in this control group."""
    available_bytes = available_memory_bytes()
    return _enough("memory", available_bytes, minimum_bytes, "available", "End other programs, or use a larger machine")


def check_space(name: str, folder: Path, minimum_bytes: int, fix: str) -> Finding:
    """The file system of a folder has room, and the folder can be written to."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            free_bytes = shutil.disk_usage(folder).free
    except OSError as error:
        return Finding(name, Status.PROBLEM, f"{folder} cannot be written to: {error.strerror}", fix)
    return _enough(name, free_bytes, minimum_bytes, f"free in {folder}", fix)


def check_loopback() -> Finding:
    """A port of the loopback interface can be bound and reached."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError as error:
        fix = "Bring the loopback interface up (ip link set lo up) and let programs bind ports on it"
        return Finding("loopback", Status.PROBLEM, f"no port of 127.0.0.1 can be used: {error}", fix)
    return Finding("loopback", Status.OK, "ports of 127.0.0.1 can be bound and reached")


def check_spark(java: Finding, timeout_s: float = _SPARK_TIMEOUT_S) -> Finding:
    """Spark starts and runs one row through a Python worker."""
    if _installed("pyspark") is None:
        return Finding("spark", Status.NOTE, "not tried: pyspark is not installed")
    if java.status is not Status.OK:
        return Finding("spark", Status.NOTE, "not tried: there is no Java")
    with tempfile.TemporaryDirectory(prefix="solstice-doctor-") as folder:
        process = subprocess.Popen(
            [sys.executable, "-c", _SPARK_PROBE],
            cwd=folder,
            env=os.environ | spark_environment() | {"SPARK_LOCAL_DIRS": folder},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            output, errors = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            # The JVM is a grandchild: it ends with its group or not at all.
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            fix = "Try again on a less busy machine; a firewall that blocks 127.0.0.1 shows like this too"
            return Finding("spark", Status.PROBLEM, f"did not start within {timeout_s:g} s", fix)
    if process.returncode != 0:
        fix = (
            "Run: python -c 'from pyspark.sql import SparkSession; SparkSession.builder.getOrCreate()' and read its log"
        )
        return Finding("spark", Status.PROBLEM, f"does not start: {_last_line(errors)}", fix)
    return Finding("spark", Status.OK, f"{output.strip()} started and ran a Python worker")


def _enough(name: str, found_bytes: int, minimum_bytes: int, where: str, fix: str) -> Finding:
    detail = f"{_readable(found_bytes)} {where}"
    if found_bytes < minimum_bytes:
        return Finding(name, Status.PROBLEM, f"{detail}; {_readable(minimum_bytes)} are needed", fix)
    return Finding(name, Status.OK, detail)


def available_memory_bytes(control_group: Path = Path("/sys/fs/cgroup")) -> int:
    """What is free for this process: in the machine, and in its control group where that has a limit."""
    meminfo = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    available_bytes = int(meminfo["MemAvailable"].split()[0]) * 1024
    try:
        limit = (control_group / "memory.max").read_text().strip()
        used = (control_group / "memory.current").read_text().strip()
    except OSError:
        return available_bytes
    return available_bytes if limit == "max" else min(available_bytes, int(limit) - int(used))


def _installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _within(version: str, bounds: str) -> bool:
    """Whether a version satisfies ``>=a,<b``: the only forms that the extras use."""
    number = _number(version)
    for operator, bound in re.findall(r"(>=|<)\s*([\d.]+)", bounds):
        if (operator == ">=" and number < _number(bound)) or (operator == "<" and number >= _number(bound)):
            return False
    return True


def _number(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def _readable(size_bytes: int) -> str:
    if size_bytes < _GIB:
        return f"{size_bytes / 1024**2:.0f} MiB"
    return f"{size_bytes / _GIB:.1f} GiB"
