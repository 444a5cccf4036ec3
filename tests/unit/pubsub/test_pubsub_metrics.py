"""The agent's counts, as ``solstice pubsub status``, the query progress and Prometheus show them."""

import json
import os
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql.streaming.datasource import ReadMaxRows
from typer.testing import CliRunner

from processes import descendants
from pubsub_agents import START, SUBSCRIPTION, agent_process, cut, own_agents, reading, send, serving
from solstice.cli._app import build_app
from solstice.errors import ConfigError
from solstice.testing import PubSubEmulator
from waiting import free_port, wait_until


@pytest.fixture
def emulator() -> Iterator[PubSubEmulator]:
    with serving() as emulator:
        yield emulator


@pytest.fixture
def own_registry() -> Iterator[None]:
    with own_agents():
        yield


def status(*arguments: str) -> str:
    """What ``solstice pubsub status`` prints."""
    result = CliRunner().invoke(build_app(rich_help=False), ["pubsub", "status", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def scrape(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as response:
        families = list(text_string_to_metric_families(response.read().decode()))
    samples = [sample for family in families for sample in family.samples]
    assert {sample.labels["subscription"] for sample in samples} <= {SUBSCRIPTION}
    return {sample.name: sample.value for sample in samples}


def test_the_counts_tell_what_is_held_and_what_became_of_the_rest(emulator) -> None:
    with reading(emulator) as reader:
        assert reader.reportLatestOffset() is None
        send(emulator, 0, 300)
        end, _ = cut(reader, START, 300, limit=100)
        counts = reader.reportLatestOffset()
        assert (counts["received"], counts["buffered"], counts["leased"]) == (300, 200, 300)
        assert counts["pubsub_backlog_count"] == 300
        assert counts["held_bytes"] > 300 * len("event-000")
        assert 0 < counts["oldest_unacked_s"] <= counts["uptime_s"] + 1
        resident = agent_process(reader).memory_info().rss
        assert counts["memory_bytes"] == pytest.approx(resident, rel=0.5)
        reader.latestOffset(end, ReadMaxRows(1))
        wait_until(lambda: reader.reportLatestOffset()["acked"] == 100)
        assert reader.reportLatestOffset()["pubsub_backlog_count"] == 200
        json.dumps(reader.reportLatestOffset())


def test_a_message_that_comes_again_is_counted_where_the_service_counts() -> None:
    with serving() as emulator:
        emulator.create_topic("projects/test/topics/dead")
        name = "projects/test/subscriptions/counted"
        emulator.create_subscription(
            name, "projects/test/topics/events", dead_letter_topic="projects/test/topics/dead", max_delivery_attempts=50
        )
        with reading(emulator, subscriptionId=name) as reader:
            send(emulator, 0, 10)
            cut(reader, START, 10)
            reader.latestOffset({"epoch": "another-life", "seq": 1}, ReadMaxRows(10))  # gives the batch back
            wait_until(lambda: reader.reportLatestOffset()["redelivered"] == 10)
            assert reader.reportLatestOffset()["nacked"] == 10


def test_prometheus_scrapes_the_counts_while_nobody_asks_for_a_batch_and_not_after_the_end(emulator) -> None:
    port = free_port()
    with reading(emulator, metricsPort=str(port)) as reader:
        assert reader.latestOffset(START, ReadMaxRows(10)) == START
        send(emulator, 0, 300)
        wait_until(lambda: scrape(port)["solstice_pubsub_received_total"] == 300)
        samples = scrape(port)
        assert samples["solstice_pubsub_backlog_count"] == samples["solstice_pubsub_leased"] == 300
        assert samples["solstice_pubsub_memory_bytes"] > 1_000_000
        shown = {name.removeprefix("solstice_pubsub_").removesuffix("_total") for name in samples}
        assert shown == {name.removeprefix("pubsub_") for name in reader.reportLatestOffset()}
        agent_process(reader).kill()
        wait_until(lambda: scrape(port) == {})
    with pytest.raises(OSError, match="refused"):
        scrape(port)


def test_prometheus_sees_what_is_in_the_log(emulator, tmp_path) -> None:
    port = free_port()
    log = {"delivery": "log", "logPath": str(tmp_path / "log")}
    with reading(emulator, metricsPort=str(port), **log) as reader:
        send(emulator, 0, 300)
        end, _ = cut(reader, START, 300)
        samples = scrape(port)
        assert (samples["solstice_pubsub_log_waiting"], samples["solstice_pubsub_log_known_ids"]) == (1, 300)
        reader.latestOffset(end, ReadMaxRows(10))
        assert scrape(port)["solstice_pubsub_log_waiting"] == 0
        docs = (Path(__file__).parents[3] / "docs" / "pubsub.md").read_text()
        assert [name for name in reader.reportLatestOffset() if f"`{name}`" not in docs] == []


def test_a_metrics_port_that_is_taken_fails_the_query_and_is_named(emulator) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with reading(emulator, metricsPort=str(port)) as reader:
            with pytest.raises(ConfigError, match=f"metricsPort is {port}.*free port"):
                reader.latestOffset(START, ReadMaxRows(10))
            assert descendants("solstice.pubsub._agent") == []


@pytest.mark.usefixtures("own_registry")
def test_status_lists_the_agents_of_this_user_with_counts_and_rates(emulator) -> None:
    other = "projects/test/subscriptions/other"
    emulator.create_subscription(other, "projects/test/topics/events")
    with reading(emulator) as first, reading(emulator, subscriptionId=other) as second:
        send(emulator, 0, 50)
        cut(first, START, 50)
        cut(second, START, 50)
        reports = json.loads(status("--json"))
        assert [report["subscription"] for report in reports] == [SUBSCRIPTION, other]
        assert [report["pid"] for report in reports] == [agent_process(first).pid, agent_process(second).pid]
        for report in reports:
            assert (report["received"], report["leased"], report["received_per_s"]) == (50, 50, 0.0)
            assert "token" not in report
        shown = status()
        assert f"{SUBSCRIPTION}  agent {agent_process(first).pid}" in shown
        assert "holds     50 messages" in shown


@pytest.mark.usefixtures("own_registry")
def test_status_tells_an_agent_that_does_not_answer(emulator) -> None:
    with reading(emulator) as reader:
        reader.latestOffset(START, ReadMaxRows(10))
        assert reader._agent is not None
        os.unlink(reader._agent.socket)
        assert "does not answer" in status()


@pytest.mark.usefixtures("own_registry")
def test_status_says_when_there_is_no_agent() -> None:
    assert "No agent" in status()
    assert json.loads(status("--json")) == []
