"""The harness's handle of a Spark driver: a process that can be asked, killed, and searched for what it left behind."""

import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import psutil

from brief_jvm import BRIEF_JVM
from processes import descendants
from solstice._core.java import spark_environment
from spark_driver import LOOPBACK

ANSWER_S = 120.0
END_S = 30.0  # of all processes, on a busy machine
LOG_TAIL = 4_000
AGENT = "solstice.pubsub._agent"
# Spark gives a planner ten seconds to start, which a busy machine may not keep; so no more start than it has cores.
STARTS = 2
_NO_PLANNER = "Python worker failed to connect back"
_TAG = "PUBSUB_CRASH_DRIVER"


def wait_until(condition: Callable[[], object], what: str, seconds: float) -> None:
    """Poll until the condition is true; past the time it says what did not happen."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {seconds:.0f} s")
        time.sleep(0.1)


def _speaks_with(process: psutil.Process, port: int) -> bool:
    try:
        return any(connection.raddr and connection.raddr.port == port for connection in process.net_connections("tcp"))
    except psutil.Error:
        return False


class Driver:
    """A running driver program. Several threads may ask it."""

    def __init__(self, conf: Mapping[str, str]) -> None:
        # Short, because sockets are made there.
        self.folder = Path(tempfile.mkdtemp(prefix="s-", dir="/tmp"))
        self._tag = uuid.uuid4().hex
        self._log = self.folder / "driver.log"
        (self.folder / "tmp").mkdir()
        path = os.pathsep.join(filter(None, (str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH"))))
        conf = {
            **LOOPBACK,
            "spark.executorEnv.PYTHONPATH": path,
            f"spark.executorEnv.{_TAG}": self._tag,
            "spark.master": "local[4,4]",
            "spark.ui.showConsoleProgress": "false",
            "spark.executor.extraJavaOptions": BRIEF_JVM,
            "spark.local.dir": str(self.folder / "spark"),
            "spark.sql.warehouse.dir": str(self.folder / "warehouse"),
            "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
            **conf,
        }
        environment = {
            **os.environ,
            **spark_environment(),
            "PYTHONPATH": path,
            "TMPDIR": str(self.folder / "tmp"),
            _TAG: self._tag,
        }
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pubsub_crash.program", json.dumps(conf)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                cwd=self.folder,
                text=True,
            )
        self._asking = threading.Lock()
        self._starting = threading.Semaphore(STARTS)
        self._answers: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()
        try:
            self._jvm = psutil.Process(self.ask("hello")["jvm"])
        except BaseException:
            self.discard()
            raise

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put("")

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Have the program do something, and hear what came of it."""
        with self._asking:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self._process.stdin.flush()
            try:
                line = self._answers.get(timeout=ANSWER_S)
            except queue.Empty:
                line = ""
        if not line:
            raise RuntimeError(f"the driver gave no answer to {do}\n{self.log_tail()}")
        answer: dict[str, Any] = json.loads(line)
        if "failed" in answer:
            raise RuntimeError(f"{do}: {answer['failed']}\n{self.log_tail()}")
        return answer

    def start_query(self, port: int, **arguments: Any) -> psutil.Process:
        """Start a query and wait for its agent: the one that speaks with the emulator at ``port``."""
        with self._starting:
            self.ask("start", **arguments)
            found: list[psutil.Process] = []

            def there() -> bool:
                found.extend(agent for agent in descendants(AGENT, of=self._jvm.pid) if _speaks_with(agent, port))
                error = self.ask("state", name=arguments["name"])["error"]
                if error and _NO_PLANNER in error:
                    self.ask("start", **arguments)
                elif error:
                    raise RuntimeError(f"the query failed before it had an agent: {error}\n{self.log_tail()}")
                return bool(found)

            wait_until(there, f"an agent of the query {arguments['name']}", seconds=120)
            return found[0]

    def kill_jvm(self) -> None:
        """kill -9, and see that nothing lives on but the Python driver, which goes the same way."""
        self._jvm.kill()
        wait_until(lambda: not self._below_the_jvm(), "the end of every process below the JVM", seconds=END_S)
        self._end_process(kill=True)
        self._check_temp_folder()

    def stop(self) -> None:
        """Stop Spark. Nothing may be left: no process, and nothing of ours in the temp folder."""
        try:
            self._end_process(kill=False)
            wait_until(lambda: not self.processes(), "the end of every process of the driver", seconds=END_S)
            self._check_temp_folder()
        finally:
            self.discard()

    def _check_temp_folder(self) -> None:
        """What Spark leaves there is Spark's."""
        left = sorted(path.name for path in (self.folder / "tmp").glob("solstice-*/*"))
        assert left == [], f"left in the temp folder: {left}"

    def discard(self) -> None:
        """End everything that was started and still runs, whatever state it is in."""
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end_process(self, *, kill: bool) -> None:
        if kill:
            self._process.kill()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)

    def processes(self) -> list[psutil.Process]:
        """Every living process that descends from the driver, orphans included: they carry its tag."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(_TAG) == self._tag and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def _below_the_jvm(self) -> list[psutil.Process]:
        return [process for process in self.processes() if process.pid != self._process.pid]

    def log_tail(self) -> str:
        """The end of the driver's log."""
        return self._log.read_text(errors="replace")[-LOG_TAIL:] if self._log.exists() else ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self._process.poll() is None:
            self.stop()
        else:
            self.discard()
