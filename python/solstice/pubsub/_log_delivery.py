"""``delivery="log"``: every batch is in a log before it is acknowledged, and the tasks read the log.

With a sink that can take a batch twice (idempotent by batch id or by message id), each message arrives exactly once,
through any crash: what is acknowledged is in the log until Spark has made it durable, and what comes again is dropped.
"""

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from solstice._core.options import OptionValues
from solstice.errors import PartUnavailableError
from solstice.pubsub._agent import AgentProcess
from solstice.pubsub._delivery import parts_of
from solstice.pubsub._log import Log, name_of, offset_of
from solstice.pubsub._parts import LogPart


class LogDelivery:
    """The planner's part: it writes what the agent cuts, and tells the agent to acknowledge it."""

    def __init__(self, agent: AgentProcess, subscription: str, values: OptionValues) -> None:
        self._agent = agent
        self._location: str = values["logPath"]
        self._retention_s: float = values["logRetention"]
        # Consumed, but Pub/Sub was not heard of yet.
        self._under_way: list[dict[str, Any]] = []
        self._failed: BaseException | None = None
        self._log = Log(self._location, subscription, agent.epoch)
        self._log.open()

    def next(
        self, start: dict[str, Any], *, max_rows: int, max_bytes: int, max_parts: int, wait_ms: int
    ) -> dict[str, Any] | None:
        """A batch that is in the log, or one that is written to it now."""
        if self._failed is not None:
            raise self._failed
        try:
            self._settle(start)
            if name := self._log.oldest():
                return offset_of(name)
            deadline = time.monotonic() + wait_ms / 1_000
            while True:
                # Numbers go on from the highest there is, also where Spark's checkpoint is gone.
                before = {"epoch": self._agent.epoch, "seq": max(self._log.last_seq, start["seq"])}
                left_ms = max(0, round((deadline - time.monotonic()) * 1_000))
                batch = self._agent.cut(
                    before, max_rows=max_rows, max_bytes=max_bytes, max_parts=max_parts, wait_ms=left_ms
                )
                if batch is None:
                    return None
                end = batch.end
                written = self._log.write(end, parts_of(self._agent, batch), partial(self._agent.write, end))
                self._log.check_owner()
                # All of it: copies too (rule 18), now that their firsts are safe (rule 17).
                self._agent.acknowledge(end)
                if written:
                    return offset_of(name_of(end))
                if time.monotonic() >= deadline:
                    return None
        except BaseException as error:
            # What counts as seen may not be written: this life acknowledges nothing more.
            self._failed = error
            raise

    def _settle(self, start: dict[str, Any]) -> None:
        """``start`` is durable: it is consumed; others may be forgotten."""
        log, name = self._log, name_of(start)
        if log.waiting(name):
            log.check_owner()
            confirmed = self._agent.confirmed(start)
            log.consume(name, confirmed=confirmed is True)
            if confirmed is None:
                self._under_way.append(start)
        for end in list(self._under_way):
            confirmed = self._agent.confirmed(end)
            if confirmed is not None:
                self._under_way.remove(end)
                if confirmed:
                    log.confirm(name_of(end))
        log.expire(self._retention_s, lambda: self._agent.status()["oldest_unacked_s"], keep=name)

    def partitions(self, end: dict[str, Any]) -> Sequence[LogPart]:
        """The files of a batch, whatever life wrote it (rule 6)."""
        name = name_of(end)
        if batch := self._log.waiting(name):
            return [LogPart(self._location, part.file, part.rows) for part in batch.parts]
        if self._log.is_consumed(name) or not end.get("log"):
            # Rule 11, or a batch of a delivery without a log: its rows died unacknowledged and come again.
            return []
        raise PartUnavailableError(
            f"batch {end['seq']} of {end['epoch']} is not in the log at {self._location}.",
            remedy="Give the logPath that this checkpoint was written with, and restore files that were deleted: its "
            "messages are acknowledged and are nowhere else.",
        )

    def count(self) -> dict[str, int]:
        """What is in the log."""
        return self._log.count()
