"""Executors that are not the driver: two workers of a real Spark standalone cluster, at two addresses."""

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from processes import descendants
from solstice.pubsub import publish
from solstice.pubsub._agent import ask_status
from solstice.pubsub._registry import AgentEntry, living_agents
from solstice.testing import PubSubEmulator
from spark_driver import SparkDriver, spark_driver
from spark_standalone import StandaloneCluster, standalone_cluster

pytestmark = pytest.mark.spark

TOPIC = "projects/test/topics/events"
SUBSCRIPTION = "projects/test/subscriptions/events"
ROWS = 30_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    with standalone_cluster(tmp_path_factory.mktemp("standalone")) as cluster:
        yield cluster


@pytest.fixture
def emulator() -> Iterator[PubSubEmulator]:
    with PubSubEmulator() as emulator:
        emulator.create_topic(TOPIC)
        emulator.create_subscription(SUBSCRIPTION, TOPIC)
        yield emulator


@pytest.fixture
def own_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A temporary folder of the driver's own, in which its agent is the only one."""
    with tempfile.TemporaryDirectory(prefix="s-") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield


def send(emulator: PubSubEmulator, first: int, count: int) -> set[str]:
    payloads = [f"event-{number}" for number in range(first, first + count)]
    assert publish(TOPIC, pa.table({"data": payloads}), emulator_host=emulator.address).published == count
    return set(payloads)


def stored(folder: Path) -> list[str]:
    files = set()
    for entry in sorted((folder / "out" / "_spark_metadata").glob("[0-9]*")):
        files |= {json.loads(line)["path"] for line in entry.read_text().splitlines()[1:]}
    return [event for file in files for event in pq.read_table(file.removeprefix("file://"))["event"].to_pylist()]


def the_agent(driver: SparkDriver) -> AgentEntry:
    found: list[AgentEntry] = []
    driver.wait_until(lambda: bool(found.extend(living_agents()) or found))
    return found[0]


def listening(agent: AgentEntry) -> list[str]:
    connections = psutil.Process(agent.pid).net_connections(kind="tcp")
    return [connection.laddr.ip for connection in connections if connection.status == psutil.CONN_LISTEN]


@pytest.mark.usefixtures("own_registry")
def test_executors_that_do_not_see_the_socket_read_over_tcp_and_tell_their_cores(cluster, emulator, tmp_path) -> None:
    options = {"subscriptionId": SUBSCRIPTION, "emulatorHost": emulator.address, "maxMessagesPerTrigger": str(ROWS)}
    settings = {"spark.executor.memory": "512m", "spark.executor.cores": "1"}
    with spark_driver(tmp_path, cluster.url, options, settings) as driver:
        agent = the_agent(driver)
        assert listening(agent) == ["127.0.0.1"]
        hidden = agent.socket + ".hidden"
        os.rename(agent.socket, hidden)  # as if every executor were on another host
        sent = send(emulator, 0, ROWS)
        driver.wait_until(lambda: emulator.counters(SUBSCRIPTION)["acked"] == ROWS)
        assert [len(worker.executors()) for worker in cluster.workers] == [1, 1]
        assert ask_status(hidden, agent.token)["executor_cores"] == 2
    assert sorted(stored(tmp_path)) == sorted(sent)
    assert not descendants("solstice.pubsub._agent")
