"""A Spark Connect server on this machine, from the installed pyspark, for as long as this process wants it."""

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path

from solstice._core.java import spark_environment
from solstice._core.retry import Clock, SystemClock
from solstice.connect import _local_supervisor
from solstice.connect._descriptors import find_pyspark
from solstice.errors import MachineError, MissingExtraError

_SERVER_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"
_ADDRESS = "127.0.0.1"
_START_TIMEOUT_S = 120.0
_POLL_S = 0.05
_STOP_GRACE_S = 5.0
_PORT_ATTEMPTS = 3
_LOG_LINES_SHOWN = 3
# They would make the server's own start try to connect to a server.
_CLIENT_VARIABLES = ("SPARK_REMOTE", "SPARK_LOCAL_REMOTE", "SPARK_CONNECT_MODE_ENABLED")


class LocalServer:
    """A running server. Only holders of its token, a random one, may use it; it listens on loopback only.

    It ends with ``stop()`` and with this process, however that ends: a supervisor process sees to it.
    """

    def __init__(self, supervisor: "subprocess.Popen[bytes]", home: Path, port: int, token: str) -> None:
        self._supervisor = supervisor
        self._home = home
        self._owner_pid = os.getpid()
        self._port = port
        self._token = token
        self._lock = threading.Lock()  # so that nobody asks a pipe that stop() has closed

    def __repr__(self) -> str:
        return f"LocalServer({_ADDRESS}:{self._port})"

    @property
    def url(self) -> str:
        """Where the server is, with its token."""
        return f"sc://{_ADDRESS}:{self._port}/;token={self._token}"

    def end(self) -> str | None:
        """None while the server runs; when it has ended by itself, or was killed, its last words."""
        return _end_words(self._home / "server.log") if self._has_ended() else None

    def stop(self) -> None:
        """Stop the server and wait until it is gone. Does nothing in a forked child, whose server it is not."""
        if os.getpid() != self._owner_pid:
            return
        pipe = self._supervisor.stdin
        if pipe is not None and not pipe.closed:
            with contextlib.suppress(BrokenPipeError):  # the supervisor was killed
                pipe.write(b"\n")  # a child that this process forked holds the pipe open too: its end would not be seen
                pipe.close()
        self._supervisor.wait()
        with self._lock:
            if self._supervisor.stdout is not None:
                self._supervisor.stdout.close()
        shutil.rmtree(self._home, ignore_errors=True)

    def _has_ended(self) -> bool:
        # The supervisor closes its end of the pipe when the server has ended; the kernel does when both were killed.
        with self._lock:
            pipe = self._supervisor.stdout
            if pipe is None or pipe.closed:
                return False  # stopped, which is no end by itself
            try:
                return os.read(pipe.fileno(), 1) == b""
            except BlockingIOError:
                return False


def start_server(config: Mapping[str, str] | None = None, *, clock: Clock | None = None) -> LocalServer:
    """Start a server and wait until it listens. ``config`` is Spark's own, for example ``spark.driver.memory``."""
    clock = clock or SystemClock()
    for attempt in range(1, _PORT_ATTEMPTS + 1):
        server = _launch(config or {})
        try:
            problem = _wait_until_listening(server, clock)
        except BaseException:
            server.stop()
            raise
        if problem is None:
            return server
        server.stop()
        # Between our finding a free port and the server's taking it, another process may have.
        if attempt == _PORT_ATTEMPTS or "BindException" not in problem:
            raise MachineError(f"the Spark Connect server did not start: {problem}")
    raise AssertionError("unreachable: the last attempt returns or raises")


def _launch(config: Mapping[str, str]) -> LocalServer:
    pyspark = find_pyspark()
    if not pyspark.has_server:  # pyspark-client has the protocol, not the server
        raise MissingExtraError("pyspark", "spark")
    java = spark_environment()
    port, token = _free_port(), secrets.token_urlsafe(32)
    home = Path(tempfile.mkdtemp(prefix="solstice-connect-"))
    properties = {
        "spark.master": "local[*]",
        "spark.app.name": "solstice-local",
        "spark.log.level": "WARN",
        "spark.ui.enabled": "false",
        "spark.driver.defaultJavaOptions": "-Xss4m",  # Spark walks plans by recursion: deep ones need deep stacks
        "spark.driver.host": _ADDRESS,
        "spark.driver.bindAddress": _ADDRESS,
        "spark.sql.warehouse.dir": str(home / "warehouse"),
        "spark.local.dir": str(home / "local"),
        **config,
        "spark.connect.grpc.binding.address": _ADDRESS,
        "spark.connect.grpc.binding.port": str(port),
    }
    # In a file, not on the command line, where other users would see secrets.
    properties_file = home / "spark.properties"
    properties_file.write_text("".join(f"{key}={_escaped(value)}\n" for key, value in properties.items()))
    environment = {key: value for key, value in os.environ.items() if key not in _CLIENT_VARIABLES}
    environment |= java | {"SPARK_HOME": str(pyspark.home), "SPARK_CONNECT_AUTHENTICATE_TOKEN": token}
    supervisor = subprocess.Popen(
        [
            *(sys.executable, "-I", _local_supervisor.__file__, str(home), str(_STOP_GRACE_S)),
            *(str(pyspark.home / "bin" / "spark-submit"), "--class", _SERVER_CLASS),
            *("--properties-file", str(properties_file), "--load-spark-defaults", "spark-internal"),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,  # Ctrl-C is for the owner, which decides what becomes of the server
    )
    if supervisor.stdout is not None:
        os.set_blocking(supervisor.stdout.fileno(), False)
    return LocalServer(supervisor, home, port, token)


def _wait_until_listening(server: LocalServer, clock: Clock) -> str | None:
    """Wait; None when it listens, else what the server said of its end."""
    deadline = clock.now() + _START_TIMEOUT_S
    while clock.now() < deadline:
        if server._has_ended():
            return _last_words(server._home / "server.log")
        with socket.socket() as probe:
            if probe.connect_ex((_ADDRESS, server._port)) == 0:
                return None
        clock.sleep(_POLL_S)
    return f"it did not listen within {_START_TIMEOUT_S:.0f} s. {_last_words(server._home / 'server.log')}"


def _last_words(log: Path) -> str:
    """What a server that did not start says first: later errors follow from the first."""
    lines = _lines(log)
    telling = [line for line in lines if "Exception" in line or "Error" in line] or lines
    return " | ".join(telling[:_LOG_LINES_SHOWN]) or "its log is empty."


def _end_words(log: Path) -> str:
    """What a server that had started says last: earlier errors are those of queries."""
    lines = [line for line in _lines(log) if not line.startswith(("at ", "..."))]
    return " | ".join(lines[-_LOG_LINES_SHOWN:]) or "its log is empty."


def _lines(log: Path) -> list[str]:
    try:
        text = log.read_text(errors="replace")
    except FileNotFoundError:  # not written yet, or stopped meanwhile in another thread
        return []
    return [line.strip() for line in text.splitlines() if line.strip()]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_ADDRESS, 0))
        port: int = probe.getsockname()[1]
        return port


def _escaped(value: str) -> str:
    return str(value).replace("\\", "\\\\").replace("\n", "\\n")
