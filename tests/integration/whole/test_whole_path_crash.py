"""The whole path, emulator to parquet, killed and run again: every event arrives."""

import itertools
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pyarrow.dataset as ds
import pytest

from solstice.cli._demo_job import events
from solstice.pubsub import publish
from solstice.testing import PubSubEmulator

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

TOPIC = "projects/test/topics/clicks"
SUBSCRIPTION = "projects/test/subscriptions/clicks"
SCRIPT = Path(__file__).with_name("crash_job.py")


class Publisher:
    """Publishes event after event until told to stop, so that every kill comes in the middle of something."""

    def __init__(self, address: str) -> None:
        self.published = 0
        self._address = address
        self._table = next(events(5_000))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        for start in itertools.cycle(range(0, 5_000, 50)):
            if self._stop.wait(0.1):
                return
            self.published += publish(TOPIC, self._table.slice(start, 50), emulator_host=self._address).published

    def __enter__(self) -> "Publisher":
        self._thread.start()
        return self

    def stop(self) -> int:
        """How many events were published in all."""
        self._stop.set()
        self._thread.join()
        return self.published

    def __exit__(self, *ignored: object) -> None:
        self.stop()


@contextmanager
def running(address: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / "log").open("ab") as log:
        driver = subprocess.Popen([sys.executable, str(SCRIPT), address, SUBSCRIPTION, str(folder)], stderr=log)
    try:
        yield driver
    finally:
        if driver.poll() is None:
            driver.kill()
        driver.wait()


def wait_until(condition: Callable[[], bool], what: str, folder: Path, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not in time\n{(folder / 'log').read_text()[-5_000:]}"
        time.sleep(0.2)


def stored(folder: Path) -> Counter[str]:
    files = sorted((folder / "out").glob("*.parquet"))
    if not files:
        return Counter()
    table = ds.dataset([str(file) for file in files]).to_table(columns=["message_id"])
    return Counter(table["message_id"].to_pylist())


def test_every_event_arrives_though_the_driver_is_killed_and_all_of_it_ends_at_ctrl_c(tmp_path: Path) -> None:
    with PubSubEmulator() as emulator:
        emulator.create_topic(TOPIC)
        emulator.create_subscription(SUBSCRIPTION, TOPIC)
        with Publisher(emulator.address) as publisher:
            with running(emulator.address, tmp_path) as driver:
                wait_until(lambda: stored(tmp_path).total() > 0, "rows before the kill", tmp_path)
                family = psutil.Process(driver.pid).children(recursive=True)
                acked = emulator.counters(SUBSCRIPTION)["acked"]
                driver.kill()
                unacked = publisher.published - acked
            _, alive = psutil.wait_procs(family, timeout=20)
            assert not alive, f"left behind: {alive}"
            published = publisher.stop()
        with running(emulator.address, tmp_path) as driver:
            wait_until(lambda: len(stored(tmp_path)) == published, "all events in parquet", tmp_path)
            wait_until(lambda: emulator.counters(SUBSCRIPTION)["acked"] == published, "all acked", tmp_path)
            driver.send_signal(signal.SIGINT)
            wait_until(lambda: driver.poll() is not None, "a clean end", tmp_path)
            assert driver.returncode == 0
    ids = stored(tmp_path)
    assert len(ids) == published
    duplicates = ids.total() - published
    assert duplicates <= unacked, "more came twice than what was not acknowledged when the driver died"
