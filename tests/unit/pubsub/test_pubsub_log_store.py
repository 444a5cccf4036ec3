"""Where a log lies: directories that are full, wrong or somebody else's, and an object store."""

import errno
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from object_store import s3_bucket
from pubsub_agents import START, SUBSCRIPTION, TOPIC, lives, serving
from solstice.errors import ConfigError, LogError, MachineError, PartUnavailableError
from solstice.pubsub import publish
from solstice.pubsub._log_store import LocalStore, ObjectStore, open_store
from solstice.pubsub._options import parse_source
from solstice.pubsub._reader import PubSubStreamReader
from solstice.testing import PubSubEmulator


@pytest.fixture
def emulator() -> Iterator[PubSubEmulator]:
    with serving() as emulator:
        yield emulator


@pytest.fixture
def new_life(emulator: PubSubEmulator, tmp_path: Path) -> Iterator[Callable[..., PubSubStreamReader]]:
    with lives(emulator, tmp_path / "log") as new_life:
        yield new_life


def send(emulator: PubSubEmulator, count: int) -> list[bytes]:
    payloads = [f"event-{number:0500}".encode() for number in range(count)]
    assert publish(TOPIC, pa.table({"data": payloads}), emulator_host=emulator.address).published == count
    return payloads


def drain(reader: PubSubStreamReader, count: int, start: dict = START) -> tuple[dict, list[bytes]]:
    """Read until there were ``count`` rows."""
    rows: list[bytes] = []
    deadline = time.monotonic() + 20
    while len(rows) < count:
        assert time.monotonic() < deadline, f"{len(rows)} rows came"
        end = reader.latestOffset(start, ReadMaxRows(1_000))
        for part in reader.partitions(start, end):
            rows += [value for batch in reader.read(part) for value in batch["data"].to_pylist()]
        start = end
    return start, sorted(rows)


def acked(emulator: PubSubEmulator) -> int:
    return emulator.counters(SUBSCRIPTION)["acked"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"logPath": "relative/log"}, r"neither an absolute directory nor an object store.*/a/directory"),
        ({"logPath": "hdfs://namenode/log"}, "neither an absolute directory nor an object store"),
        ({"delivery": "ack-on-commit"}, "Set delivery to log, or leave it out"),
        ({"logPath": ""}, "logPath"),
    ],
)
def test_a_wrong_place_is_refused_when_the_reader_is_made(new_life, options, message) -> None:
    with pytest.raises(ConfigError, match=message):
        new_life(**options)


def test_a_log_needs_a_place() -> None:
    with pytest.raises(ConfigError, match="there is no logPath"):
        parse_source({"subscriptionId": SUBSCRIPTION, "delivery": "log"})


def test_a_folder_with_other_files_is_refused_and_left_alone(new_life, tmp_path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "thesis.txt").write_text("precious")
    with pytest.raises(ConfigError, match=r"has files in it \(thesis.txt\).*empty folder"):
        new_life().latestOffset(START, ReadMaxRows(10))
    assert [path.name for path in (tmp_path / "log").iterdir()] == ["thesis.txt"]


def test_the_log_of_another_subscription_is_refused(emulator, new_life) -> None:
    new_life().latestOffset(START, ReadMaxRows(10))
    other = "projects/test/subscriptions/other"
    emulator.create_subscription(other, TOPIC)
    with pytest.raises(ConfigError, match=f"is the log of {SUBSCRIPTION}"):
        new_life(subscriptionId=other).latestOffset(START, ReadMaxRows(10))


def test_a_log_of_another_format_and_a_damaged_owner_are_named(new_life, tmp_path) -> None:
    new_life().latestOffset(START, ReadMaxRows(10))
    owner = tmp_path / "log" / "owner.json"
    whole = json.loads(owner.read_text())
    for content, message in (
        (json.dumps(whole | {"format": 2}), "has the format 2"),
        ("{", "owner.json .* is damaged"),
    ):
        owner.write_text(content)
        with pytest.raises(LogError, match=message):
            new_life().latestOffset(START, ReadMaxRows(10))


def test_a_claim_that_was_cut_short_is_no_foreign_file(new_life, tmp_path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "owner.json.tmp").write_text("{")
    assert new_life().latestOffset(START, ReadMaxRows(10)) == START


def test_a_folder_that_cannot_be_made_is_named(new_life, tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LogError, match=r"file/log failed"):
        new_life(logPath=str(tmp_path / "file" / "log")).latestOffset(START, ReadMaxRows(10))


def test_a_full_disk_fails_the_query_with_the_fix_and_acks_nothing(emulator, new_life, tmp_path, monkeypatch) -> None:
    """The device /dev/full has no space, ever; everything else is on a real disk."""
    sent = send(emulator, 500)
    reader = new_life()
    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "path", lambda self, name: "/dev/full")
        with pytest.raises(MachineError, match=r"no space left at logPath, .*/log .*start the query again"):
            drain(reader, 500)
    reader.stop()
    assert acked(emulator) == 0
    assert [path.name for path in (tmp_path / "log").iterdir()] == ["owner.json"]
    emulator.advance(700)
    assert drain(new_life(), 500)[1] == sorted(sent)


LIMITED_PLANNER = """
import resource, sys
from pyspark.sql.streaming.datasource import ReadMaxRows
from solstice.errors import MachineError
from solstice.pubsub._options import parse_source
from solstice.pubsub._reader import PubSubStreamReader
from solstice.pubsub._shape import Shape
subscription, address, folder, limit = sys.argv[1:]
options = {"subscriptionId": subscription, "emulatorHost": address, "delivery": "log", "logPath": folder}
resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
reader = PubSubStreamReader(parse_source(options), Shape())
start = {"epoch": "", "seq": 0}
try:
    while True:
        start = reader.latestOffset(start, ReadMaxRows(1_000))
except MachineError as error:
    print(error, flush=True)
"""


def test_a_file_that_may_not_grow_fails_the_query_and_loses_nothing(emulator, new_life, tmp_path) -> None:
    """The kernel's own limit on files, in a planner of its own."""
    sent = send(emulator, 500)
    run = subprocess.run(
        [sys.executable, "-c", LIMITED_PLANNER, SUBSCRIPTION, emulator.address, str(tmp_path / "log"), "60000"],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ,
        check=False,
    )
    assert "no space left at logPath" in run.stdout, run.stderr[-2_000:]
    assert acked(emulator) == 0
    assert [path.name for path in (tmp_path / "log").iterdir()] == ["owner.json"]
    emulator.advance(700)
    assert drain(new_life(), 500)[1] == sorted(sent)


def test_a_disk_that_is_full_when_a_batch_is_consumed_keeps_its_rows(emulator, new_life, tmp_path, monkeypatch) -> None:
    put = LocalStore.put

    def full(self: LocalStore, name: str, content: Any) -> None:
        if name.endswith(".ids"):
            raise OSError(errno.ENOSPC, "No space left on device")
        put(self, name, content)

    reader = new_life()
    send(emulator, 10)
    end, _ = drain(reader, 10)
    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "put", full)
        with pytest.raises(MachineError, match="no space left at logPath"):
            reader.latestOffset(end, ReadMaxRows(10))
    reader.stop()
    again = new_life()
    assert sum(part.rows for part in again.partitions(START, end)) == 10
    again.latestOffset(end, ReadMaxRows(10))
    assert again.partitions(START, end) == []


def test_a_file_is_durable_before_its_manifest_and_the_manifest_before_it_is_told(tmp_path, monkeypatch) -> None:
    done: list[str] = []
    names: dict[int, str] = {}
    for call in ("open", "fsync", "replace"):
        original = getattr(os, call)

        def recorded(*args: Any, call: str = call, original: Any = original, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if call == "open":
                names[result] = Path(args[0]).name
            else:
                done.append(f"{call} {names.get(args[0], 'content') if call == 'fsync' else Path(args[1]).name}")
            return result

        monkeypatch.setattr(os, call, recorded)
    store = LocalStore(tmp_path)
    with store.sink("rows") as sink:
        sink.write(b"rows")
    names.clear()
    store.put("manifest", b"{}")
    folder = tmp_path.name
    assert done == ["fsync rows", "fsync content", f"fsync {folder}", "replace manifest", f"fsync {folder}"]


@pytest.fixture
def bucket() -> Iterator[str]:
    with s3_bucket() as location:
        yield location


def test_a_log_in_an_object_store_goes_through_restarts(emulator, new_life, bucket) -> None:
    location = bucket % "team/events"
    store = open_store(location)
    assert isinstance(store, ObjectStore)
    sent = send(emulator, 500)
    first = new_life(logPath=location, numPartitions="2")
    end, rows = drain(first, 500)
    assert rows == sorted(sent)
    first.stop()
    second = new_life(logPath=location)
    [part] = second.partitions(START, end)
    assert sum(batch.num_rows for batch in second.read(part)) == part.rows
    assert second.latestOffset(end, ReadMaxRows(10)) == end
    assert second.partitions(START, end) == []
    assert {name.split(".")[1] for name in store.files()} == {"json", "ids"}
    with pytest.raises(PartUnavailableError, match="is not in the log"):
        list(second.read(part))
    taker = new_life(logPath=location)
    assert taker.latestOffset(end, ReadMaxRows(10)) == end
    assert taker.reportLatestOffset()["log_known_ids"] == 500
    publish(TOPIC, pa.table({"data": [b"more"]}), emulator_host=emulator.address)
    with pytest.raises(LogError, match="taken over"):
        drain(second, 1, end)
    second.stop()
    emulator.advance(700)
    assert drain(taker, 1, end)[1] == [b"more"]


def test_a_bucket_that_is_not_there_is_named(new_life, bucket) -> None:
    location = (bucket % "log").replace("s3://bucket", "s3://nobody").replace("true", "false")
    with pytest.raises(LogError, match="nobody"):
        new_life(logPath=location).latestOffset(START, ReadMaxRows(10))
