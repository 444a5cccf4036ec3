"""The streaming reader: planner on the driver, ``read`` in the workers.

The delivery rule: a batch is cut before Spark plans it and never changes; reading a part is a look-up that gives the
same rows to every attempt, or an error; the agent that cut a batch acknowledges it, after Spark has made it durable.
Spark shows that by asking for what follows it. The agent keeps the rules (see ``crates/core/src/agent/book.rs``), this
file keeps to Spark's order of calls.
"""

import gc
import logging
import os
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from solstice._core.options import OptionValues
from solstice._core.portable import Portable
from solstice.errors import AgentLostError, ConfigError, PartUnavailableError, UnsupportedTriggerError
from solstice.pubsub import _cluster
from solstice.pubsub._admin import check_dead_letter_topic, ensure_subscription
from solstice.pubsub._agent import AgentProcess
from solstice.pubsub._connection import connection
from solstice.pubsub._delivery import AgentDelivery, Delivery
from solstice.pubsub._log_delivery import LogDelivery
from solstice.pubsub._log_store import check_location
from solstice.pubsub._options import resource_name
from solstice.pubsub._parts import AgentPart, LogPart
from solstice.pubsub._shape import Shape

if TYPE_CHECKING:
    from solstice._core.metrics import MetricsEndpoint

_log = logging.getLogger(__name__)

# Without a wait Spark asks 65 times a second when there is nothing to read.
_IDLE_WAIT_MS = 500
_WARN_EVERY_S = 30.0


class PubSubStreamReader(Portable, DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Spark's view of a subscription. The agent starts with the first ``latestOffset``, in the planner only."""

    def __init__(self, values: OptionValues, shape: Shape) -> None:
        self._values = values
        self._shape = shape
        self._subscription = resource_name("subscriptions", values["subscriptionId"], values)
        connection(values)  # so that a wrong address fails at load
        if values["logPath"] is not None:
            check_location(values["logPath"])
        self._agent: AgentProcess | None = None
        self._spark_pid = 0
        self._delivery: Delivery | None = None
        self._metrics: MetricsEndpoint | None = None
        self._cluster: _cluster.Driver | None = None
        self._available_now = False

    def initialOffset(self) -> dict[str, Any]:
        """Asked more than once: constant."""
        return {"epoch": "", "seq": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        """A row limit: with none, Spark could not tell a stream from a single batch."""
        return ReadMaxRows(self._values["maxMessagesPerTrigger"])

    def prepareForTriggerAvailableNow(self) -> None:
        """This run ends when all has been read that is there when its agent starts."""
        self._available_now = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """What follows ``start``, which is durable now; ``start`` itself when there is nothing.

        For availableNow "nothing" is the end of the query: it is said when the subscription is drained, and only then.
        """
        if isinstance(limit, ReadAllAvailable):
            raise UnsupportedTriggerError(
                "this trigger (once, or availableNow next to a source that cannot do it) reads one batch and never "
                "comes back, so that nothing would ever be acknowledged.",
                remedy="Use .trigger(availableNow=True), which reads all there is and ends, with sources that support "
                "it; or .trigger(processingTime=...).",
            )
        _check_offset(start)
        delivery, agent, end = self._deliver(), self._agent, None
        warn_at = time.monotonic() + self._values["availableNowIdle"] + _WARN_EVERY_S
        while agent is not None and not agent.drained:
            end = delivery.next(
                start,
                max_rows=limit.max_rows,
                max_bytes=self._values["maxBytesPerTrigger"],
                max_parts=self._values["numPartitions"] or self._driver().cores,
                wait_ms=_IDLE_WAIT_MS,
            )
            if end is not None or not self._available_now:
                break
            self._check_spark()
            if time.monotonic() >= warn_at:
                self._warn_of_outage()
                warn_at += _WARN_EVERY_S
        return start if end is None else end  # the same object: Spark compares the JSON text

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The parts of the batch that ends at ``end``; after a restart, this is asked before ``latestOffset``."""
        _check_offset(end)
        return [] if start == end else self._deliver().partitions(end)

    def _deliver(self) -> Delivery:
        """The delivery of this life, which begins here."""
        if self._agent is None or self._delivery is None:
            self._spark_pid = os.getppid()
            agent = self._start_agent()
            try:
                log = self._values["delivery"] == "log"
                delivery = LogDelivery(agent, self._subscription, self._values) if log else AgentDelivery(agent)
                self._metrics = self._serve_metrics(agent, delivery)
            except BaseException:
                agent.close()
                raise
            self._agent, self._delivery = agent, delivery
        return self._delivery

    def _serve_metrics(self, agent: AgentProcess, delivery: Delivery) -> "MetricsEndpoint | None":
        if not self._values["metricsPort"]:
            return None
        from solstice.pubsub._metrics import serve_metrics

        return serve_metrics(self._subscription, agent, delivery, self._values["metricsPort"])

    def _check_spark(self) -> None:
        """A killed JVM cannot say that it is gone, and nobody else would end a planner that is waiting."""
        if os.getppid() != self._spark_pid:
            raise AgentLostError(
                f"Spark (process {self._spark_pid}) has ended, and this query with it.",
                remedy="Start it again from its checkpoint; nothing is lost.",
            )

    def _warn_of_outage(self) -> None:
        """With every stream open and every acknowledgement answered, the run would have gone on or ended by now."""
        _log.warning(
            "availableNow waits for %s: not all streams to it are open, or acknowledgements have no answer "
            "(%s connections were made again so far). The run goes on by itself when Pub/Sub does; check that this "
            "host reaches the endpoint (or emulatorHost), and the quotas of the project.",
            self._subscription,
            self._agent.status()["reconnects"] if self._agent else 0,
        )

    def _start_agent(self) -> AgentProcess:
        if self._values["createSubscription"]:
            ensure_subscription(self._values)
        if self._values["deadLetterTopic"] is not None:
            check_dead_letter_topic(self._values)
        # The log drops messages that it has seen.
        always = ("message_id",) if self._values["delivery"] == "log" else ()
        selection = self._shape.selection(always)
        return AgentProcess.start(
            self._subscription,
            connection(self._values),
            self._values,
            selection,
            cluster=self._driver(),
            available_now=self._available_now,
        )

    def _driver(self) -> _cluster.Driver:
        if self._cluster is None:
            self._cluster = _cluster.driver()
        return self._cluster

    def read(self, partition: AgentPart | LogPart | None) -> Iterator[Any]:
        """Stream one part; runs in a worker, which shares nothing with the planner."""
        if partition is None:  # Spark's way to run a plan without partitions
            return
        import pyarrow as pa

        _freeze_once()
        try:
            yield from self._shape.rows(partition.open(), partition.origin)
        except (pa.ArrowException, OSError) as error:
            raise PartUnavailableError(str(error)) from error

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The counts of agent and log; they stand in the query's progress as ``latestOffset``."""
        if self._agent is None or self._delivery is None:
            return None
        return self._agent.status() | self._delivery.count()

    def stop(self) -> None:
        """Spark calls this in some of the ways a query ends; in the others the agent sees its socket close."""
        if self._agent is not None:
            self._agent.close()
            self._agent = None
            self._delivery = None
        if self._metrics is not None:
            self._metrics.stop()
            self._metrics = None


def _check_offset(offset: Any) -> None:
    """Spark gives a source whatever its checkpoint holds."""
    if not isinstance(offset, dict) or not {"epoch", "seq"} <= offset.keys():
        raise ConfigError(
            f"the checkpoint of this query was written with another source: its offset is {offset!r}.",
            option="checkpointLocation",
            remedy="Give the query a checkpointLocation of its own; what is in the subscription is not lost.",
        )


_frozen_pid = 0


def _freeze_once() -> None:
    """Spark collects garbage after every task; what a worker has loaded by its first one never becomes garbage."""
    global _frozen_pid
    if _frozen_pid != os.getpid():
        _frozen_pid = os.getpid()
        gc.freeze()
