"""``delivery="log"`` with a real agent and emulator, without Spark: this file makes Spark's calls, and its crashes.

The rules are those of ``test_delivery_model_log.py``. A new reader is a new life: what a restart of the query makes.
"""

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from pubsub_agents import START, SUBSCRIPTION, TOPIC, lives, serving
from solstice.errors import AgentLostError, ConfigError, LogError, PartUnavailableError
from solstice.pubsub import publish
from solstice.pubsub._agent import AgentProcess
from solstice.pubsub._log import Log
from solstice.pubsub._log_store import LocalStore
from solstice.pubsub._options import parse_source
from solstice.pubsub._reader import PubSubStreamReader
from solstice.pubsub._shape import Shape
from solstice.testing import PubSubEmulator
from waiting import wait_until


@pytest.fixture
def emulator() -> Iterator[PubSubEmulator]:
    with serving() as emulator:
        yield emulator


@pytest.fixture
def new_life(emulator: PubSubEmulator, tmp_path: Path) -> Iterator[Callable[..., PubSubStreamReader]]:
    with lives(emulator, tmp_path / "log") as new_life:
        yield new_life


def send(emulator: PubSubEmulator, first: int, count: int) -> list[bytes]:
    payloads = [f"event-{number}".encode() for number in range(first, first + count)]
    assert publish(TOPIC, pa.table({"data": payloads}), emulator_host=emulator.address).published == count
    return payloads


def ask(reader: PubSubStreamReader, start: dict, limit: int = 100_000) -> dict:
    """What Spark is told once there is something: it asks until then."""
    deadline = time.monotonic() + 20
    while (end := reader.latestOffset(start, ReadMaxRows(limit))) == start:
        assert time.monotonic() < deadline, "nothing came"
    return end


def read(reader: PubSubStreamReader, start: dict, end: dict) -> list[bytes]:
    parts = reader.partitions(start, end)
    return [value for part in parts for batch in reader.read(part) for value in batch["data"].to_pylist()]


def acked(emulator: PubSubEmulator) -> int:
    return emulator.counters(SUBSCRIPTION)["acked"]


def files(folder: Path) -> list[str]:
    """What is in the log besides its owner, by the end of the names."""
    return sorted(path.name[58:] for path in (folder / "log").iterdir() if path.name != "owner.json")


class Query:
    """What Spark keeps of a query through its restarts: offsets, commits, and a sink that skips a batch it has seen."""

    def __init__(self) -> None:
        self.batch_id = 0
        self.committed: dict = START
        self.planned: dict | None = None
        self.sink: dict[int, list[bytes]] = {}

    def step(self, reader: PubSubStreamReader, limit: int = 40) -> None:
        """One trigger."""
        if self.planned is None:
            end = reader.latestOffset(self.committed, ReadMaxRows(limit))
            if end == self.committed:
                return
            self.planned = json.loads(json.dumps(end))
        self.sink.setdefault(self.batch_id, read(reader, self.committed, self.planned))
        self.committed, self.planned = self.planned, None
        self.batch_id += 1

    def run(self, reader: PubSubStreamReader) -> None:
        """Many triggers; meant to be ended by an error."""
        for _ in range(100):
            self.step(reader)

    @property
    def rows(self) -> list[bytes]:
        return sorted(row for batch in self.sink.values() for row in batch)


def is_settled(emulator: PubSubEmulator, count: int) -> bool:
    counters = emulator.counters(SUBSCRIPTION)
    return counters["acked"] == count and counters["outstanding"] == counters["backlog"] == 0


def test_a_batch_is_acked_as_soon_as_it_is_written_and_read_from_the_log(emulator, new_life, tmp_path) -> None:
    reader = new_life()
    sent = send(emulator, 0, 1_000)
    end = ask(reader, START)
    assert files(tmp_path) == ["0.arrow", "json"]
    wait_until(lambda: acked(emulator) == 1_000)
    for _ in range(2):
        assert read(reader, START, end) == sent
    assert reader.latestOffset(START, ReadMaxRows(1)) == end
    assert reader.latestOffset(end, ReadMaxRows(1)) is end
    assert files(tmp_path) == ["ids"]
    assert read(reader, START, end) == []
    assert reader.reportLatestOffset().items() >= {"log_waiting": 0, "log_known_ids": 1_000, "acked": 1_000}.items()


def test_many_rows_are_spread_over_files(emulator, new_life, tmp_path) -> None:
    reader = new_life(numPartitions="3")
    assert reader.latestOffset(START, ReadMaxRows(1)) == START
    sent = send(emulator, 0, 30_000)
    wait_until(lambda: reader.reportLatestOffset()["received"] == 30_000)
    end = ask(reader, START)
    assert [part.rows for part in reader.partitions(START, end)] == [10_000] * 3
    assert sorted(read(reader, START, end)) == sorted(sent)
    assert files(tmp_path) == ["0.arrow", "1.arrow", "2.arrow", "json"]


def test_a_cut_goes_step_by_step(emulator, new_life, monkeypatch) -> None:
    """Rules 1, 2, 19: rows, then manifest, then a look at the owner, then the acknowledgement."""
    steps: list[str] = []
    for owner, method in (
        (AgentProcess, "write"),
        (LocalStore, "keep"),
        (LocalStore, "put"),
        (Log, "check_owner"),
        (AgentProcess, "acknowledge"),
    ):
        original = getattr(owner, method)

        def record(self: Any, *args: Any, method: str = method, original: Any = original) -> Any:
            result = original(self, *args)
            steps.append(method)
            return result

        monkeypatch.setattr(owner, method, record)
    reader = new_life()
    assert reader.latestOffset(START, ReadMaxRows(10)) == START
    steps.clear()
    send(emulator, 0, 10)
    ask(reader, START)
    assert steps == ["write", "keep", "put", "check_owner", "acknowledge"]


class Crash(BaseException):
    """Not an error that anything but the end of the process handles."""


@contextlib.contextmanager
def crash(owner: type, method: str, *, after: bool = False, on: str = "") -> Iterator[None]:
    """Nothing happens any more once ``method`` is called with an argument that ends in ``on``."""
    original, dead = getattr(owner, method), []

    def crashing(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not any(str(arg).endswith(on) and "owner" not in str(arg) for arg in (*args, "")):
            return original(self, *args, **kwargs)
        if after:
            original(self, *args, **kwargs)
        dead.append(True)
        raise Crash

    def unless_dead(self: Any, *args: Any) -> None:
        if dead:
            raise Crash
        remove(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        remove = LocalStore.remove
        patch.setattr(LocalStore, "remove", unless_dead)
        patch.setattr(owner, method, crashing)
        yield
    assert dead, "the crash did not happen"


CRASHES: dict[str, dict[str, Any]] = {
    "before the write": {"owner": AgentProcess, "method": "write"},
    "after the write": {"owner": AgentProcess, "method": "write", "after": True},
    "before the manifest": {"owner": LocalStore, "method": "put", "on": ".json"},
    "after the manifest": {"owner": LocalStore, "method": "put", "on": ".json", "after": True},
    "before the ack": {"owner": AgentProcess, "method": "acknowledge"},
    "after the ack": {"owner": AgentProcess, "method": "acknowledge", "after": True},
    "before the ids": {"owner": LocalStore, "method": "put", "on": ".ids"},
    "after the ids": {"owner": LocalStore, "method": "put", "on": ".ids", "after": True},
    "after the manifest was deleted": {"owner": LocalStore, "method": "remove", "on": ".json", "after": True},
    "after the rows were deleted": {"owner": LocalStore, "method": "remove", "on": ".arrow", "after": True},
}


def test_a_crash_between_any_two_steps_loses_nothing_and_doubles_nothing(emulator, new_life, tmp_path) -> None:
    """Rules 1, 2, 3, 6, 7, 8, 11, 12, 13, 14: one query that dies once at every point, with messages in every life."""
    query, sent = Query(), []
    for name, point in CRASHES.items():
        sent += send(emulator, len(sent), 100)
        reader = new_life()
        with crash(**point), pytest.raises(Crash):
            query.run(reader)
        reader.stop()
        emulator.advance(700)  # what was on its way to a dead agent comes again when its lease ends
        assert set(query.rows) <= set(sent), name
    reader = new_life()
    deadline = time.monotonic() + 30
    while not is_settled(emulator, len(sent)) or files(tmp_path)[-1] != "ids" or len(query.rows) < len(sent):
        assert time.monotonic() < deadline, (emulator.counters(SUBSCRIPTION), files(tmp_path), len(query.rows))
        query.step(reader)
    assert query.rows == sorted(sent)
    assert set(files(tmp_path)) == {"ids"}


def test_available_now_reads_the_log_and_the_subscription_to_their_ends(emulator, new_life, tmp_path) -> None:
    first = new_life()
    sent = send(emulator, 0, 10)
    ask(first, START)  # in the log, and Spark never heard of it
    first.stop()
    sent += send(emulator, 10, 100)
    query, second = Query(), new_life(availableNowIdle="1s")
    second.prepareForTriggerAvailableNow()
    before = None
    while before != query.committed:
        before = query.committed
        query.step(second)
    assert query.rows == sorted(sent)
    assert is_settled(emulator, 110)
    assert set(files(tmp_path)) == {"ids"}


def test_a_batch_that_spark_never_heard_of_is_planned_first_whatever_its_life(emulator, new_life) -> None:
    """Rules 6, 7, and 4: numbers go on from it."""
    first = new_life()
    sent = send(emulator, 0, 10)
    lost_end = ask(first, START)
    first.stop()
    sent += send(emulator, 10, 10)
    second = new_life()
    assert ask(second, START) == lost_end
    assert read(second, START, lost_end) == sent[:10]
    end = ask(second, lost_end)
    assert end["epoch"] != lost_end["epoch"]
    assert end["seq"] == lost_end["seq"] + 1
    assert read(second, lost_end, end) == sent[10:]


@pytest.mark.parametrize("rows_before", [120, 200], ids=["in the middle", "when all was read"])
def test_a_checkpoint_that_is_deleted_loses_nothing_and_no_number_is_used_twice(
    emulator, new_life, rows_before
) -> None:
    query, first = Query(), new_life()
    sent = send(emulator, 0, 200)
    while len(query.rows) < rows_before:
        query.step(first)
    if rows_before == 200:
        query.step(first)
    first.stop()
    emulator.advance(700)
    last = query.committed["seq"]
    query.batch_id, query.committed = 100, START
    sent += send(emulator, 200, 10)
    second = new_life()
    wait_until(lambda: query.step(second) or (is_settled(emulator, 210) and len(set(query.rows)) == 210))
    assert set(query.rows) == set(sent)
    assert query.committed["seq"] > last


def test_a_start_that_names_no_batch_of_the_log_deletes_nothing(emulator, new_life, tmp_path) -> None:
    """Rule 9."""
    reader = new_life()
    send(emulator, 0, 10)
    end = ask(reader, START)
    for other in ({"epoch": end["epoch"], "seq": end["seq"] + 1}, {"epoch": "another-life", "seq": end["seq"]}):
        assert reader.latestOffset(other | {"log": True}, ReadMaxRows(10)) == end
    assert files(tmp_path) == ["0.arrow", "json"]


def test_what_is_not_in_the_log_is_an_error_and_never_empty(emulator, new_life, tmp_path) -> None:
    """Rule 10."""
    reader = new_life()
    send(emulator, 0, 10)
    end = ask(reader, START)
    with pytest.raises(PartUnavailableError, match="logPath that this checkpoint was written with"):
        reader.partitions(START, end | {"epoch": "another-life"})
    [part] = reader.partitions(START, end)
    for wrong, message in (
        (replace(part, rows=11), "has 10 rows, and 11 were written"),
        (replace(part, rows=9), "has 10 rows, and 9 were written"),
        (replace(part, file=part.file.replace(".0.", ".9.")), "Executors must see logPath"),
        (replace(part, location=str(tmp_path / "nowhere")), "Executors must see logPath"),
    ):
        with pytest.raises(PartUnavailableError, match=message):
            list(reader.read(wrong))
    path = tmp_path / "log" / part.file
    whole = path.read_bytes()
    for cut in (0, 7, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(PartUnavailableError):
            list(reader.read(part))
    path.write_bytes(whole[:-1])
    reader.stop()
    with pytest.raises(LogError, match=f"{len(whole) - 1} bytes, and {len(whole)} were written.*restore the file"):
        new_life().partitions(START, end)
    path.unlink()
    with pytest.raises(LogError, match="no bytes"):
        new_life().latestOffset(START, ReadMaxRows(10))
    path.write_bytes(whole)
    assert len(read(new_life(), START, end)) == 10


def test_a_replay_of_a_batch_without_a_log_is_empty(new_life) -> None:
    """A checkpoint that was written with ack-on-commit: its rows died unacknowledged with their agent."""
    assert new_life().partitions(START, {"epoch": "another-life", "seq": 5}) == []


def test_a_checkpoint_of_a_log_is_refused_without_it(emulator, new_life, tmp_path) -> None:
    reader = new_life()
    send(emulator, 0, 10)
    end = ask(reader, START)
    reader.stop()
    without = {"subscriptionId": SUBSCRIPTION, "emulatorHost": emulator.address}
    for call in (
        lambda reader: reader.partitions(START, end),
        lambda reader: reader.latestOffset(end, ReadMaxRows(10)),
    ):
        reader = PubSubStreamReader(parse_source(without), Shape())
        with pytest.raises(ConfigError, match="written with delivery"):
            call(reader)
        reader.stop()


def test_copies_are_dropped_and_acked(emulator, new_life) -> None:
    """Rules 12, 17, 18: copies in a batch, and copies of a batch."""
    emulator.faults.duplicate(every=3)
    query, reader = Query(), new_life()
    sent = send(emulator, 0, 300)
    wait_until(lambda: query.step(reader) or is_settled(emulator, 300))
    query.step(reader)
    assert query.rows == sorted(sent)


def test_copies_are_dropped_also_where_the_query_does_not_ask_for_ids(emulator, new_life) -> None:
    emulator.faults.duplicate(every=3)
    query, reader = Query(), new_life(columns="data")
    sent = send(emulator, 0, 30)
    wait_until(lambda: query.step(reader) or is_settled(emulator, 30))
    query.step(reader)
    assert query.rows == sorted(sent)


def test_messages_whose_acks_were_forgotten_come_again_and_are_dropped_also_after_a_restart(emulator, new_life) -> None:
    """Rules 12, 13, 14, 18."""
    emulator.faults.drop_acks(times=1)
    query, reader = Query(), new_life()
    sent = send(emulator, 0, 30)
    while len(query.rows) < 30:
        query.step(reader)
    query.step(reader)
    reader.stop()
    assert acked(emulator) == 0
    emulator.advance(700)
    reader = new_life()
    wait_until(lambda: query.step(reader) or is_settled(emulator, 30))
    assert query.rows == sorted(sent)
    assert len(query.sink) == 1, "copies alone are no batch"


def consumed(reader: PubSubStreamReader, emulator: PubSubEmulator, first: int, start: dict = START) -> dict:
    """The end of a batch of ten messages that is consumed."""
    send(emulator, first, 10)
    end = ask(reader, start)
    reader.latestOffset(end, ReadMaxRows(10))
    return end


def known(reader: PubSubStreamReader) -> int:
    return reader.reportLatestOffset()["log_known_ids"]


def at(reader: PubSubStreamReader, seconds_from_now: float) -> None:
    """Move time: the clock of the log, and with it the age of what the agent holds."""
    reader._delivery._log._clock = lambda: time.time() + seconds_from_now
    agent = reader._agent

    def status() -> dict[str, Any]:
        counts = AgentProcess.status(agent)
        held = counts["oldest_unacked_s"]
        return counts | {"oldest_unacked_s": held + seconds_from_now if held else 0.0}

    agent.status = status


def test_ids_are_forgotten_after_the_retention_but_never_those_of_the_last_batch(emulator, new_life, tmp_path) -> None:
    """Rule 16: should its commit be lost, its replay is empty."""
    reader = new_life(logRetention="60s")
    first = consumed(reader, emulator, 0)
    second = consumed(reader, emulator, 10, first)
    at(reader, 50)
    reader.latestOffset(second, ReadMaxRows(10))
    assert known(reader) == 20
    at(reader, 70)
    reader.latestOffset(second, ReadMaxRows(10))
    assert known(reader) == 10
    assert files(tmp_path) == ["ids"]
    assert read(reader, first, second) == []
    with pytest.raises(PartUnavailableError):
        reader.partitions(START, first)
    reader.stop()
    assert read(new_life(), first, second) == []


def test_ids_are_not_forgotten_while_a_delivery_from_their_time_is_held(emulator, new_life) -> None:
    reader = new_life(logRetention="10s", ackDeadline="60s")
    first = consumed(reader, emulator, 0)
    send(emulator, 10, 20)
    wait_until(lambda: reader.reportLatestOffset()["received"] == 30)
    second = ask(reader, first, limit=10)
    at(reader, 15)
    third = ask(reader, second, limit=5)
    assert known(reader) == 25
    fourth = ask(reader, third, limit=5)
    assert known(reader) == 30
    wait_until(lambda: reader.reportLatestOffset()["acked"] == 30)
    reader.latestOffset(fourth, ReadMaxRows(10))
    at(reader, 30)
    reader.latestOffset(fourth, ReadMaxRows(10))
    assert known(reader) == 5


def test_ids_whose_ack_is_not_confirmed_are_kept_for_as_long_as_pubsub_keeps_messages(emulator, new_life) -> None:
    """Rule 15, and 3: the acks of another life are never confirmed."""
    first = new_life(logRetention="60s")
    send(emulator, 0, 10)
    end = ask(first, START)
    first.stop()
    second = new_life(logRetention="60s")
    last = consumed(second, emulator, 10, end)
    for day in (1, 30):
        at(second, day * 86_400)
        second.latestOffset(last, ReadMaxRows(10))
        assert known(second) == 20
    at(second, 32 * 86_400)
    second.latestOffset(last, ReadMaxRows(10))
    assert known(second) == 10


def test_an_ack_that_is_confirmed_late_counts_from_then(emulator, new_life) -> None:
    reader = new_life(logRetention="60s")
    emulator.faults.delay("Acknowledge", 2.0, times=1)
    send(emulator, 0, 10)
    first = ask(reader, START)
    reader.latestOffset(first, ReadMaxRows(10))
    log = reader._delivery._log
    assert (len(log._confirmed), len(log._unconfirmed)) == (0, 1)
    second = consumed(reader, emulator, 10, first)
    wait_until(lambda: acked(emulator) == 20)
    wait_until(lambda: reader.latestOffset(second, ReadMaxRows(10)) is second and not log._unconfirmed)
    at(reader, 70)
    reader.latestOffset(second, ReadMaxRows(10))
    assert known(reader) == 10
    reader.stop()
    again = new_life()
    again.latestOffset(second, ReadMaxRows(10))
    assert list(again._delivery._log._confirmed) == list(log._confirmed)


def test_a_second_query_takes_the_log_over_and_the_first_acks_nothing_more(emulator, new_life) -> None:
    """Rules 19 and 20."""
    old = new_life()
    send(emulator, 0, 10)
    end = ask(old, START)
    wait_until(lambda: acked(emulator) == 10)
    new = new_life()
    assert ask(new, START) == end
    with pytest.raises(LogError, match=r"taken over by process \d+ on .*logPath of its own"):
        old.latestOffset(end, ReadMaxRows(10))
    assert len(read(new, START, end)) == 10
    with pytest.raises(LogError, match="taken over"):
        old.latestOffset(START, ReadMaxRows(10))


def test_what_the_first_query_was_writing_then_is_not_acked_by_it(emulator, new_life, monkeypatch) -> None:
    old = new_life()
    assert old.latestOffset(START, ReadMaxRows(10)) == START
    new = []
    write = Log.write

    def taken_over_meanwhile(self: Log, *args: Any) -> bool:
        if not new:
            new.append(new_life())
            assert new[0].partitions(START, {"epoch": "x", "seq": 1}) == []
        return write(self, *args)

    monkeypatch.setattr(Log, "write", taken_over_meanwhile)
    sent = send(emulator, 0, 10)
    with pytest.raises(LogError, match="taken over"):
        ask(old, START)
    old.stop()
    emulator.advance(700)
    query = Query()
    wait_until(lambda: query.step(new[0]) or is_settled(emulator, 10))
    query.step(new[0])
    assert query.rows == sorted(sent)


def test_a_manifest_that_comes_after_its_parts_were_deleted_counts_for_nothing(emulator, new_life, tmp_path) -> None:
    """Rule 3: the last write of a dead planner lands in the middle of a later life."""
    query, first = Query(), new_life()
    sent = send(emulator, 0, 10)
    with crash(LocalStore, "put", on=".json"), pytest.raises(Crash):
        ask(first, START)
    first.stop()
    [part] = (tmp_path / "log").glob("*.arrow")
    manifest = {"parts": [{"file": part.name, "rows": 10, "bytes": part.stat().st_size}]}
    second = new_life()
    second.latestOffset(START, ReadMaxRows(10))
    (tmp_path / "log" / part.name.replace(".0.arrow", ".json")).write_text(json.dumps(manifest))
    second.stop()
    emulator.advance(700)
    third = new_life()
    wait_until(lambda: query.step(third) or is_settled(emulator, 10))
    query.step(third)
    assert query.rows == sorted(sent)


def test_an_agent_that_dies_between_write_and_ack_loses_and_doubles_nothing(emulator, new_life, monkeypatch) -> None:
    query, first = Query(), new_life()
    assert first.latestOffset(START, ReadMaxRows(10)) == START

    def kill(self: Log) -> None:
        assert first._agent is not None
        first._agent._process.kill()

    sent = send(emulator, 0, 10)
    with monkeypatch.context() as patch:
        patch.setattr(Log, "check_owner", kill)
        with pytest.raises(AgentLostError, match="Nothing is lost"):
            ask(first, START)
    second = new_life()
    # Whatever was sent to the dead agent, before or after its death, comes again when its lease ends.
    wait_until(lambda: query.step(second) or emulator.advance(61) or is_settled(emulator, 10))
    query.step(second)
    assert query.rows == sorted(sent)
