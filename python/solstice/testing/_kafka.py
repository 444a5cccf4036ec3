"""A real Apache Kafka broker for tests: one node, KRaft, loopback, fetched by its coordinates and kept in the cache."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from pathlib import Path
from queue import Queue
from types import TracebackType
from typing import IO, Self

from solstice._core.cache import cache_dir
from solstice._core.java import find_java
from solstice.errors import ConfigError, MachineError, MissingExtraError

KAFKA_VERSION = "4.2.1"
_SCALA = "2.13"  # of the Spark that the jars come through

_START_S = 120.0
_STOP_S = 20.0
_POLL_S = 0.05
_STARTS = 3  # a free port may be taken by somebody else before the broker listens on it

# The broker is killed with its parent: a JVM that outlives its tests is noticed by nobody.
_LAUNCHER = """import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
os.execv(sys.argv[1], sys.argv[1:])
"""

_SETTINGS = """process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
controller.quorum.voters=1@127.0.0.1:{controller_port}
log.dirs={data}/log
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.abort.timed.out.transaction.cleanup.interval.ms=500
broker.session.timeout.ms=2000
broker.heartbeat.interval.ms=300
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=500
log.cleaner.dedupe.buffer.size=4194304
log.cleaner.threads=1
num.io.threads=4
num.network.threads=2
"""


class KafkaBroker:
    """An Apache Kafka of one node on free ports; it runs within ``with``, or from ``start`` to ``stop``::

        with KafkaBroker() as broker:
            Job("clicks", queue=broker.url).run()

    The first start fetches about 45 MB through the Ivy that Spark brings; later ones need no network. ``kill`` ends it
    as a crash would; ``start`` after ``kill`` or ``stop`` goes on with the same data on the same ports. Sessions as
    short as half a second are allowed, and open transactions of the dead are ended soon, so that tests need not wait.
    ``java_options`` are for a broker that starts quickly; one that is to work hard wants others.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        *,
        java_options: Sequence[str] = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
    ) -> None:
        self._java_options = java_options
        self._owned = tempfile.TemporaryDirectory(prefix="solstice-kafka-") if data_dir is None else None
        self.data_dir = Path(self._owned.name if self._owned else data_dir or "").absolute()
        self._ports: tuple[int, int] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Start and wait until it answers."""
        if self.running:
            raise ConfigError("this broker runs already.", remedy="Stop it first, or make another KafkaBroker.")
        jars = kafka_jars()
        java = str(find_java().home / "bin" / "java")
        for left in reversed(range(_STARTS)):
            ports = self._ports or (_free_port(), _free_port())
            try:
                self._launch(java, jars, *ports)
            except MachineError:
                if left == 0 or self._ports:
                    raise
            else:
                self._ports = ports
                break
        return self

    def stop(self) -> None:
        """End it in good order; the data stays for the next ``start``. Does nothing if it does not run."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a crash would."""
        self._end(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill() if self._owned else self.stop()
        if self._owned:
            self._owned.cleanup()

    @property
    def running(self) -> bool:
        """Whether the process is alive."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process id of the broker."""
        if self._process is None:
            raise ConfigError("this broker is not running.", remedy="Use it within `with`, or call start().")
        return self._process.pid

    @property
    def address(self) -> str:
        """``host:port``, as Kafka clients want it."""
        if self._ports is None:
            raise ConfigError("this broker has not been started.", remedy="Use it within `with`, or call start().")
        return f"127.0.0.1:{self._ports[0]}"

    @property
    def url(self) -> str:
        """What ``Job(queue=...)`` wants."""
        return f"kafka://{self.address}"

    def _launch(self, java: str, jars: list[Path], port: int, controller_port: int) -> None:
        self.data_dir.mkdir(parents=True, exist_ok=True)
        settings = self.data_dir / "server.properties"
        settings.write_text(_SETTINGS.format(port=port, controller_port=controller_port, data=self.data_dir))
        command = [java, *self._java_options, "-cp", os.pathsep.join(map(str, jars))]
        if not (self.data_dir / "log" / "meta.properties").exists():
            cluster_id = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
            format_log = [
                *command,
                "kafka.tools.StorageTool",
                "format",
                "-t",
                f"x{cluster_id[1:]}",
                "-c",
                str(settings),
            ]
            done = subprocess.run(format_log, capture_output=True, text=True, check=False)
            if done.returncode:
                raise MachineError(f"Kafka could not prepare {self.data_dir}: {done.stdout}{done.stderr}")
        with open(self.data_dir / "broker.log", "ab") as log:
            self._process = _spawn([sys.executable, "-c", _LAUNCHER, *command, "kafka.Kafka", str(settings)], log)
        deadline_s = time.monotonic() + _START_S
        while not _answers(port):
            if self._process.poll() is not None or time.monotonic() >= deadline_s:
                self.kill()
                last = (self.data_dir / "broker.log").read_text(errors="replace")[-2000:]
                raise MachineError(f"Kafka did not start on port {port}; its last words: {last}")
            time.sleep(_POLL_S)

    def _end(self, number: int) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _spawn(command: list[str], log: IO[bytes]) -> "subprocess.Popen[bytes]":
    """Start from a thread that lives as long as the process: to the kernel the parent is a thread."""
    started: Queue[subprocess.Popen[bytes] | OSError] = Queue()

    def run() -> None:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the tests
            )
        except OSError as error:
            started.put(error)
            return
        started.put(process)
        process.wait()

    threading.Thread(target=run, name="kafka-broker", daemon=True).start()
    process = started.get()
    if isinstance(process, OSError):
        raise MachineError(f"Kafka cannot be started: {process}.") from process
    return process


def kafka_jars() -> list[Path]:
    """The jars of the broker: from the cache, or fetched into it. Raises MachineError when that fails."""
    spark_jars = _spark_jars()
    kept = cache_dir() / f"kafka_{_SCALA}-{KAFKA_VERSION}"
    if not kept.is_dir():
        _fetch(spark_jars, kept)
    # Kafka speaks to slf4j but brings no logger: those of Spark come first, so that its errors are told.
    loggers = [
        jar
        for name in ("slf4j-api", "log4j-slf4j2-impl", "log4j-api", "log4j-core")
        for jar in spark_jars.glob(f"{name}-[0-9]*.jar")
    ]
    return [*loggers, *sorted(kept.glob("*.jar"))]


def _fetch(spark_jars: Path, kept: Path) -> None:
    """Let Ivy fetch Kafka and what it needs. Another process may do the same: the first one wins, both are equal."""
    ivy = next(spark_jars.glob("ivy-*.jar"), None)
    if ivy is None:
        raise MachineError(
            f"Spark's {spark_jars} has no Ivy to fetch Kafka with.", remedy="Install pyspark 4.2 or newer."
        )
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{kept.name}-", dir=kept.parent) as scratch:
        command = [
            str(find_java().home / "bin" / "java"), "-jar", str(ivy), "-cache", f"{scratch}/ivy", "-confs", "default",
            "-dependency", "org.apache.kafka", f"kafka_{_SCALA}", KAFKA_VERSION,
            "-retrieve", f"{scratch}/jars/[artifact]-[revision].[ext]",
        ]  # fmt: skip
        done = subprocess.run(command, cwd=scratch, capture_output=True, text=True, check=False)
        fetched = Path(scratch, "jars")
        if done.returncode or not (fetched / f"kafka_{_SCALA}-{KAFKA_VERSION}.jar").exists():
            raise MachineError(
                f"Apache Kafka {KAFKA_VERSION} could not be fetched: {(done.stdout + done.stderr)[-1000:]}",
                remedy=f"Ivy takes it from Maven Central and it is kept in {kept}: run once where that is reached.",
            )
        with contextlib.suppress(OSError):
            os.rename(fetched, kept)


def _spark_jars() -> Path:
    import importlib.util

    pyspark = importlib.util.find_spec("pyspark")
    if pyspark is None or pyspark.origin is None:
        raise MissingExtraError("pyspark", "spark")
    return Path(pyspark.origin).parent / "jars"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _answers(port: int) -> bool:
    """Whether the broker accepts connections; it does so last."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.5):
        return True
    return False
