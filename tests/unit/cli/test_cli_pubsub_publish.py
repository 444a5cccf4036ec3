"""``solstice pubsub publish`` as a shell runs it, against a real emulator."""

import base64
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from solstice.pubsub import pull
from solstice.testing import PubSubEmulator
from waiting import wait_until

MAIN = "import sys; from solstice.cli import main; sys.exit(main())"
TOPIC, SUBSCRIPTION = "projects/test/topics/events", "projects/test/subscriptions/events"


@pytest.fixture
def emulator() -> Iterator[PubSubEmulator]:
    with PubSubEmulator() as emulator:
        emulator.create_topic(TOPIC)
        emulator.create_subscription(SUBSCRIPTION, TOPIC, enable_message_ordering=True)
        yield emulator


def begin(emulator: PubSubEmulator, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-W", "ignore", "-c", MAIN, "pubsub", "publish", *(arguments or ("events",))]
    environ = os.environ | {"PUBSUB_EMULATOR_HOST": emulator.address, "GOOGLE_CLOUD_PROJECT": "test"}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ)


def run(emulator: PubSubEmulator, given: bytes, *arguments: str, status: int = 0) -> str:
    process = begin(emulator, *arguments)
    out, err = process.communicate(given, timeout=60)
    assert process.returncode == status, err
    return (err if status else out).decode()


def lines(*messages: object) -> bytes:
    return b"".join(json.dumps(message).encode() + b"\n" for message in messages)


def arrived(emulator: PubSubEmulator, count: int) -> list[dict]:
    rows: list[dict] = []
    with pull(SUBSCRIPTION, emulator_host=emulator.address, idle_s=20) as puller:
        for batch in puller:
            rows += batch.rows.to_pylist()
            batch.ack()
            if len(rows) >= count:
                break
    return rows


def test_json_lines_become_messages(emulator):
    given = lines(
        {"data": "grüß", "attributes": {"k": "v"}, "ordering_key": "o"},
        {"data_base64": base64.b64encode(b"\xff\x00").decode()},
        {"attributes": {"only": "this"}},
    )
    assert run(emulator, given) == f"published 3 messages to {TOPIC}\n"
    rows = sorted(arrived(emulator, 3), key=lambda row: row["data"])
    assert [(row["data"], dict(row["attributes"]), row["ordering_key"]) for row in rows] == [
        (b"", {"only": "this"}, None),
        ("grüß".encode(), {"k": "v"}, "o"),
        (b"\xff\x00", {}, None),
    ]


def test_a_file_and_raw_lines_and_gzip(emulator, tmp_path):
    file = tmp_path / "lines.txt"
    file.write_bytes(b'first\r\n{"data": 1}\nlast without an end')
    out = run(emulator, b"", TOPIC, str(file), "--raw-lines", "--gzip", "--emulator-host", emulator.address)
    assert out == f"published 3 messages to {TOPIC}\n"
    assert {row["data"] for row in arrived(emulator, 3)} == {b"first", b'{"data": 1}', b"last without an end"}


def test_what_pull_writes_can_be_published(emulator):
    pulled = {"message_id": "1", "publish_time": "2026-01-01T00:00:00Z", "data": "x", "attributes": {}}
    assert run(emulator, lines(pulled | {"delivery_attempt": 2})) == f"published 1 messages to {TOPIC}\n"


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (b"{", "Expecting property name"),
        (b"", "Expecting value"),
        (b"[1]", "expected a JSON object, got list"),
        (b'{"dat": "x"}', "there is no field 'dat'"),
        (b'{"data": 1}', "'data' is no string"),
        (b'{"data_base64": "x"}', "'data_base64' is no base64"),
        (b'{"data": "x", "data_base64": "eA=="}', "two contents"),
        (b'{"data": "x", "attributes": {"k": 1}}', "attribute 'k' is no string"),
        (b'{"data": "x", "attributes": []}', "'attributes' is no object"),
        (b'{"data": "\xff"}', "utf-8"),
        (b'{"data": ' + b"[" * 200_000, "nested too deeply"),
        (b'{"data": "x", "attributes": {"k": "\\ud800"}}', "surrogates"),
        (b'{"data": "x", "ordering_key": "\\ud800"}', "surrogates"),
    ],
)
def test_a_bad_line_is_named_and_nothing_after_it_is_sent(emulator, bad, problem):
    given = lines({"data": "1"}, {"data": "2"}) + bad + b"\n" + lines({"data": "4"})
    error = run(emulator, given, status=1)
    assert error.startswith("error: line 3: ")
    assert problem in error
    assert "2 messages were published before" in error
    assert error.count("\n") == 1
    assert emulator.published(TOPIC) == 2


def test_a_line_without_an_end_is_not_read_for_ever(emulator):
    process = begin(emulator, "events", "--raw-lines")
    assert process.stdin is not None
    process.stdin.write(b"short\n")
    with suppress(BrokenPipeError):
        process.stdin.write(b"x" * (200 << 20))
    with suppress(BrokenPipeError):
        process.stdin.close()
    assert process.wait(timeout=20) == 1
    assert process.stderr is not None
    assert process.stderr.read().startswith(b"error: line 2: it has more than 67108864 bytes")
    process.stderr.close()
    process.stdout.close()
    assert emulator.published(TOPIC) == 1


def test_a_line_that_pubsub_would_refuse_is_named(emulator):
    error = run(emulator, lines({"data": "1"}, {"data": ""}, {"data": "3"}), status=1)
    assert "line 2: neither data nor attributes" in error
    assert emulator.published(TOPIC) == 0


def test_a_missing_topic_or_file_is_one_line(emulator):
    assert "projects/test/topics/nobody" in run(emulator, lines({"data": "x"}), "nobody", status=1)
    assert "/no/such/file cannot be read" in run(emulator, b"", "events", "/no/such/file", status=1)


def test_lines_are_published_as_they_come(emulator):
    process = begin(emulator, "events", "--raw-lines")
    assert process.stdin is not None
    for number in range(1, 4):
        process.stdin.write(b"line\n")
        process.stdin.flush()
        wait_until(lambda number=number: emulator.published(TOPIC) == number)
    out, _ = process.communicate(timeout=20)
    assert (process.returncode, out) == (0, f"published 3 messages to {TOPIC}\n".encode())


def test_ctrl_c_says_how_many_were_published(emulator):
    process = begin(emulator, "events", "--raw-lines")
    assert process.stdin is not None
    process.stdin.write(b"line\n" * 7)
    process.stdin.flush()
    wait_until(lambda: emulator.published(TOPIC) == 7)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (130, b"interrupted: 7 messages were published.\n")


def test_an_input_of_any_size_takes_bounded_memory(emulator):
    process = begin(emulator, "events", "--raw-lines")
    assert process.stdin is not None
    chunk = (b"x" * 999 + b"\n") * 1_000
    for _ in range(400):
        process.stdin.write(chunk)
    process.stdin.flush()
    wait_until(lambda: emulator.published(TOPIC) == 400_000, seconds=60)
    status = Path(f"/proc/{process.pid}/status").read_text()
    peak_mb = int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) >> 10
    out, _ = process.communicate(timeout=20)
    assert out == f"published 400000 messages to {TOPIC}\n".encode()
    assert peak_mb < 300, "of 400 MB"
