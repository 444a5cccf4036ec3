"""Starts the program, kills what it is made of, and starts it again, until the job is done."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import psutil

from pipeline_crash.layout import ROWS_PER_PARTITION
from pipeline_crash.program import TAG
from pipeline_crash.verdict import Verdict, judge, processes_of
from processes import descendants
from solstice._core.java import spark_environment
from solstice.pipeline._faults import POINTS
from solstice.testing import KafkaBroker
from spark_standalone import StandaloneCluster

WORKER = "solstice.pipeline._worker_process"
_LOG_TAIL = 3_000
_GONE_S = 30.0  # an executor notices by and by that its driver is dead
_AWAY_S = 2.0  # how long a broker is away, at most


class Program:
    """One run of the program, and what it has told so far."""

    def __init__(self, root: Path, run: int, tag: str, options: dict[str, Any], faults: str) -> None:
        self.completed: set[int] | None = None
        self.first: dict[str, Any] = {}
        self.last: dict[str, Any] = {}
        self.log = root / f"run-{run}.log"
        tests = Path(__file__).parents[1]
        environment = os.environ | spark_environment() | {TAG: tag, "SOLSTICE_FAULTS": faults}
        environment["PYTHONPATH"] = os.pathsep.join([str(tests), *filter(None, [os.environ.get("PYTHONPATH")])])
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pipeline_crash.program", json.dumps(options)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                text=True,
            )
        self._reader = threading.Thread(target=self._read, args=(self.process.stdout,), daemon=True)
        self._reader.start()

    def _read(self, lines: IO[str]) -> None:
        for line in lines:
            with contextlib.suppress(ValueError):  # the last line of a program that was killed
                told = json.loads(line)
                if "completed" in told:
                    self.completed = set(told["completed"])
                elif "settled" in told:
                    self.first = self.first or told
                    self.last = told

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    def end(self) -> int:
        """Wait for the end of it, and of what it has told."""
        status = self.process.wait()
        self._reader.join(10)
        return status

    def kill(self, *, with_spark: bool) -> None:
        """The master; with Spark's JVM, or that has to notice. What else it started is left to itself either way."""
        family = descendants("org.apache.spark", of=self.process.pid) if with_spark else []
        self.process.kill()
        for jvm in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                jvm.kill()
        self.process.wait()

    @property
    def tail(self) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-_LOG_TAIL:]


class Crash:
    """One job through many crashes. ``kills`` says how many of each kind; the seed says when and of whom.

    Without a cluster Spark runs in the program, and instead of an executor a Python worker of Spark's is killed.
    """

    def __init__(
        self,
        root: Path,
        cluster: StandaloneCluster | None,
        *,
        rows: int,
        seed: int,
        kills: dict[str, int],
        way: str = "task",
        broker: KafkaBroker | None = None,
        deadline_s: float = 600.0,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.root = root
        self.verdict = Verdict(rows)
        self._way = way
        self._cluster = cluster
        self._broker = broker
        self._queue = f"{broker.url}/crash-{uuid.uuid4().hex[:8]}?partitions=3" if broker else ""
        self._lot = random.Random(seed)
        self._tag = uuid.uuid4().hex
        self._deadline_s = time.monotonic() + deadline_s
        self._say = say
        self._completed: dict[int, set[int]] = {}
        self._settled: Counter[str] = Counter()
        self._plan = self._planned(kills)

    def _planned(self, kills: dict[str, int]) -> list[tuple[float, str]]:
        """When each kill is due, as a part of all progress. Executors are killed while Spark is at work.

        The rows of dead letters never arrive, so that there is no progress beyond 0.96.
        """
        plan = []
        for kind, number in kills.items():
            until = 0.4 if kind == "executor" else 0.75
            plan += [(self._lot.uniform(0.02, until), kind) for _ in range(number)]
        return sorted(plan)

    def run(self) -> Verdict:
        """Crash until the plan is used up, let the job end, and judge."""
        started_s = time.monotonic()
        try:
            while not self._run_once():
                self.verdict.runs += 1
            self.verdict.runs += 1
            if self._plan:
                self.verdict.complaints.append(f"the job was done before these kills: {self._plan}")
            self._wait_for_the_gone()
            judge(self.verdict, self.root, self._way, self._queue, self._completed)
        finally:
            for process in processes_of(self._tag):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        self.verdict.seconds = time.monotonic() - started_s
        return self.verdict

    def _run_once(self) -> bool:
        """One run of the program; True when the job is done."""
        run = self.verdict.runs
        point = self._lot.choice(POINTS)
        marker = self.root / f"fault-{run}"
        options = {
            "root": str(self.root),
            "rows": self.verdict.rows,
            "way": self._way,
            "queue": self._queue,
            "master": self._cluster.url if self._cluster else "local[2,4]",
            "run": run,
        }
        program = Program(self.root, run, self._tag, options, f"{point}={marker}")
        before = Counter(self.verdict.kills)
        try:
            self._crash(program)
            status = program.end()
        finally:
            if program.running:
                program.kill(with_spark=True)
            self._completed[run] = program.completed or set()
            self._say(f"run {run}: {dict(self.verdict.kills - before)}, {program.last}")
        if marker.exists():
            self.verdict.kills[point] += 1
        self._check_resumed(run, program)
        if status == 0:
            return True
        mine = self.verdict.kills - before
        # A job may end with an error when its broker goes away; run again, it resumes. It has no other excuse.
        if status != -signal.SIGKILL and not mine["broker"]:
            self.verdict.complaints.append(f"run {run} ended with {status}: {program.tail}")
            raise AssertionError("\n".join(self.verdict.complaints))
        if status != -signal.SIGKILL:
            self._say(f"run {run} ended with {status}: {program.tail[-600:]}")
        return False

    def _crash(self, program: Program) -> None:
        while program.running:
            if time.monotonic() > self._deadline_s:
                raise TimeoutError(f"the job is not done in time; it has told {program.last}: {program.tail}")
            if self._plan and self._plan[0][0] <= self._progress(program):
                time.sleep(self._lot.uniform(0.0, 0.4))
                if self._kill(self._plan[0][1], program):
                    self.verdict.kills[self._plan.pop(0)[1]] += 1
            time.sleep(0.05)

    def _progress(self, program: Program) -> float:
        last = program.last
        if not last:
            return 0.0
        # What becomes visible at once has progress before that too: the partitions that somebody has begun with.
        marks = self.root / "marks"
        begun = len(list(marks.iterdir())) if self._way != "task" and marks.exists() else 0
        produced = max(last["produced"], begun * ROWS_PER_PARTITION)
        return (produced + last["sunk"]) / (2 * self.verdict.rows)

    def _kill(self, kind: str, program: Program) -> bool:
        """Kill one of a kind; False if there is none now."""
        if kind == "master":
            program.kill(with_spark=self._lot.random() < 0.5)
            return True
        if kind == "broker":
            assert self._broker is not None
            self._broker.kill()
            time.sleep(self._lot.uniform(0.0, _AWAY_S))
            self._broker.start()
            return True
        with contextlib.suppress(psutil.NoSuchProcess):
            victims = self._victims(kind, program.process.pid)
            if victims:
                self._lot.choice(victims).kill()
                return True
        return False

    def _victims(self, kind: str, program: int) -> list[psutil.Process]:
        if kind == "worker":
            return descendants(WORKER, of=program)
        if self._cluster is None:
            return descendants("pyspark.daemon", of=program)
        mine = processes_of(self._tag)  # and not one that has not noticed yet that its driver is dead
        return [executor for worker in self._cluster.workers for executor in worker.executors() if executor in mine]

    def _check_resumed(self, run: int, program: Program) -> None:
        """A run knows all that the ones before it have settled."""
        if program.first:
            first = Counter(program.first["settled"])
            if self._settled - first:
                self.verdict.complaints.append(f"run {run} began with {first}, after {self._settled}")
            self._settled = Counter(program.last["settled"])

    def _wait_for_the_gone(self) -> None:
        deadline_s = time.monotonic() + _GONE_S
        while (left := processes_of(self._tag)) and time.monotonic() < deadline_s:
            time.sleep(0.1)
        if left:
            self.verdict.complaints.append(f"processes are left behind: {[process.cmdline()[:4] for process in left]}")
