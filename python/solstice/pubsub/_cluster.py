"""The Spark cluster, as far as the command lines of the processes above this one tell.

Spark gives neither its configuration to the planner nor its executor's to a worker. But the planner is a child of the
driver's JVM, a worker a descendant of its executor's, and both have what is wanted here among their arguments.
"""

import functools
import itertools
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_LOCAL_MASTER = re.compile(r"local(\[\s*(?P<cores>\d+|\*)\s*(,.*)?\])?")
_SUBMIT = "org.apache.spark.deploy.SparkSubmit"
_PYSPARK = "pyspark-shell"
_SWITCHES = frozenset({"--verbose", "-v", "--supervise"})
_NAMED = {
    "--master": "spark.master",
    "--num-executors": "spark.executor.instances",
    "--executor-cores": "spark.executor.cores",
    "--total-executor-cores": "spark.cores.max",
}


@dataclass(frozen=True)
class Driver:
    """The driver that this process, a planner, belongs to."""

    is_local: bool
    """Tasks run in the driver's own JVM for certain."""
    cores: int
    """The cluster's, where the command line tells; else this host's."""
    address: str
    """Where Spark's driver listens for its executors."""


@dataclass(frozen=True)
class Executor:
    """The executor that this process, a worker, belongs to."""

    id: str
    cores: int
    driver_host: str
    """The driver's address as executors know it."""


def driver() -> Driver:
    """What the driver's command line tells of the cluster."""
    arguments = _java_above()
    if arguments is None:  # no Spark, hence no executors
        return Driver(is_local=True, cores=_cpu_count(), address="127.0.0.1")
    settings = _settings(arguments)
    local = _LOCAL_MASTER.fullmatch(settings.get("spark.master", ""))
    if local:
        given = local["cores"] or "1"
        cores = _cpu_count() if given == "*" else int(given)
    else:
        cores = _cluster_cores(settings) or _cpu_count()
    address = (
        settings.get("spark.driver.bindAddress")
        or os.environ.get("SPARK_LOCAL_IP")
        or settings.get("spark.driver.host")
        or "0.0.0.0"
    )
    return Driver(is_local=local is not None, cores=max(cores, 1), address=address)


@functools.lru_cache(maxsize=1)
def executor() -> Executor | None:
    """The executor above this process; None in local mode."""
    arguments = _java_above() or []
    options = dict(itertools.pairwise(arguments))
    url = re.fullmatch(r"spark://\w+@(?P<host>.+):\d+", options.get("--driver-url", ""))
    cores = options.get("--cores", "")
    if url is None or "--executor-id" not in options or not cores.isdecimal():
        return None
    return Executor(options["--executor-id"], int(cores), url["host"].strip("[]"))


def _java_above() -> list[str] | None:
    """The command line of the nearest JVM above this process."""
    for arguments in _ancestors():
        if arguments and os.path.basename(arguments[0]) == "java":
            return arguments
    return None


def _ancestors() -> Iterator[list[str]]:
    pid = os.getppid()
    while pid > 1:
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
            state = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return
        yield [part.decode(errors="replace") for part in line.split(b"\0")[:-1]]
        pid = int(state.rpartition(")")[2].split()[1])


def _settings(arguments: list[str]) -> dict[str, str]:
    """Spark's properties on the command line of a JVM; the arguments of the application itself are not looked at."""
    properties = [argument[2:] for argument in arguments if argument.startswith("-Dspark.")]
    settings = dict(_pair(given) for given in properties)
    rest = iter(arguments[arguments.index(_SUBMIT) + 1 :] if _SUBMIT in arguments else [])
    for argument in rest:
        if not argument.startswith("-"):
            break
        if argument in _SWITCHES:
            continue
        name, equals, value = argument.partition("=")
        value = value if equals else next(rest, "")
        if name in ("--conf", "-c"):
            name, value = _pair(value)
            settings[name] = value
        elif name in _NAMED:
            settings[_NAMED[name]] = value
    if "spark.master" not in settings and arguments[-1] == _PYSPARK:
        # A program that was started with python: what it set is on the command line, before the files of Spark.
        settings["spark.master"] = _spark_defaults().get("spark.master", "local[*]")
    return settings


def _spark_defaults() -> dict[str, str]:
    """What ``spark-defaults.conf`` says."""
    folder = os.environ.get("SPARK_CONF_DIR") or os.path.join(os.environ.get("SPARK_HOME", ""), "conf")
    try:
        lines = Path(folder, "spark-defaults.conf").read_text().splitlines()
    except OSError:
        return {}
    return dict(_pair("=".join(re.split(r"[\s=]+", line.strip(), maxsplit=1))) for line in lines)


def _pair(given: str) -> tuple[str, str]:
    name, _, value = given.partition("=")
    return name.strip(), value.strip()


def _cluster_cores(settings: dict[str, str]) -> int:
    def number(name: str, otherwise: int) -> int:
        value = settings.get(name, "")
        return int(value) if value.isdecimal() else otherwise

    return number("spark.cores.max", 0) or (number("spark.executor.instances", 0) * number("spark.executor.cores", 1))


def _cpu_count() -> int:
    return os.cpu_count() or 1
