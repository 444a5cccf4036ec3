"""A Pub/Sub subscription as the source of a job, without Spark."""

import logging
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from solstice.errors import AcknowledgeError
from solstice.pipeline._queue import Queue, open_queue
from solstice.pipeline._source_master import SourceConfig, SourceContext, SourceMaster, check_positive
from solstice.pipeline._split_writer import LEASE_S, Heartbeat, SplitWriter
from solstice.pipeline._store import open_store

if TYPE_CHECKING:
    from solstice.pubsub import PulledBatch

_POLL_S = 0.2

_log = logging.getLogger(__name__)


@dataclass
class PubSubSource(SourceConfig):
    """A subscription, until the job is stopped. ``options`` are those of ``solstice.pubsub.pull``.

    A message is acknowledged when the split that has it is durable and visible: none is lost. Pub/Sub may deliver one
    again that it was told about too late, so a row can come twice; ``message_id`` tells. A split has about
    ``target_split_bytes``, or what came within ``linger_s``. ``idle_s`` ends the source when nothing came for so long.
    """

    subscription: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    target_split_bytes: int = 8 << 20
    linger_s: float = 1.0
    idle_s: float | None = None

    def __post_init__(self) -> None:
        check_positive(self, "target_split_bytes")

    def master(self, context: SourceContext) -> "PubSubSourceMaster":
        """The master that runs this source."""
        return PubSubSourceMaster(context, self)


class PubSubSourceMaster(SourceMaster):
    """Pulls in a thread of the job's process."""

    def __init__(self, context: SourceContext, config: PubSubSource) -> None:
        super().__init__(context)
        self._config = config
        # A stream of its own for each run: Pub/Sub itself remembers what was not acknowledged.
        self._stream = uuid.uuid4().hex[:12]
        self._batch = 0

    def read(self) -> None:
        """Pull until stopped, or idle."""
        from solstice.pubsub import pull

        queue = open_queue(self.context.queue)
        try:
            # The iteration ends after each short silence, so that a stop is seen; it can be taken up again.
            with pull(self._config.subscription, **(self._config.options | {"idle_s": _POLL_S})) as puller:
                self._pull(puller, queue)
        finally:
            queue.close()

    def _pull(self, puller: Any, queue: Queue) -> None:
        held: list[PulledBatch] = []
        held_bytes, since_s, busy_s = 0, 0.0, time.monotonic()
        while not self._stop.is_set():
            batch = next(puller, None)
            now_s = time.monotonic()
            if batch is not None:
                busy_s = now_s
                since_s = since_s if held else now_s
                held.append(batch)
                held_bytes += batch.rows.nbytes
            if held and (held_bytes >= self._config.target_split_bytes or now_s - since_s >= self._config.linger_s):
                self._publish(held, queue)
                held, held_bytes = [], 0
            if not held and self._config.idle_s is not None and now_s - busy_s >= self._config.idle_s:
                queue.end(self.context.stage)
                return
        if held:
            self._publish(held, queue)

    def _publish(self, held: "list[PulledBatch]", queue: Queue) -> None:
        """Make rows durable and visible, and only then acknowledge their messages."""
        context = self.context
        with SplitWriter(
            queue,
            open_store(context.payloads),
            stage=context.stage,
            batch_id=f"{self._stream}-{self._batch}",
            partition=0,
            attempt=1,
            target_split_bytes=self._config.target_split_bytes,
            budget_bytes=context.payload_budget,
            sleep=self.pause,
        ) as writer:
            with Heartbeat(context.queue, writer.writer):
                writer.write(pulled.rows for pulled in held)
            writer.hand_over(LEASE_S)
        queue.publish_stream_batch(
            context.stage, self._stream, self._stream, self._batch, [writer.writer], writer.messages
        )
        self._batch += 1
        for pulled in held:
            try:
                pulled.ack()
            except AcknowledgeError as error:
                _log.warning("%s", error)  # those rows come twice
