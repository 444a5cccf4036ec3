"""How messages get to Spark for good: which batch Spark plans next, and which parts its tasks read."""

from collections.abc import Sequence
from typing import Any, Protocol

from solstice.errors import ConfigError, PartUnavailableError
from solstice.pubsub._agent import AgentProcess, Batch
from solstice.pubsub._parts import AgentPart, LogPart


class Delivery(Protocol):
    """One of the two; it belongs to one life of planner and agent."""

    def next(
        self, start: dict[str, Any], *, max_rows: int, max_bytes: int, max_parts: int, wait_ms: int
    ) -> dict[str, Any] | None:
        """The offset at the end of the batch after ``start``, which is durable; None when nothing came in time."""

    def partitions(self, end: dict[str, Any]) -> Sequence[AgentPart | LogPart]:
        """The parts of the batch that ends at ``end``."""

    def count(self) -> dict[str, int]:
        """What the planner itself counts; any thread may ask."""


class AgentDelivery:
    """``ack-on-commit``: the agent holds the batch until Spark has made it durable."""

    def __init__(self, agent: AgentProcess) -> None:
        self._agent = agent
        self._batch: Batch | None = None

    def next(
        self, start: dict[str, Any], *, max_rows: int, max_bytes: int, max_parts: int, wait_ms: int
    ) -> dict[str, Any] | None:
        """A batch that the agent cuts; it acknowledges the one before."""
        _refuse_logged(start)
        batch = self._agent.cut(start, max_rows=max_rows, max_bytes=max_bytes, max_parts=max_parts, wait_ms=wait_ms)
        if batch is None:
            return None
        self._batch = batch
        return batch.end

    def partitions(self, end: dict[str, Any]) -> Sequence[AgentPart]:
        """The parts as the agent holds them.

        A batch of another epoch is a replay after a restart: its rows died unacknowledged with their agent and come
        again, so it is planned empty. Other rows in its place would be lost where a sink skips a batch it has seen.
        """
        _refuse_logged(end)
        agent, batch = self._agent, self._batch
        if end["epoch"] != agent.epoch:
            return []
        if batch is None or batch.end != end:
            raise PartUnavailableError(
                f"batch {end['seq']} was cut by this agent but is no longer held.",
                remedy="Restart the query; nothing is lost.",
            )
        return parts_of(agent, batch)

    def count(self) -> dict[str, int]:
        """Nothing: all there is to count is with the agent."""
        return {}


def parts_of(agent: AgentProcess, batch: Batch) -> list[AgentPart]:
    """The parts of a batch that the agent has cut."""
    epoch, seq = batch.end["epoch"], batch.end["seq"]
    return [
        AgentPart(agent.socket, agent.host, agent.port, agent.token, epoch, seq, index, rows)
        for index, rows in enumerate(batch.parts)
    ]


def _refuse_logged(offset: dict[str, Any]) -> None:
    """What is in a log is acknowledged, so that it would not come again."""
    if offset.get("log"):
        raise ConfigError(
            'this checkpoint was written with delivery="log".',
            option="delivery",
            value="ack-on-commit",
            remedy='Go on with delivery="log" and the same logPath, or start from a new checkpoint once all is read.',
        )
