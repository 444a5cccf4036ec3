"""Publishing while the service fails: every row is confirmed or reported, and nothing is lost on the way."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from solstice.errors import PublishError, UnavailableError
from solstice.pubsub import Publisher, publish, pull
from solstice.pubsub._admin import Admin
from solstice.testing import PubSubEmulator

TOPIC, SUBSCRIPTION = "projects/test/topics/events", "projects/test/subscriptions/events"
MAIN = "import sys; from solstice.cli import main; sys.exit(main())"


@pytest.fixture
def emulator(monkeypatch: pytest.MonkeyPatch) -> Iterator[PubSubEmulator]:
    with PubSubEmulator() as emulator:
        emulator.create_topic(TOPIC)
        emulator.create_subscription(SUBSCRIPTION, TOPIC, enable_message_ordering=True)
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", emulator.address)
        yield emulator


def numbers(count: int, **columns: list) -> pa.Table:
    return pa.table({"data": [str(number) for number in range(count)]} | columns)


def stored(**options: str) -> list[int]:
    """The numbers in the subscription, in the order they come; each is acknowledged."""
    found: list[int] = []
    with pull(SUBSCRIPTION, idle_s=1, **options) as puller:
        for batch in puller:
            found += [int(data) for data in batch.rows["data"].to_pylist()]
            batch.ack()
    return found


def failed_rows(error: PublishError) -> set[int]:
    return {row for failure in error.failures for row in failure.rows}


@pytest.mark.parametrize("code", ["UNAVAILABLE", "DEADLINE_EXCEEDED", "ABORTED", "INTERNAL", "RESOURCE_EXHAUSTED"])
def test_a_burst_of_a_transient_code_costs_nothing(emulator, code):
    emulator.faults.answer("Publish", code, times=5)
    assert publish(TOPIC, numbers(1_000), batch_size=100).published == 1_000
    assert emulator.published(TOPIC) == 1_000
    assert emulator.calls()["Publish"] == 15


def test_order_is_kept_under_bursts(emulator):
    for _ in range(4):
        emulator.faults.answer("Publish", "UNAVAILABLE", times=1)
        emulator.faults.answer("Publish", "ABORTED", times=1)
    keys = [f"k{number % 3}" for number in range(3_000)]
    publish(TOPIC, numbers(3_000, ordering_key=keys), batch_size=100)
    found = stored()
    for key in range(3):
        assert [number for number in found if number % 3 == key] == list(range(key, 3_000, 3))


def test_a_request_refused_for_good_fails_its_rows_alone(emulator):
    emulator.faults.answer("Publish", "INVALID_ARGUMENT")
    with pytest.raises(PublishError, match="InvalidArgument") as caught:
        publish(TOPIC, numbers(1_000), batch_size=100)
    error = caught.value
    assert (error.published, error.code) == (900, "INVALID_ARGUMENT")
    (failure,) = error.failures
    assert (len(failure.rows), failure.code) == (100, "INVALID_ARGUMENT")
    assert set(stored()) == set(range(1_000)) - failed_rows(error)
    assert f"rows {failure.rows.start} to {failure.rows.stop - 1}" in str(error)


def test_a_key_that_failed_is_not_sent_any_further(emulator):
    emulator.faults.answer("Publish", "INVALID_ARGUMENT")
    with pytest.raises(PublishError, match="ordering key 'k' failed before") as caught:
        publish(TOPIC, numbers(1_000, ordering_key=["k"] * 1_000), batch_size=100)
    assert [(failure.rows, failure.code) for failure in caught.value.failures] == [
        (range(100), "INVALID_ARGUMENT"),
        (range(100, 1_000), None),
    ]
    assert emulator.published(TOPIC) == 0


def test_a_service_that_stays_away_is_given_up_after_the_timeout(emulator):
    emulator.faults.answer("Publish", "UNAVAILABLE", times=1_000_000)
    began = time.monotonic()
    with pytest.raises(UnavailableError, match="did not succeed within 1 s") as caught:
        publish(TOPIC, numbers(100_000), publish_timeout_s=1)
    assert caught.value.code == "UNAVAILABLE"
    assert time.monotonic() - began < 5


def test_a_slow_service_is_waited_for_and_rows_are_not_sent_twice(emulator):
    emulator.faults.delay("Publish", 1.0, times=3)
    assert publish(TOPIC, numbers(1_000), batch_size=100).published == 1_000
    assert emulator.calls()["Publish"] == 10


def test_a_service_slower_than_the_timeout_is_a_deadline_exceeded(emulator):
    emulator.faults.delay("Publish", 60, times=1_000)
    with pytest.raises(UnavailableError) as caught:
        publish(TOPIC, numbers(10), publish_timeout_s=1)
    assert caught.value.code == "DEADLINE_EXCEEDED"


class Server:
    """An emulator in a process of its own, which keeps what it has in a folder."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-W", "ignore", "-c", MAIN, "pubsub", "emulator", "--port", "0"]
        self.process = subprocess.Popen([*command, "--data-dir", str(folder)], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.process.stdout.readline()
        self.address = self.process.stdout.readline().strip().partition("=")[2]

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def test_when_the_service_is_killed_every_row_is_confirmed_or_reported(tmp_path):
    server = Server(tmp_path)
    admin = Admin(emulatorHost=server.address)
    admin.create_topic(TOPIC)
    admin.create_subscription(SUBSCRIPTION, TOPIC)
    given = 0

    def tables() -> Iterator[pa.Table]:
        nonlocal given
        while True:
            yield pa.table({"data": [str(number) for number in range(given, given + 500)]})
            given += 500

    publisher = Publisher(TOPIC, emulator_host=server.address, publish_timeout_s=2, batch_size=50)

    def kill_in_the_middle() -> None:
        while publisher.published() < 5_000:
            time.sleep(0.01)
        server.kill()

    killer = threading.Thread(target=kill_in_the_middle)
    killer.start()
    with pytest.raises(PublishError, match="Unavailable") as caught, publisher:
        publisher.publish(tables())
    killer.join()
    given += 500  # the table that was refused was given too
    failed = failed_rows(caught.value)
    assert caught.value.published >= 5_000
    assert caught.value.published + len(failed) == given
    again = Server(tmp_path)
    try:
        confirmed = set(range(given)) - failed
        assert confirmed <= set(stored(emulator_host=again.address))
    finally:
        again.kill()


def test_a_service_that_comes_back_in_time_costs_nothing(tmp_path):
    with PubSubEmulator(data_dir=tmp_path) as first:
        first.create_topic(TOPIC)
        port = first.port
        publisher = Publisher(TOPIC, emulator_host=first.address)
        publisher.publish(numbers(10))
        publisher.flush()
    publisher.publish(numbers(1_000))
    with PubSubEmulator(port=port, data_dir=tmp_path) as second:
        assert publisher.flush().published == 1_010
        assert second.published(TOPIC) >= 1_000
