"""The agent's counts for Prometheus."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from solstice._core.metrics import MetricsEndpoint
from solstice.errors import ConfigError, MachineError, SolsticeError
from solstice.pubsub._agent import AgentProcess, ask_status

_PREFIX = "solstice_"
_COUNTERS = {
    "received": "Messages received from Pub/Sub.",
    "redelivered": "Messages received once more, where Pub/Sub counts deliveries.",
    "acked": "Messages acknowledged and confirmed.",
    "nacked": "Messages given back.",
    "refused": "Messages acknowledged too late.",
    "expired": "Messages that lost their lease here.",
    "reconnects": "Streams opened again.",
}
_GAUGES = {
    "pubsub_backlog_count": "Messages received and not acknowledged yet.",
    "buffered": "Messages waiting for a batch.",
    "leased": "Messages neither acknowledged nor given back.",
    "acking": "Messages whose acknowledgement is under way.",
    "held_bytes": "Bytes of messages held.",
    "oldest_unacked_s": "The age of the message held longest, in seconds.",
    "memory_bytes": "Memory of the agent's process.",
    "uptime_s": "How long the agent has lived, in seconds.",
    "executor_cores": "Cores of the executors that have read lately.",
}


class _AgentCollector(Collector):
    def __init__(self, subscription: str, agent: AgentProcess) -> None:
        self._subscription = subscription
        self._agent = agent

    def describe(self) -> list[Metric]:
        """Nothing: registering does not ask the agent."""
        return []

    def collect(self) -> Iterator[Metric]:
        """What the agent says at this moment; nothing when it is gone."""
        try:
            status = ask_status(self._agent.socket, self._agent.token)
        except SolsticeError:
            return
        for kind, docs in ((CounterMetricFamily, _COUNTERS), (GaugeMetricFamily, _GAUGES)):
            for name, doc in docs.items():
                family = kind(_PREFIX + "pubsub_" + name.removeprefix("pubsub_"), doc, labels=["subscription"])
                family.add_metric([self._subscription], status[name])
                yield family


def serve_metrics(subscription: str, agent: AgentProcess, port: int) -> MetricsEndpoint:
    """Serve the agent's counts to Prometheus, on the driver's loopback, until ``stop``."""
    registry = CollectorRegistry()
    registry.register(_AgentCollector(subscription, agent))
    endpoint = MetricsEndpoint(registry, port)
    try:
        endpoint.start()
    except MachineError as error:
        raise ConfigError(
            f"metricsPort is {port}: {error.message}", option="metricsPort", value=port, remedy="Set it to a free port."
        ) from error
    return endpoint
