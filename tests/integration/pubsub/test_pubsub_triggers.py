"""The life of a query on a real Spark: AvailableNow, its metrics, its logs, and how it ends."""

import json
import os
import socket
import threading
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from processes import descendants
from pubsub_queries import SUBSCRIPTION, agents_of, send, stored, wait_for_end, wait_until
from solstice.pubsub._registry import AgentEntry, living_agents
from solstice.testing import PubSubEmulator
from waiting import free_port

pytestmark = pytest.mark.spark


def writer(spark: Any, emulator: PubSubEmulator, folder: Path, **options: str) -> Any:
    given = {"subscriptionId": SUBSCRIPTION, "emulatorHost": emulator.address, "availableNowIdle": "3s"} | options
    frame = spark.readStream.format("pubsub").options(**given).load()
    return (
        frame.selectExpr("cast(data as string) as event")
        .writeStream.format("parquet")
        .option("path", str(folder / "out"))
        .option("checkpointLocation", str(folder / "checkpoint"))
    )


def run_to_the_end(query: Any) -> None:
    try:
        agents = agents_of(query)
        assert query.awaitTermination(90), "the run did not end"
    finally:
        query.stop()
    wait_for_end(agents)


def test_available_now_reads_what_is_there_acknowledges_it_and_ends_also_when_started_again(
    spark, emulator, tmp_path
) -> None:
    sent = send(emulator, 0, 3_000)
    stop = threading.Event()

    def publish_steadily() -> None:
        number = 1_000_000
        while not stop.wait(0.1):
            send(emulator, number, 5)
            number += 5

    run = writer(spark, emulator, tmp_path, maxMessagesPerTrigger="1200").trigger(availableNow=True)
    run_to_the_end(run.start())
    assert sorted(stored(tmp_path)) == sorted(sent)
    counters = emulator.counters(SUBSCRIPTION)
    assert (counters["acked"], counters["outstanding"], counters["backlog"]) == (3_000, 0, 0)

    sent |= send(emulator, 3_000, 1_000)
    publisher = threading.Thread(target=publish_steadily)
    publisher.start()
    try:
        run_to_the_end(writer(spark, emulator, tmp_path).trigger(availableNow=True).start())
    finally:
        stop.set()
        publisher.join()
    assert sent <= set(stored(tmp_path))
    # What came later is in the sink and acknowledged, or neither.
    assert emulator.counters(SUBSCRIPTION)["acked"] == len(stored(tmp_path)) == len(set(stored(tmp_path)))


def test_available_now_on_an_empty_subscription_ends_and_can_be_stopped_while_it_waits(
    spark, emulator, tmp_path
) -> None:
    run_to_the_end(writer(spark, emulator, tmp_path).trigger(availableNow=True).start())
    assert stored(tmp_path) == []
    query = writer(spark, emulator, tmp_path, availableNowIdle="10m").trigger(availableNow=True).start()
    agents = agents_of(query)
    query.stop()
    wait_for_end(agents)


def test_a_trigger_that_reads_once_is_refused_with_the_one_to_use(spark, emulator, tmp_path) -> None:
    query = writer(spark, emulator, tmp_path).trigger(once=True).start()
    with pytest.raises(Exception, match="availableNow=True"):
        query.awaitTermination(60)


def test_the_counts_are_in_the_progress_and_for_prometheus_while_the_query_runs(spark, emulator, tmp_path) -> None:
    port = free_port()

    def scrape() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as response:
            return response.read().decode()

    def progress() -> dict[str, Any]:
        sources = (query.lastProgress or {"sources": []})["sources"]
        return json.loads(sources[0]["latestOffset"] or "{}") if sources else {}

    send(emulator, 0, 1_000)
    query = writer(spark, emulator, tmp_path, metricsPort=str(port)).start()
    try:
        wait_until(lambda: progress().get("acked") == 1_000)
        assert progress()["pubsub_backlog_count"] == 0
        assert progress()["memory_bytes"] > 0
        assert f'solstice_pubsub_acked_total{{subscription="{SUBSCRIPTION}"}} 1000.0' in scrape()
    finally:
        query.stop()
    wait_until(lambda: not _is_open(port), seconds=5)


def test_an_agent_that_tasks_cannot_reach_fails_the_query_with_the_options_that_help(spark, emulator, tmp_path) -> None:
    query = writer(spark, emulator, tmp_path).start()
    try:
        wait_until(lambda: bool(own_agents()))
        [agent] = own_agents()
        os.unlink(agent.socket)
        send(emulator, 0, 10)
        with pytest.raises(Exception, match=r"cannot be reached at .*agent\.sock.*agentHost"):
            query.awaitTermination(60)
    finally:
        query.stop()
    assert emulator.counters(SUBSCRIPTION)["acked"] == 0


def own_agents() -> list[AgentEntry]:
    """Those of this process; others of the same user may run tests, too."""
    pids = {process.pid for process in descendants("solstice.pubsub._agent")}
    return [agent for agent in living_agents() if agent.pid in pids]


def _is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
