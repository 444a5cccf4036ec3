"""The agent process against a real emulator: what it cuts, acknowledges, gives back, and when it ends."""

import contextlib
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from pyspark import cloudpickle
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from processes import descendants, has_ended
from pubsub_agents import START, SUBSCRIPTION, TOPIC, agent_process, cut, read, reading, send, serving
from solstice.errors import (
    AgentLostError,
    ConfigError,
    NotFoundError,
    PartUnavailableError,
    UnavailableError,
    UnsupportedTriggerError,
)
from solstice.pubsub._reader import PubSubStreamReader
from solstice.testing import PubSubEmulator
from waiting import wait_until


@pytest.fixture
def emulator() -> Iterator[PubSubEmulator]:
    with serving() as emulator:
        yield emulator


@pytest.fixture
def new_reader(emulator: PubSubEmulator) -> Iterator[Callable[..., PubSubStreamReader]]:
    with contextlib.ExitStack() as stack:

        def build(*, started: bool = True, **options: str) -> PubSubStreamReader:
            """A reader; started while the subscription is empty, its first cut is none."""
            reader = stack.enter_context(reading(emulator, **options))
            if started:
                assert reader.latestOffset(START, ReadMaxRows(10)) == START
            return reader

        yield build


def test_a_batch_is_read_whole_and_acked_only_when_the_next_one_is_asked_for(emulator, new_reader) -> None:
    reader = new_reader()
    sent = send(emulator, 0, 1_000)
    end, partitions = cut(reader, START, 1_000)
    assert set(read(reader, partitions)) == sent
    reader.commit(end)
    assert emulator.counters(SUBSCRIPTION)["acked"] == 0
    assert reader.latestOffset(end, ReadMaxRows(10)) is end
    wait_until(lambda: emulator.counters(SUBSCRIPTION)["acked"] == 1_000)
    assert emulator.counters(SUBSCRIPTION)["outstanding"] == 0


def test_every_attempt_reads_the_same_rows_also_when_more_has_come(emulator, new_reader) -> None:
    reader = new_reader()
    send(emulator, 0, 500)
    end, partitions = cut(reader, START, 500, limit=500)
    first = read(reader, partitions)
    send(emulator, 500, 500)
    wait_until(lambda: reader.reportLatestOffset()["received"] == 1_000)
    assert reader.latestOffset(START, ReadMaxRows(100_000)) == end
    assert read(reader, list(reader.partitions(START, end))) == first


def test_a_start_that_is_not_the_last_batch_acks_nothing_and_gives_the_batch_back(emulator, new_reader) -> None:
    reader = new_reader()
    send(emulator, 0, 100)
    cut(reader, START, 100)
    reader.latestOffset({"epoch": "another-life", "seq": 1}, ReadMaxRows(10))
    wait_until(lambda: emulator.counters(SUBSCRIPTION)["nacked"] >= 100)
    assert emulator.counters(SUBSCRIPTION)["acked"] == 0


def test_a_batch_of_another_life_is_planned_empty_whatever_is_there_to_read(emulator, new_reader) -> None:
    sent = send(emulator, 0, 10)
    reader = new_reader(started=False)
    replayed = {"epoch": "another-life", "seq": 5}
    assert list(reader.partitions(START, replayed)) == []
    wait_until(lambda: reader.reportLatestOffset()["received"] == 10)
    assert list(reader.partitions(START, replayed)) == []
    assert list(reader.partitions(replayed, replayed)) == []
    _, partitions = cut(reader, replayed, 10)
    assert set(read(reader, partitions)) == sent


@pytest.mark.parametrize("offset", [5, {"offset": 5}, {"events": {"0": 23}}], ids=["rate", "files", "Kafka"])
def test_a_checkpoint_of_another_source_is_refused_with_the_fix(new_reader, offset) -> None:
    reader = new_reader(started=False)
    for call in (lambda: reader.latestOffset(offset, ReadMaxRows(10)), lambda: reader.partitions(START, offset)):
        with pytest.raises(ConfigError, match=r"written with another source.*checkpointLocation of its own"):
            call()


def test_numbers_go_on_from_a_start_of_another_life(emulator, new_reader) -> None:
    reader = new_reader()
    send(emulator, 0, 10)
    end, _ = cut(reader, {"epoch": "another-life", "seq": 41}, 10)
    assert end["seq"] == 42
    assert end["epoch"] not in ("", "another-life")


def test_a_limit_of_rows_bounds_a_batch_and_leaves_the_rest_for_the_next(emulator, new_reader) -> None:
    reader = new_reader(maxMessagesPerTrigger="300")
    assert reader.getDefaultReadLimit() == ReadMaxRows(300)
    sent = send(emulator, 0, 1_000)
    seen: list[bytes] = []
    start = START
    while len(seen) < 1_000:
        end, partitions = cut(reader, start, 1_000, limit=300)
        rows = read(reader, partitions)
        assert len(rows) <= 300
        seen += rows
        start = end
    assert sorted(seen) == sorted(sent)


def test_a_limit_of_bytes_bounds_a_batch_too(emulator, new_reader) -> None:
    reader = new_reader(maxBytesPerTrigger="20000")
    sent = send(emulator, 0, 1_000)
    end, partitions = cut(reader, START, 1_000)
    first = read(reader, partitions)
    assert 0 < sum(map(len, first)) <= 20_000
    assert 0 < len(first) < 1_000
    _, partitions = cut(reader, end, 1_000)
    assert set(read(reader, partitions)) < sent - set(first)


def test_many_rows_are_spread_over_the_partitions(emulator, new_reader) -> None:
    reader = new_reader(numPartitions="3")
    sent = send(emulator, 0, 30_000)
    _, partitions = cut(reader, START, 30_000)
    assert [partition.rows for partition in partitions] == [10_000] * 3
    assert set(read(reader, partitions)) == sent


def test_the_agent_dies_with_its_planner_and_gives_back_what_it_holds(emulator, new_reader) -> None:
    reader = new_reader()
    send(emulator, 0, 2_500)
    cut(reader, START, 2_500)
    agent = agent_process(reader)
    began = time.monotonic()
    reader.stop()
    assert time.monotonic() - began < 5.0
    assert not agent.is_running()
    counters = {"outstanding": 0, "backlog": 2_500, "acked": 0, "nacked": 2_500, "expired": 0, "delivered": 2_500}
    assert emulator.counters(SUBSCRIPTION).items() >= counters.items()


START_S = 60.0  # of a planner and its agent on a busy machine
PLANNER = """
import sys
from pyspark.sql.streaming.datasource import ReadMaxRows
from solstice.pubsub._options import SOURCE_OPTIONS
from solstice.pubsub._reader import PubSubStreamReader
from solstice.pubsub._shape import Shape
options = {"subscriptionId": sys.argv[1], "emulatorHost": sys.argv[2]}
if drain := sys.argv[3:]:
    options["availableNowIdle"] = "300s"
reader = PubSubStreamReader(SOURCE_OPTIONS.parse(options), Shape())
if drain:
    reader.prepareForTriggerAvailableNow()
try:
    reader.latestOffset({"epoch": "", "seq": 0}, ReadMaxRows(10))
finally:  # as Spark's own program does
    if drain:
        reader.stop()
print("pulling", flush=True)
sys.stdin.read()
"""

# Has a planner as a child, as Spark's JVM has.
SPARK = "import subprocess, sys; subprocess.run([sys.executable, '-c', *sys.argv[1:]])"


@contextmanager
def planner(
    address: str, folder: Path, stderr: int = subprocess.DEVNULL, prelude: str = ""
) -> Iterator[subprocess.Popen[bytes]]:
    """A planner in a process of its own, whose agent makes its socket under ``folder``."""
    process = subprocess.Popen(
        [sys.executable, "-c", prelude + PLANNER, SUBSCRIPTION, address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        env=os.environ | {"TMPDIR": str(folder)},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def agent_of(process: subprocess.Popen[bytes]) -> psutil.Process:
    found: list[psutil.Process] = []
    wait_until(lambda: found.extend(descendants("solstice.pubsub._agent", of=process.pid)) or found, seconds=START_S)
    return found[0]


def agent_folders(folder: Path) -> list[Path]:
    return list(folder.glob("solstice-*/*"))


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder whose path leaves room for a socket's."""
    with tempfile.TemporaryDirectory(prefix="s-") as folder:
        yield Path(folder)


def test_a_planner_that_is_killed_leaves_nothing_behind(emulator, short_folder) -> None:
    send(emulator, 0, 50)
    with planner(emulator.address, short_folder) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"pulling\n"
        agent = agent_of(process)
        assert agent_folders(short_folder)
        process.kill()
        wait_until(lambda: has_ended(agent))
    wait_until(lambda: emulator.counters(SUBSCRIPTION)["outstanding"] == 0)
    assert emulator.counters(SUBSCRIPTION)["acked"] == 0
    assert agent_folders(short_folder) == []


def test_a_planner_that_drains_ends_with_its_agent_when_spark_is_killed(emulator, short_folder) -> None:
    spark = psutil.Popen(
        [sys.executable, "-c", SPARK, PLANNER, SUBSCRIPTION, emulator.address, "drain"],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"TMPDIR": str(short_folder)},
    )
    with spark:
        try:
            agent = agent_of(spark)
            planner = agent.parent()
            assert planner.ppid() == spark.pid
            wait_until(lambda: emulator.calls().get("StreamingPull", 0) > 0, seconds=START_S)
        finally:
            spark.kill()
    try:
        wait_until(lambda: has_ended(planner) and has_ended(agent))
    finally:
        if not has_ended(planner):
            planner.kill()
    assert agent_folders(short_folder) == []


def test_an_agent_that_is_still_connecting_ends_with_its_planner(short_folder) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with planner(address, short_folder) as process:
            agent = agent_of(process)
            connection, _ = silent.accept()
            process.kill()
            wait_until(lambda: has_ended(agent))
            connection.close()
    assert agent_folders(short_folder) == []


def test_an_agent_whose_log_nobody_reads_ends_with_its_planner(emulator, short_folder) -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writing, b"x" * 4_096)
    os.set_blocking(writing, True)
    with planner(emulator.address, short_folder, stderr=writing) as process:
        agent = agent_of(process)
        wait_until(lambda: len(list(short_folder.glob("*/*/agent.sock"))) == 1, seconds=START_S)
        process.kill()
        wait_until(lambda: has_ended(agent))
    os.close(reading)
    os.close(writing)


def test_the_memory_limit_of_a_planner_is_not_that_of_its_agent(emulator, short_folder) -> None:
    limit = "import resource as r; r.setrlimit(r.RLIMIT_AS, (8 << 30, r.getrlimit(r.RLIMIT_AS)[1]))\n"
    with planner(emulator.address, short_folder, prelude=limit) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"pulling\n"
        assert psutil.Process(process.pid).rlimit(psutil.RLIMIT_AS)[0] == 8 << 30
        soft, hard = agent_of(process).rlimit(psutil.RLIMIT_AS)
        assert soft == hard != 8 << 30


def test_an_agent_that_cannot_start_says_where_the_reason_is(new_reader, monkeypatch) -> None:
    monkeypatch.setenv("PYTHONHOME", "/nowhere")
    with pytest.raises(AgentLostError, match=r"status 1.*standard error"):
        new_reader()


def test_a_second_agent_on_a_subscription_warns_and_names_the_first(emulator, new_reader, caplog) -> None:
    first = new_reader()
    with serving() as elsewhere:  # the same name at another place is another subscription
        new_reader(emulatorHost=elsewhere.address)
        assert not [record for record in caplog.records if "another agent" in record.message]
        new_reader()
        [warning] = [record.message for record in caplog.records if "another agent" in record.message]
    assert f"(process {agent_process(first).pid})" in warning
    assert "foreachBatch" in warning


def test_a_dead_agent_fails_the_query_and_says_that_nothing_is_lost(emulator, new_reader) -> None:
    reader = new_reader()
    send(emulator, 0, 10)
    end, partitions = cut(reader, START, 10)
    os.kill(agent_process(reader).pid, signal.SIGKILL)
    with pytest.raises(AgentLostError, match="Nothing is lost"):
        reader.latestOffset(end, ReadMaxRows(10))
    with pytest.raises(PartUnavailableError):
        read(reader, partitions)


def test_ctrl_c_does_not_reach_the_agent(new_reader) -> None:
    reader = new_reader()
    agent = agent_process(reader)
    agent.send_signal(signal.SIGINT)
    assert reader.latestOffset(START, ReadMaxRows(10)) == START
    assert os.getsid(agent.pid) == agent.pid
    assert agent.is_running()
    # Not only while it runs native code, which does not hear it anyway.
    ignored = re.search(r"SigIgn:\t([0-9a-f]+)", Path(f"/proc/{agent.pid}/status").read_text())
    assert int(ignored[1], 16) & 1 << (signal.SIGINT - 1)


def test_a_part_that_the_agent_does_not_know_is_an_error(emulator, new_reader) -> None:
    from dataclasses import replace

    reader = new_reader()
    send(emulator, 0, 10)
    _, [partition] = cut(reader, START, 10)
    for wrong in ({"index": 1}, {"seq": 9}, {"epoch": "another-life"}, {"token": "guess"}, {"rows": 11}):
        with pytest.raises(PartUnavailableError):
            read(reader, [replace(partition, **wrong)])
    assert len(read(reader, [partition])) == 10


def test_a_partition_does_not_show_its_token(emulator, new_reader) -> None:
    reader = new_reader()
    send(emulator, 0, 10)
    _, [partition] = cut(reader, START, 10)
    assert partition.token not in repr(partition)
    assert pickle.loads(pickle.dumps(partition)) == partition


def test_an_unused_reader_can_be_pickled_and_starts_nothing(new_reader) -> None:
    before = psutil.Process().children()
    copy = cloudpickle.loads(cloudpickle.dumps(new_reader(started=False)))
    assert copy.initialOffset() == START
    assert psutil.Process().children() == before


def test_leases_are_extended_for_as_long_as_rows_are_held(emulator, new_reader) -> None:
    reader = new_reader(ackDeadline="10s")
    send(emulator, 0, 100)
    end, _ = cut(reader, START, 100)
    send(emulator, 100, 100)  # stays in the buffer
    time.sleep(12)  # longer than the lease: the point of this test is the passing of time
    counters = emulator.counters(SUBSCRIPTION)
    assert (counters["expired"], counters["redelivered"], counters["outstanding"]) == (0, 0, 200)
    assert reader.latestOffset(end, ReadMaxRows(10)) != end
    wait_until(lambda: emulator.counters(SUBSCRIPTION)["acked"] == 100)


def test_a_trigger_that_never_comes_back_is_refused(new_reader) -> None:
    with pytest.raises(UnsupportedTriggerError, match="availableNow=True"):
        new_reader(started=False).latestOffset(START, ReadAllAvailable())


def test_a_subscription_that_is_not_there_is_named(emulator, new_reader) -> None:
    with pytest.raises(NotFoundError, match="projects/test/subscriptions/nobody"):
        new_reader(subscriptionId="projects/test/subscriptions/nobody")
    assert psutil.Process().children() == []


def test_a_subscription_that_is_deleted_fails_the_query(emulator, new_reader) -> None:
    import grpc
    from google.api_core.client_options import ClientOptions
    from google.auth.credentials import AnonymousCredentials
    from google.cloud.pubsub_v1 import SubscriberClient
    from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

    reader = new_reader()
    channel = grpc.insecure_channel(emulator.address)
    transport = SubscriberGrpcTransport(channel=channel, credentials=AnonymousCredentials())
    SubscriberClient(transport=transport, client_options=ClientOptions()).delete_subscription(
        request={"subscription": SUBSCRIPTION}
    )
    channel.close()

    def failed() -> bool:
        try:
            reader.latestOffset(START, ReadMaxRows(10))
        except NotFoundError:
            return True
        return False

    wait_until(failed)


def test_an_emulator_that_is_not_there_is_named_with_the_fix(new_reader) -> None:
    with pytest.raises(UnavailableError, match=r"127\.0\.0\.1:1.*solstice pubsub emulator"):
        new_reader(emulatorHost="127.0.0.1:1")


def test_streams_come_back_when_the_emulator_does(new_reader, emulator) -> None:
    reader = new_reader(streams="3")
    port = emulator.port
    emulator.stop()
    with PubSubEmulator(port=port) as again:
        again.create_topic(TOPIC)
        again.create_subscription(SUBSCRIPTION, TOPIC)
        sent = send(again, 0, 1_000)
        wait_until(lambda: reader.reportLatestOffset()["received"] >= 1_000, seconds=20)
        _, partitions = cut(reader, START, 1_000)
        assert set(read(reader, partitions)) == sent
        assert reader.reportLatestOffset()["reconnects"] >= 1
        reader.stop()
