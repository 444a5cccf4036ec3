"""Metrics of one component: counters, gauges and histograms in a registry of their own, and a Prometheus endpoint."""

import socketserver
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any, TypeVar
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, make_wsgi_app

from solstice.errors import MachineError

HOST = "127.0.0.1"

_Metric = TypeVar("_Metric", Counter, Gauge, Histogram)


class Metrics:
    """A registry. Asking twice for a metric gives the same one, so that code needs no place to keep it."""

    def __init__(self, prefix: str = "solstice") -> None:
        self._prefix = prefix
        self._registry = CollectorRegistry()
        self._metrics: dict[str, Counter | Gauge | Histogram] = {}
        self._lock = threading.Lock()

    def counter(self, name: str, doc: str, labels: Sequence[str] = ()) -> Counter:
        """A number that only grows; it is shown as ``<prefix>_<name>_total``."""
        return self._get(Counter, name, doc, labels)

    def gauge(self, name: str, doc: str, labels: Sequence[str] = ()) -> Gauge:
        """A number that goes up and down."""
        return self._get(Gauge, name, doc, labels)

    def histogram(
        self, name: str, doc: str, labels: Sequence[str] = (), buckets: Sequence[float] = Histogram.DEFAULT_BUCKETS
    ) -> Histogram:
        """A distribution; the buckets are upper bounds."""
        return self._get(Histogram, name, doc, labels, buckets=buckets)

    def text(self) -> str:
        """Every metric in Prometheus' text format."""
        return generate_latest(self._registry).decode()

    def serve(self, port: int = 0) -> "MetricsEndpoint":
        """Serve the text over HTTP on loopback until ``stop``; port 0 picks a free one."""
        endpoint = MetricsEndpoint(self._registry, port)
        endpoint.start()
        return endpoint

    def _get(self, kind: type[_Metric], name: str, doc: str, labels: Sequence[str], **options: Any) -> _Metric:
        with self._lock:
            known = self._metrics.get(name)
            if known is None:
                metric = kind(f"{self._prefix}_{name}", doc, tuple(labels), registry=self._registry, **options)
                self._metrics[name] = metric
                return metric
        if not isinstance(known, kind):
            raise ValueError(f"the metric {name!r} is a {type(known).__name__}, not a {kind.__name__}")
        return known


class MetricsEndpoint:
    """The HTTP endpoint of a registry. ``stop`` returns when its port is closed and its threads are gone."""

    def __init__(self, registry: CollectorRegistry, port: int) -> None:
        self._registry = registry
        self._asked_port = port
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        """The port in use; the one that was asked for when it does not run."""
        return self._asked_port if self._server is None else self._server.server_port

    @property
    def url(self) -> str:
        """Where Prometheus finds the metrics."""
        return f"http://{HOST}:{self.port}/metrics"

    def start(self) -> None:
        """Bind the port and serve in a thread."""
        try:
            server = _Server((HOST, self._asked_port), _Handler)
        except OSError as error:
            raise MachineError(
                f"the metrics endpoint cannot listen on {HOST}:{self._asked_port} ({error.strerror}).",
                remedy="Use another port, or 0 for any free one.",
            ) from error
        server.set_app(make_wsgi_app(self._registry))
        self._server = server
        self._thread = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.05}, name="solstice-metrics", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Close the port and wait for the threads; a second call does nothing."""
        if self._server is None or self._thread is None:
            return
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._server = self._thread = None

    def __enter__(self) -> "MetricsEndpoint":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    """One thread per request; closing the server waits for all of them."""

    daemon_threads = False
    block_on_close = True

    def server_bind(self) -> None:
        # The parent asks DNS for the host's name, which can take seconds and is never used.
        socketserver.TCPServer.server_bind(self)
        self.server_name = HOST
        self.server_port = self.server_address[1]
        self.setup_environ()


class _Handler(WSGIRequestHandler):
    """Silent, and never stuck on a client that connects and says nothing."""

    timeout = 2.0

    def log_message(self, format: str, *args: Any) -> None:
        """Scrapes are not worth a line each."""
