"""The counts of a query for Prometheus."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from solstice._core.metrics import MetricsEndpoint
from solstice.errors import ConfigError, MachineError, SolsticeError
from solstice.pubsub._agent import AgentProcess, ask_status
from solstice.pubsub._delivery import Delivery

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
_GAUGES_OF_LOG = {
    "log_waiting": "Batches in the log that Spark has not made durable yet.",
    "log_known_ids": "Message ids that are remembered, to drop copies.",
}


class _Collector(Collector):
    def __init__(self, subscription: str, agent: AgentProcess, delivery: Delivery) -> None:
        self._subscription = subscription
        self._agent = agent
        self._delivery = delivery

    def describe(self) -> list[Metric]:
        """Nothing: registering does not ask the agent."""
        return []

    def collect(self) -> Iterator[Metric]:
        """What the agent says at this moment; nothing when it is gone."""
        try:
            status = ask_status(self._agent.socket, self._agent.token)
        except SolsticeError:
            return
        logged = self._delivery.count()
        status |= logged
        gauges = _GAUGES | _GAUGES_OF_LOG if logged else _GAUGES
        for kind, docs in ((CounterMetricFamily, _COUNTERS), (GaugeMetricFamily, gauges)):
            for name, doc in docs.items():
                family = kind(_PREFIX + "pubsub_" + name.removeprefix("pubsub_"), doc, labels=["subscription"])
                family.add_metric([self._subscription], status[name])
                yield family


def serve_metrics(subscription: str, agent: AgentProcess, delivery: Delivery, port: int) -> MetricsEndpoint:
    """Serve the counts of agent and log to Prometheus, on the driver's loopback, until ``stop``."""
    registry = CollectorRegistry()
    registry.register(_Collector(subscription, agent, delivery))
    endpoint = MetricsEndpoint(registry, port)
    try:
        endpoint.start()
    except MachineError as error:
        raise ConfigError(
            f"metricsPort is {port}: {error.message}", option="metricsPort", value=port, remedy="Set it to a free port."
        ) from error
    return endpoint
