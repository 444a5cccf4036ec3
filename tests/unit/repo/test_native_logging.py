"""Records of the native core reach Python's logging."""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from solstice import _native
from solstice._core import logging as native_logging
from solstice._core.logging import start_native_logging

ROOT = logging.getLogger("solstice.native")


class Collector(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def messages(self) -> list[str]:
        return [record.getMessage() for record in self.records]


@pytest.fixture
def collector() -> Iterator[Collector]:
    handler = Collector()
    ROOT.addHandler(handler)
    ROOT.setLevel(logging.INFO)
    start_native_logging()
    yield handler
    ROOT.removeHandler(handler)
    ROOT.setLevel(logging.NOTSET)


def wait_until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.01)


def test_a_record_arrives_under_the_logger_of_its_rust_module(collector: Collector) -> None:
    _native.write_log(logging.WARNING, "solstice_core::agent::server", "the cut is late: 100 %s")
    wait_until(lambda: bool(collector.records))
    (record,) = collector.records
    assert record.name == "solstice.native.agent.server"
    assert record.levelno == logging.WARNING
    assert record.getMessage() == "the cut is late: 100 %s"


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("solstice_core", "solstice.native"),
        ("solstice_core::emulator", "solstice.native.emulator"),
        ("h2::codec", "solstice.native.h2.codec"),
    ],
)
def test_every_rust_target_has_a_logger_below_solstice_native(collector: Collector, target: str, name: str) -> None:
    _native.write_log(logging.ERROR, target, "x")
    wait_until(lambda: bool(collector.records))
    assert collector.records[0].name == name


def test_the_core_drops_what_the_python_logger_would_not_show(collector: Collector) -> None:
    _native.write_log(logging.DEBUG, "solstice_core", "hidden")
    _native.write_log(logging.INFO, "solstice_core", "shown")
    wait_until(lambda: bool(collector.records))
    assert collector.messages() == ["shown"]


def test_a_level_changed_while_running_reaches_the_core(collector: Collector) -> None:
    ROOT.setLevel(logging.DEBUG)

    def debug_arrives() -> bool:
        _native.write_log(logging.DEBUG, "solstice_core", "detail")
        return "detail" in collector.messages()

    wait_until(debug_arrives)


def test_starting_again_starts_no_second_thread(collector: Collector) -> None:
    for _ in range(3):
        start_native_logging()
    assert [thread.name for thread in threading.enumerate()].count("solstice-native-logs") == 1


def test_records_that_came_too_fast_are_counted_in_a_warning(collector: Collector) -> None:
    class Slow(logging.Handler):
        """Holds the delivering thread, as a full disk would."""

        def __init__(self) -> None:
            super().__init__()
            self.entered = threading.Event()
            self.go_on = threading.Event()

        def emit(self, record: logging.LogRecord) -> None:
            self.entered.set()
            self.go_on.wait(30)

    slow = Slow()
    ROOT.addHandler(slow)
    try:
        _native.write_log(logging.INFO, "solstice_core", "first")
        assert slow.entered.wait(10)
        for _ in range(10_007):
            _native.write_log(logging.INFO, "solstice_core", "flood")
    finally:
        slow.go_on.set()
        ROOT.removeHandler(slow)
    wait_until(lambda: any(message.startswith("7 records") for message in collector.messages()))
    assert collector.messages().count("flood") == 10_000
    assert collector.records[-1].levelno == logging.WARNING


def test_a_forked_child_has_a_channel_and_a_thread_of_its_own(collector: Collector) -> None:
    reader, writer = os.pipe()
    lock = native_logging._lock
    lock.acquire()  # as if another thread were starting at this moment: the child must not wait for it
    pid = os.fork()
    if pid == 0:
        status = 1
        signal.alarm(30)
        try:
            collector.records.clear()
            start_native_logging()
            _native.write_log(logging.INFO, "solstice_core", "of the child")
            wait_until(lambda: bool(collector.records))
            os.write(writer, repr(collector.messages()).encode())
            status = 0
        finally:
            os._exit(status)  # not even pytest's own clean-up may run in the child
    lock.release()
    _, status = os.waitpid(pid, 0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        assert pipe.read() == "['of the child']"
    assert status == 0
    assert "of the child" not in collector.messages()
    _native.write_log(logging.INFO, "solstice_core", "of the parent")
    wait_until(lambda: collector.messages() == ["of the parent"])


def test_records_written_just_before_the_end_are_delivered() -> None:
    script = """
import logging, time
logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
from solstice import _native
from solstice._core import logging as native_logging
from solstice._core.logging import start_native_logging
start_native_logging()
for number in range(100):
    _native.write_log(20, "solstice_core::agent", f"record {number}")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr.splitlines() == [f"solstice.native.agent record {number}" for number in range(100)]
