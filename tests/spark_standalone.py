"""A real Spark standalone cluster on loopback: a master and workers, each at an address of its own."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from brief_jvm import BRIEF_JVM
from solstice._core.java import spark_environment

_START_S = 60.0


@dataclass
class Daemon:
    """A master or a worker, at ``host``."""

    host: str
    process: psutil.Process
    log: Path

    def executors(self) -> list[psutil.Process]:
        """The executor JVMs that this worker started."""
        found = []
        for child in self.process.children(recursive=True):
            try:
                if any("CoarseGrainedExecutorBackend" in part for part in child.cmdline()):
                    found.append(child)
            except psutil.NoSuchProcess:
                continue
        return found

    def kill(self) -> None:
        """``kill -9`` the daemon and all that it started, as if its host had gone."""
        try:
            family = [self.process, *self.process.children(recursive=True)]
        except psutil.NoSuchProcess:
            return
        for member in family:
            try:
                member.send_signal(signal.SIGKILL)
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(family, timeout=10)


@dataclass
class StandaloneCluster:
    """``url`` is what ``SparkSession.builder.master`` wants."""

    url: str
    master: Daemon
    workers: list[Daemon]


@contextmanager
def standalone_cluster(
    folder: Path, *, hosts: Sequence[str] = ("127.0.0.1", "127.0.0.2"), cores: int = 1, memory: str = "1g"
) -> Iterator[StandaloneCluster]:
    """A master at 127.0.0.1 and one worker per host; logs and work folders are under ``folder``."""
    daemons: list[Daemon] = []
    try:
        master = _start("master", "127.0.0.1", folder, [])
        daemons.append(master)
        url = _wait_for(master, r"Starting Spark master at (spark://\S+)")
        # Side by side: a JVM takes seconds to start.
        for host in hosts:
            options = ["--cores", str(cores), "--memory", memory, "--work-dir", str(folder / f"work-{host}"), url]
            daemons.append(_start("worker", host, folder, options))
        for worker in daemons[1:]:
            _wait_for(worker, r"Successfully registered with master (\S+)")
        yield StandaloneCluster(url, master, daemons[1:])
    finally:
        for daemon in reversed(daemons):
            daemon.kill()


def _start(role: str, host: str, folder: Path, options: list[str]) -> Daemon:
    import pyspark

    home = Path(pyspark.__file__).parent
    log = folder / f"{role}-{host}.log"
    main = f"org.apache.spark.deploy.{role}.{role.title()}"
    command = [home / "bin" / "spark-class", main, "--host", host, "--port", "0", "--webui-port", "0", *options]
    environment = os.environ | spark_environment()
    environment |= {
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": host,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": BRIEF_JVM,
    }
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment
        )
    return Daemon(host, psutil.Process(process.pid), log)


def _wait_for(daemon: Daemon, pattern: str) -> str:
    """What the daemon's log says."""
    deadline = time.monotonic() + _START_S
    while True:
        text = daemon.log.read_text(errors="replace")
        if match := re.search(pattern, text):
            return match.group(1)
        running = daemon.process.is_running() and daemon.process.status() != psutil.STATUS_ZOMBIE
        assert running, f"a Spark daemon ended: {text[-2_000:]}"
        assert time.monotonic() < deadline, f"a Spark daemon did not start: {text[-2_000:]}"
        time.sleep(0.1)
