"""``solstice pubsub pull`` as a shell runs it, against a real emulator."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pyarrow as pa
import pytest

from solstice.pubsub import publish
from solstice.testing import PubSubEmulator
from waiting import wait_until

MAIN = "import sys; from solstice.cli import main; sys.exit(main())"
TOPIC = "projects/test/topics/events"
SUBSCRIPTION = "projects/test/subscriptions/events"


@pytest.fixture
def emulator() -> Iterator[PubSubEmulator]:
    with PubSubEmulator() as emulator:
        emulator.create_topic(TOPIC)
        emulator.create_subscription(SUBSCRIPTION, TOPIC)
        yield emulator


def send(emulator: PubSubEmulator, payloads: list[bytes], **columns) -> None:
    publish(TOPIC, pa.table({"data": payloads} | columns), emulator_host=emulator.address)


def begin(emulator: PubSubEmulator, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-W", "ignore", "-c", MAIN, "pubsub", "pull", "events", *arguments]
    environ = os.environ | {"PUBSUB_EMULATOR_HOST": emulator.address, "GOOGLE_CLOUD_PROJECT": "test"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ)


def run(emulator: PubSubEmulator, *arguments: str) -> list[dict]:
    process = begin(emulator, *arguments)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, b"")
    return [json.loads(line) for line in out.splitlines()]


def test_messages_are_written_as_json_lines_and_acked(emulator) -> None:
    attributes = pa.array([[("k", "ü")], []], pa.map_(pa.string(), pa.string()))
    send(emulator, ["grüß".encode(), b"\xff\x00"], attributes=attributes, ordering_key=["o", None])
    text, binary = sorted(run(emulator, "--idle", "0.5"), key=lambda fields: "data_base64" in fields)
    assert (text["data"], text["attributes"], text["ordering_key"]) == ("grüß", {"k": "ü"}, "o")
    assert (binary["data_base64"], binary["attributes"]) == ("/wA=", {})
    assert "ordering_key" not in binary
    assert text["message_id"] != binary["message_id"]
    assert text["publish_time"].endswith("Z")
    assert emulator.counters(SUBSCRIPTION)["acked"] == 2


def test_a_limit_is_kept_to_the_message_and_the_rest_given_back(emulator) -> None:
    send(emulator, [str(number).encode() for number in range(2_500)])
    assert len(run(emulator, "--limit", "1234")) == 1_234
    counters = emulator.counters(SUBSCRIPTION)
    assert (counters["acked"], counters["outstanding"], counters["backlog"]) == (1_234, 0, 1_266)


def test_without_acks_everything_is_given_back(emulator) -> None:
    send(emulator, [b"x"] * 10)
    assert len(run(emulator, "--limit", "10", "--no-ack")) == 10
    counters = emulator.counters(SUBSCRIPTION)
    assert (counters["acked"], counters["outstanding"], counters["backlog"]) == (0, 0, 10)


def test_ctrl_c_ends_it_cleanly_with_what_was_written_acked(emulator) -> None:
    send(emulator, [b"x"] * 10)
    process = begin(emulator)
    assert process.stdout is not None
    assert [json.loads(process.stdout.readline())["data"] for _ in range(10)] == ["x"] * 10
    wait_until(lambda: emulator.counters(SUBSCRIPTION)["acked"] == 10)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (0, b"")
    assert emulator.counters(SUBSCRIPTION)["outstanding"] == 0


def test_a_reader_that_goes_away_ends_it_and_loses_nothing(emulator) -> None:
    process = begin(emulator)
    assert process.stdout is not None
    process.stdout.close()
    send(emulator, [b"x"] * 10)
    assert process.wait(timeout=20) == 0
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    counters = emulator.counters(SUBSCRIPTION)
    assert (counters["acked"], counters["outstanding"], counters["backlog"]) == (0, 0, 10)


def test_a_subscription_that_is_not_there_is_one_line_of_error(emulator) -> None:
    command = begin(emulator, "--emulator-host", emulator.address, "--project", "elsewhere")
    _, err = command.communicate(timeout=60)
    assert command.returncode == 1
    assert err.decode().startswith("error: ")
    assert err.count(b"\n") == 1
    assert b"projects/elsewhere/subscriptions/events" in err
