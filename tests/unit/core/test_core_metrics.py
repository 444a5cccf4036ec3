"""Metrics: what they show, over the real endpoint."""

import socket
import threading
import urllib.request

import pytest
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from solstice._core.metrics import Metrics
from solstice.errors import MachineError


def samples(text):
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_endpoint_shows_counters_gauges_and_histograms():
    metrics = Metrics()
    metrics.counter("messages", "Messages.", ["stage"]).labels("map").inc(3)
    metrics.gauge("lag", "Lag.").set(7)
    metrics.histogram("seconds", "Time.", buckets=(1, 2)).observe(1.5)
    with metrics.serve() as endpoint, urllib.request.urlopen(endpoint.url, timeout=10) as response:
        assert response.headers["Content-Type"].startswith("text/plain")
        shown = samples(response.read().decode())
    assert shown["solstice_messages_total", (("stage", "map"),)] == 3
    assert shown["solstice_lag", ()] == 7
    assert shown["solstice_seconds_bucket", (("le", "1.0"),)] == 0
    assert shown["solstice_seconds_bucket", (("le", "2.0"),)] == 1
    assert shown["solstice_seconds_sum", ()] == 1.5
    assert shown == samples(metrics.text())


def test_a_registry_is_apart_from_every_other_one():
    one, other = Metrics(), Metrics()
    one.counter("apart", "Only here.").inc()
    assert "solstice_apart" in one.text()
    assert "solstice_apart" not in other.text()
    assert REGISTRY.get_sample_value("solstice_apart_total") is None


def test_asking_twice_for_a_metric_gives_the_same_one():
    metrics = Metrics()
    assert metrics.counter("messages", "Messages.") is metrics.counter("messages", "Messages.")


def test_one_name_for_two_kinds_of_metric_is_refused():
    metrics = Metrics()
    metrics.counter("messages", "Messages.")
    with pytest.raises(ValueError, match="'messages' is a Counter, not a Gauge"):
        metrics.gauge("messages", "Messages.")


def test_the_endpoint_is_bound_to_loopback_only():
    with Metrics().serve() as endpoint:
        assert endpoint._server.socket.getsockname()[0] == "127.0.0.1"


def test_making_a_registry_starts_no_thread():
    before = threading.active_count()
    Metrics().gauge("lag", "Lag.")
    assert threading.active_count() == before


def test_stopping_leaves_no_thread_and_frees_the_port():
    before = set(threading.enumerate())
    endpoint = Metrics().serve()
    port = endpoint.port
    urllib.request.urlopen(endpoint.url, timeout=10).close()
    endpoint.stop()
    assert set(threading.enumerate()) == before
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=10)
    endpoint.stop()  # a second stop does nothing


def test_a_client_that_says_nothing_blocks_neither_others_nor_the_stop():
    before = set(threading.enumerate())
    endpoint = Metrics().serve()
    with socket.create_connection(("127.0.0.1", endpoint.port), timeout=10):
        urllib.request.urlopen(endpoint.url, timeout=10).close()
        endpoint.stop()
    assert set(threading.enumerate()) == before


def test_a_port_that_is_taken_names_the_port_and_the_fix():
    with Metrics().serve() as first, pytest.raises(MachineError, match=f"127.0.0.1:{first.port}.*another port"):
        Metrics().serve(first.port)
