"""Writes rows as splits: what a Spark task, or any other source, does with its part of the data."""

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from solstice.errors import LeaseLostError, QueueError
from solstice.pipeline._budget import wait_for_room
from solstice.pipeline._message import QueueMessage
from solstice.pipeline._queue import Queue, open_queue
from solstice.pipeline._split import SplitPayload, source_split_id
from solstice.pipeline._store import SplitPayloadStore, schema_fingerprint

if TYPE_CHECKING:
    import pyarrow as pa

LEASE_S = 30.0
# A task is over before the driver commits, and nobody renews the lease in between.
STREAM_COMMIT_S = 3600.0
# A batch of the job's own may take as long as it does: the next run fences what a dead one has left.
BATCH_COMMIT_S = 365 * 86400.0

_log = logging.getLogger(__name__)


class SplitWriter:
    """One attempt at one partition. As a context it discards what it wrote, unless it was published or handed over.

    Its writer id names the directory of its payloads and has to be known to the queue before the first of them is
    written: a payload whose writer is not known is garbage. Before each split it waits while the job has more bytes of
    payload than ``budget_bytes``.
    """

    def __init__(
        self,
        queue: Queue,
        store: SplitPayloadStore,
        *,
        stage: str,
        batch_id: str,
        partition: int,
        attempt: int,
        target_split_bytes: int,
        budget_bytes: int | None = None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.writer = uuid.uuid4().hex[:16]
        self.messages: list[QueueMessage] = []
        self._queue = queue
        self._store = store
        self._stage = stage
        self._batch_id = batch_id
        self._partition = partition
        self._attempt = attempt
        self._target_split_bytes = target_split_bytes
        self._budget_bytes = budget_bytes
        self._sleep = sleep
        self._handed_over = False

    def __enter__(self) -> Self:
        self._queue.register_writer(self.writer, self._stage, LEASE_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A publish may raise after it has happened, so the queue is asked. What a fenced one leaves is for the sweep.
        if not self._handed_over and self._queue.withdraw_writer(self.writer):
            self._store.clear(f"{self._stage}/{self.writer}")

    def write(self, batches: "Iterable[pa.RecordBatch]") -> None:
        """Cut the batches into splits of about the target size and store each."""
        held: list[pa.RecordBatch] = []
        held_bytes = 0
        for batch in batches:
            for piece in _pieces(batch, self._target_split_bytes):
                held.append(piece)
                held_bytes += piece.nbytes
                if held_bytes >= self._target_split_bytes:
                    self._store_split(held)
                    held, held_bytes = [], 0
        if held:
            self._store_split(held)

    def publish(self) -> bool:
        """Make the splits visible now, unless another attempt at the partition was first."""
        self._handed_over = self._queue.publish_partition(
            self._stage, self._batch_id, self._partition, self.writer, self.messages
        )
        return self._handed_over

    def hand_over(self, within_s: float) -> None:
        """Leave it to the driver to make the splits visible."""
        self._queue.extend_writer(self.writer, within_s)
        self._handed_over = True

    @property
    def stored_bytes(self) -> int:
        """How much was written."""
        return sum(message.payload_bytes for message in self.messages)

    def _store_split(self, batches: "list[pa.RecordBatch]") -> None:
        import pyarrow as pa

        if self._budget_bytes is not None:
            wait_for_room(self._queue.backlog, self._budget_bytes, self._sleep)
        index = len(self.messages)
        split_id = source_split_id(self._stage, self._batch_id, self._partition, index)
        payload = SplitPayload.from_arrow(pa.Table.from_batches(batches), split_id)
        self.messages.append(
            store_split(
                self._store,
                payload,
                stage=self._stage,
                writer=self.writer,
                index=index,
                attempt=self._attempt,
                batch_id=self._batch_id,
                partition=self._partition,
            )
        )
        self._queue.extend_writer(self.writer, LEASE_S, self.stored_bytes)


def _pieces(batch: "pa.RecordBatch", target_bytes: int) -> "Iterator[pa.RecordBatch]":
    """Slices of a batch of about the target size: Spark's batches are cut by rows, however wide these are."""
    rows = -(-batch.num_rows * target_bytes // max(batch.nbytes, 1))  # rounded up: a piece is not to need another one
    step = max(1, min(rows, batch.num_rows))
    for start in range(0, batch.num_rows, step):
        yield batch.slice(start, step)


def store_split(
    store: SplitPayloadStore,
    payload: SplitPayload,
    *,
    stage: str,
    writer: str,
    index: int,
    attempt: int,
    batch_id: str,
    partition: int,
    parents: Sequence[str] = (),
) -> QueueMessage:
    """Store a payload and make the message that announces it; ``parents`` are the splits that it was made of."""
    ref = store.store(f"{stage}/{writer}/{payload.split_id}", payload)
    return QueueMessage(
        message_id=f"{stage}_{writer}_{index}",
        split_id=payload.split_id,
        payload_key=ref.key,
        metadata={
            "source_stage": stage,
            "num_records": payload.num_records,
            "uri": ref.uri,
            "bytes": ref.bytes,
            "schema_fingerprint": schema_fingerprint(payload.to_arrow().schema),
            "checksum": ref.checksum,
            "attempt": attempt,
            "batch_id": batch_id,
            "partition": partition,
        }
        | ({"parents": list(parents)} if parents else {}),
    )


class Heartbeat:
    """Renews the lease of a writer from a thread of its own while a task works."""

    def __init__(self, queue_url: str, writer: str, lease_s: float = LEASE_S) -> None:
        self._queue_url = queue_url
        self._writer = writer
        self._lease_s = lease_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"heartbeat-{writer}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        queue: Queue | None = None
        try:
            while not self._stop.wait(self._lease_s / 3):
                queue = queue or open_queue(self._queue_url)
                queue.extend_writer(self._writer, self._lease_s)
        except (LeaseLostError, QueueError) as error:
            # The publishing transaction checks the writer itself, so this only tells earlier.
            _log.warning("the lease of writer %s cannot be renewed: %s", self._writer, error)
        finally:
            if queue is not None:
                queue.close()
