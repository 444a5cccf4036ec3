"""Executors that are not the driver: two workers of a real Spark standalone cluster, at two addresses."""

import os
from collections.abc import Iterator

import psutil
import pytest

from pubsub_agents import own_agents
from pubsub_queries import SUBSCRIPTION, send, stored, wait_for_end
from solstice.pubsub._agent import ask_status
from solstice.pubsub._registry import AgentEntry, living_agents
from spark_driver import SparkDriver, spark_driver
from spark_standalone import StandaloneCluster, standalone_cluster

pytestmark = pytest.mark.spark

ROWS = 30_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    with standalone_cluster(tmp_path_factory.mktemp("standalone")) as cluster:
        yield cluster


@pytest.fixture
def own_registry() -> Iterator[None]:
    with own_agents():
        yield


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
        process = psutil.Process(agent.pid)
        assert listening(agent) == ["127.0.0.1"]
        hidden = agent.socket + ".hidden"
        os.rename(agent.socket, hidden)  # as if every executor were on another host
        sent = send(emulator, 0, ROWS)
        driver.wait_until(lambda: emulator.counters(SUBSCRIPTION)["acked"] == ROWS)
        assert [len(worker.executors()) for worker in cluster.workers] == [1, 1]
        assert ask_status(hidden, agent.token)["executor_cores"] == 2
    assert sorted(stored(tmp_path)) == sorted(sent)
    # The agent's records are in the driver's log.
    assert f"INFO solstice.native.agent.server: agent {agent.epoch} pulls from {SUBSCRIPTION}" in driver.log()
    wait_for_end([process])
