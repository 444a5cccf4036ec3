"""A worker: takes splits of one stage, works on them, and commits each together with its output."""

import logging
import threading
import traceback
from collections.abc import Sequence
from dataclasses import dataclass

from solstice._core.retry import RetryPolicy
from solstice.errors import LeaseLostError, PayloadMissingError, QueueError, SolsticeError
from solstice.pipeline import _faults
from solstice.pipeline._message import QueueMessage
from solstice.pipeline._operator import Operator, check_result
from solstice.pipeline._queue import Delivery, Prepared, Settlement, open_consumer, open_queue
from solstice.pipeline._sink import ParquetSink
from solstice.pipeline._split import Split, SplitPayload, derived_split_id
from solstice.pipeline._split_writer import store_split
from solstice.pipeline._store import open_store

_IDLE_S = 0.5  # how long a retry that became due may go unnoticed

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WorkerSpec:
    """All that a worker needs to know; it is pickled to the worker's process."""

    stage: str
    worker: str
    upstream: str
    queue: str
    payloads: str
    work: Operator | ParquetSink
    retries: int
    lease_s: float
    backoff: RetryPolicy


@dataclass(frozen=True)
class _Result:
    """What a split was turned into; durable, and not visible yet."""

    produced: Sequence[QueueMessage] = ()
    prepared: Sequence[Prepared] = ()


class StageWorker:
    """The loop of one worker process, until ``stop`` is set: then it finishes the split that it has, and ends."""

    def __init__(self, spec: WorkerSpec, stop: threading.Event) -> None:
        self._spec = spec
        self._stop = stop
        self._store = open_store(spec.payloads)
        self._queue = open_queue(spec.queue)
        self._consumer = open_consumer(
            spec.queue, spec.upstream, spec.stage, spec.worker, retries=spec.retries, lease_s=spec.lease_s
        )
        self._finished: list[str] = []
        self._produced = 0
        self._lease_error: QueueError | None = None

    def run(self) -> None:
        """Work. Raises LeaseLostError when the worker itself was fenced: another one has to take its place.

        Its master has registered it: a worker that registers itself could come to life after its run was fenced off.
        """
        self._consumer.extend()
        ended = threading.Event()
        renewal = threading.Thread(target=self._renew_leases, args=(ended,), name="leases", daemon=True)
        renewal.start()
        try:
            self._work_through()
            self._forget_finished()
        finally:
            ended.set()
            renewal.join()
        # Withdrawing counts what is held as failed, so it is left to the master if anything went wrong above.
        self._queue.withdraw_writer(self._spec.worker)
        self._consumer.close()
        self._queue.close()

    def _work_through(self) -> None:
        delivery = self._consumer.take()
        while not self._stop.is_set():
            if delivery is None:
                self._forget_finished()
                self._consumer.wait(_IDLE_S, self._stop)
                delivery = None if self._stop.is_set() else self._consumer.take()
            else:
                delivery = self._process(delivery)
            if self._lease_error is not None:
                raise self._lease_error
        if delivery is not None:
            self._process(delivery)

    def _process(self, delivery: Delivery) -> Delivery | None:
        """One split, from taken to settled; returns the next one."""
        split = Split(delivery.message.split_id, self._spec.stage, delivery.attempt, delivery.message.metadata)
        try:
            payload = self._load(delivery.message)
            if isinstance(self._spec.work, Operator):
                result = check_result(self._spec.work, self._spec.work.process_split(split, payload), split)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - what the user's code raises is the split's failure
            return self._fail(delivery, error)
        try:
            if isinstance(self._spec.work, Operator):
                output = self._store_output(split, result)
            else:
                output = _Result(prepared=[self._spec.work.write(split, payload)])
        except Exception as error:
            try:  # a worker that stood still for longer than its lease finds the file of the one that did the split
                self._consumer.require(delivery)
            except LeaseLostError as lost:
                self._undo_after_a_lost_lease(_Result(), lost)
                return None
            if _of_the_rows(error):
                return self._fail(delivery, error)
            raise  # a full disk is not the split's fault: it ends the worker, and the job says why
        return self._settle(delivery, output)

    def _load(self, message: QueueMessage) -> SplitPayload:
        ref = message.ref
        payload = None if ref is None else self._store.get(ref)
        if payload is None:
            raise PayloadMissingError(
                f"the payload {message.payload_key!r} of split {message.split_id!r} is not in {self._spec.payloads}."
            )
        return payload

    def _store_output(self, split: Split, result: SplitPayload | None) -> _Result:
        if result is None or result.num_records == 0:
            return _Result()
        split_id = derived_split_id(split.split_id, self._spec.stage, 0)
        message = store_split(
            self._store,
            SplitPayload.from_arrow(result.to_arrow(), split_id),
            stage=self._spec.stage,
            writer=self._spec.worker,
            index=self._produced,
            attempt=split.attempt,
            batch_id=str(split.metadata.get("batch_id", "")),
            partition=int(split.metadata.get("partition", 0)),
        )
        self._produced += 1
        return _Result(produced=[message])

    def _settle(self, delivery: Delivery, result: _Result) -> Delivery | None:
        _faults.reach("worker.stored")
        try:
            settlement = self._consumer.settle(
                delivery,
                result.produced,
                to=self._spec.stage,
                prepared=result.prepared,
                done=self._finished,
                take=not self._stop.is_set(),
            )
        except LeaseLostError as error:
            self._undo_after_a_lost_lease(result, error)
            return None
        self._finished = []
        if isinstance(self._spec.work, ParquetSink):
            for prepared in result.prepared:
                _faults.reach("sink.prepared")
                self._spec.work.directory.finish(prepared)
                _faults.reach("sink.renamed")
                self._finished.append(prepared.split_id)
        self._release(settlement)
        return settlement.next

    def _fail(self, delivery: Delivery, error: BaseException) -> Delivery | None:
        _log.warning("split %s failed, attempt %d: %s", delivery.message.split_id, delivery.attempt, error)
        trace = "".join(traceback.format_exception(error))
        delay_s = self._spec.backoff.delay_s(delivery.failures + 1)
        try:
            settlement = self._consumer.fail(
                delivery, f"{type(error).__name__}: {error}", trace, delay_s=delay_s, take=not self._stop.is_set()
            )
        except LeaseLostError as lost:
            self._undo_after_a_lost_lease(_Result(), lost)
            return None
        return settlement.next

    def _undo_after_a_lost_lease(self, result: _Result, error: LeaseLostError) -> None:
        """Somebody else has the split: undo what was written for it. Raises if we ourselves were fenced."""
        _log.warning("%s", error)
        for message in result.produced:
            self._store.delete(message.payload_key)
        if isinstance(self._spec.work, ParquetSink):
            for prepared in result.prepared:
                self._spec.work.directory.discard(prepared)
        self._consumer.extend()

    def _release(self, settlement: Settlement) -> None:
        for message in settlement.released:
            if message.payload_key:
                self._store.delete(message.payload_key)

    def _forget_finished(self) -> None:
        if self._finished:
            self._queue.mark_done(self._spec.stage, self._finished)
            self._finished = []

    def _renew_leases(self, ended: threading.Event) -> None:
        while not ended.wait(self._spec.lease_s / 3):
            try:
                self._consumer.extend()
            except QueueError as error:
                self._lease_error = error
                return


def _of_the_rows(error: Exception) -> bool:
    """Whether storing failed because of what was to be stored, not because of the place."""
    import pyarrow as pa

    return isinstance(error, (pa.ArrowException, TypeError, ValueError)) and not isinstance(
        error, (OSError, SolsticeError)
    )
