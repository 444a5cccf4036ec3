"""A worker: takes splits of one stage, works on them, and commits each together with its output."""

import bisect
import itertools
import logging
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from solstice._core.retry import RetryPolicy
from solstice.errors import LeaseLostError, PayloadMissingError, PipelineError, QueueError, SolsticeError, StoreError
from solstice.pipeline import _faults
from solstice.pipeline._events import EventLog
from solstice.pipeline._intake import Intake
from solstice.pipeline._message import QueueMessage
from solstice.pipeline._operator import Operator, result_tables
from solstice.pipeline._queue import Delivery, Prepared, open_queue
from solstice.pipeline._rate_limit import RateLimiter
from solstice.pipeline._schema_guard import SchemaGuard
from solstice.pipeline._settings import StageSettings
from solstice.pipeline._sink import Sink, blames_rows
from solstice.pipeline._source_master import Source
from solstice.pipeline._split import Split, SplitPayload, derived_split_id
from solstice.pipeline._split_writer import store_split
from solstice.pipeline._store import open_store
from solstice.pipeline._sweep import Deletions
from solstice.pipeline._watchdog import Abandoned, Watchdog, memory_bytes

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WorkerSpec:
    """All that a worker needs to know; it is pickled to the worker's process."""

    stage: str
    worker: str
    upstreams: tuple[str, ...]
    queue: str
    payloads: str
    work: Operator | Sink
    settings: StageSettings = field(default_factory=StageSettings)
    lease_s: float = 30.0
    backoff: RetryPolicy = field(default_factory=RetryPolicy)
    sources: dict[str, Source] = field(default_factory=dict)
    limiter: RateLimiter | None = None
    state: str | None = None


@dataclass
class _Output:
    """What a portion was turned into; durable, and not visible yet."""

    produced: list[QueueMessage] = field(default_factory=list)
    prepared: list[Prepared] = field(default_factory=list)


class StageWorker:
    """The loop of one worker, until ``stop`` is set: then it finishes the splits that it has, and ends.

    ``abandon`` ends the worker from another thread, when its operator is stuck; ``own_process`` tells that it is alone
    in its process.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        stop: threading.Event,
        *,
        abandon: Callable[[], None] = lambda: None,
        own_process: bool = False,
    ) -> None:
        self._spec = spec
        self._settings = spec.settings
        self._stop = stop
        self._abandon = abandon
        self._own_process = own_process
        self._store = open_store(spec.payloads)
        self._deletions = Deletions(self._store, spec.lease_s)
        self._queue = open_queue(spec.queue)
        self._intake = Intake(
            spec.queue,
            spec.upstreams,
            spec.stage,
            spec.worker,
            retries=spec.settings.retries,
            lease_s=spec.lease_s,
            rebatch_rows=spec.settings.rebatch_rows,
        )
        self._guard = SchemaGuard(self._queue, spec.stage)
        self._events = EventLog(spec.state)
        self._watchdog = Watchdog(
            spec.settings.timeout_s, spec.settings.max_worker_bytes, self._give_up, own_process=own_process
        )
        self._portion: Sequence[Delivery] = ()
        self._finished: list[str] = []
        self._produced = 0
        self._processed = 0
        self._lease_error: QueueError | None = None
        self._ended = threading.Event()

    def run(self, on_ready: Callable[[], None] = lambda: None) -> None:
        """Work. Raises LeaseLostError when the worker itself was fenced: another one has to take its place.

        Its master has registered it: a worker that registers itself could come to life after its run was fenced off.
        """
        self._intake.extend()
        renewal = threading.Thread(target=self._renew_leases, name="leases", daemon=True)
        renewal.start()
        try:
            import pyarrow as pa  # noqa: F401 - now, and not within the time of the first split

            self._spec.work.setup()
            on_ready()
            self._watchdog.start()
            self._work_through()
            self._forget_finished()
            self._spec.work.teardown()
        finally:
            self._ended.set()
            self._watchdog.close()
            renewal.join()
        # Withdrawing counts what is held as failed, so it is left to the master if anything went wrong above.
        self._intake.close()
        for writer in self._intake.writers.values():
            self._queue.withdraw_writer(writer)
        self._queue.close()

    def _work_through(self) -> None:
        while self._intake.holds or not (self._stop.is_set() or self._is_worn()):
            portion = self._intake.take(self._stop)
            if portion:
                self._keep_rate(portion)
                self._process(portion)
            else:
                self._forget_finished()
                self._intake.wait(self._stop)
            if self._lease_error is not None:
                raise self._lease_error

    def _is_worn(self) -> bool:
        """Whether another worker should take this one's place."""
        limits = self._settings
        if limits.max_worker_splits is not None and self._processed >= limits.max_worker_splits:
            return True
        return self._own_process and limits.max_worker_bytes is not None and memory_bytes() > limits.max_worker_bytes

    def _keep_rate(self, portion: Sequence[Delivery]) -> None:
        if self._spec.limiter is not None and self._settings.rate is not None:
            records = sum(delivery.message.num_records for delivery in portion)
            self._stop.wait(self._spec.limiter.reserve(self._settings.rate.cost_s(len(portion), records)))

    def _process(self, portion: Sequence[Delivery]) -> None:
        """One portion, from taken to settled."""
        self._portion = portion
        output = _Output()
        failure: BaseException | None = None
        try:
            with self._watchdog.watch():
                try:
                    results = self._apply(portion)
                except (QueueError, StoreError):
                    raise
                except BaseException as error:  # noqa: BLE001 - what the user's code raises fails the split
                    failure = error  # a panic of Polars and sys.exit() are no Exceptions
                else:
                    self._write(portion, results, output)
        except Abandoned:
            self._undo(output)
            raise
        except BaseException as error:  # the function of a sink may raise anything too
            self._undo(output)
            try:  # a worker that stood still for longer than its lease finds the file of the one that did the split
                for delivery in portion:
                    self._intake.require(delivery)
            except LeaseLostError as lost:
                return self._after_a_lost_lease(portion, lost)
            if isinstance(error, StoreError) or not self._blames_rows(error):
                raise self._cannot_write(portion[0], error) from error
            failure = error
        self._processed += len(portion)
        if failure is not None:
            return self._fail(portion, failure)
        return self._settle(portion, output)

    def _apply(self, portion: Sequence[Delivery]) -> "list[tuple[Split, pa.Table]]":
        """The rows that the stage makes of a portion; those that a sink gets, unchanged."""
        results = []
        for split, payload in self._load(portion):
            if isinstance(self._spec.work, Operator):
                tables = result_tables(self._spec.work, split, payload)
                results += [(split, self._guard.check(table, split)) for table in tables]
            else:
                results.append((split, payload.to_arrow()))
        return results

    def _load(self, portion: Sequence[Delivery]) -> list[tuple[Split, SplitPayload]]:
        first = portion[0]
        split = Split(first.message.split_id, self._spec.stage, first.attempt, first.message.metadata)
        payloads = [self._payload(delivery) for delivery in portion]
        if self._settings.rebatch_rows is None:
            return [(split, payloads[0])]
        ids = [delivery.message.split_id for delivery in portion]
        return _rebatch(split, ids, payloads, self._settings.rebatch_rows)

    def _payload(self, delivery: Delivery) -> SplitPayload:
        message, source = delivery.message, self._spec.sources.get(delivery.topic)
        payload = None
        try:
            if message.ref is not None:
                payload = self._store.get(message.ref)
            elif source is not None:
                payload = source.read(Split(message.split_id, self._spec.stage, delivery.attempt, message.metadata))
        except OSError as error:  # what is missing or damaged has errors of ours: this is the place, for every split
            raise StoreError(
                f"stage {self._spec.stage!r} cannot read split {message.split_id!r} from {self._spec.payloads}:"
                f" {type(error).__name__}: {error}.",
                remedy="Nothing is lost: mend the place and run the job again.",
            ) from error
        if payload is None:
            raise PayloadMissingError(
                f"the payload {message.stored_key!r} of split {message.split_id!r} is not in {self._spec.payloads}."
            )
        return payload

    def _write(self, portion: Sequence[Delivery], results: "list[tuple[Split, pa.Table]]", output: _Output) -> None:
        counts: dict[str, int] = {}
        whole = portion[0].message.split_id if len(portion) == 1 else None
        for split, table in results:
            if isinstance(self._spec.work, Sink):
                prepared = self._spec.work.write(split, SplitPayload.from_arrow(table, split.split_id))
                output.prepared += [] if prepared is None else [prepared]
                continue
            index = counts[split.split_id] = counts.get(split.split_id, -1) + 1
            split_id = derived_split_id(split.split_id, self._spec.stage, index)
            message = store_split(
                self._store,
                SplitPayload.from_arrow(table, split_id),
                stage=self._spec.stage,
                writer=self._intake.writers[portion[0].topic],
                index=self._produced,
                attempt=split.attempt,
                batch_id=str(split.metadata.get("batch_id", "")),
                partition=int(split.metadata.get("partition", 0)),
                parents=[split.split_id] if split.split_id == whole else split.parents,
            )
            self._produced += 1
            output.produced.append(message)

    def _settle(self, portion: Sequence[Delivery], output: _Output) -> None:
        _faults.reach("worker.stored")
        try:
            released = self._intake.settle(
                portion,
                output.produced,
                to=self._spec.stage,
                prepared=output.prepared,
                done=self._finished,
                take=self._goes_on(),
            )
        except LeaseLostError as error:
            self._undo(output)
            return self._after_a_lost_lease(portion, error)
        self._finished = []
        if isinstance(self._spec.work, Sink):
            for prepared in output.prepared:
                _faults.reach("sink.prepared")
                self._spec.work.finish(prepared)
                _faults.reach("sink.renamed")
                self._finished.append(prepared.split_id)
        for message in released:
            if message.stored_key:
                self._deletions.add(message.stored_key)
        self._deletions.work()
        return None

    def _goes_on(self) -> bool:
        return not self._stop.is_set() and not self._is_worn()

    def _fail(self, portion: Sequence[Delivery], error: BaseException) -> None:
        if len(portion) > 1:
            return self._one_by_one(portion)  # whose fault it is shows when each is tried alone
        (delivery,) = portion
        _log.warning("split %s failed, attempt %d: %s", delivery.message.split_id, delivery.attempt, error)
        trace = "".join(traceback.format_exception(error))
        try:
            self._fail_one(delivery, f"{type(error).__name__}: {error}", trace, take=self._goes_on())
        except LeaseLostError as lost:
            self._after_a_lost_lease(portion, lost)
        return None

    def _fail_one(self, delivery: Delivery, error: str, trace: str, *, take: bool) -> None:
        delay_s = self._spec.backoff.delay_s(delivery.failures + 1)
        self._intake.fail(delivery, error, trace, delay_s=delay_s, take=take)
        dead = delivery.failures + 1 > self._settings.retries
        self._events.append(
            "dead letter" if dead else "retry",
            stage=self._spec.stage,
            worker=self._spec.worker,
            split=delivery.message.split_id,
            attempt=delivery.attempt,
            error=error,
        )

    def _give_up(self, reason: str, trace: str) -> None:
        """Settle as failed what the operator is stuck with, and end the worker. In the thread of the watchdog."""
        _log.warning("a worker of stage %s is ended: %s", self._spec.stage, reason)
        self._ended.set()
        try:
            for delivery in self._portion:
                self._fail_one(delivery, reason, trace, take=False)
        except QueueError as error:
            _log.warning("%s", error)
        self._abandon()

    def _after_a_lost_lease(self, portion: Sequence[Delivery], error: LeaseLostError) -> None:
        """Somebody else has a split of the portion: go on without it. Raises if we ourselves were fenced."""
        _log.warning("%s", error)
        self._intake.extend()
        if len(portion) > 1:
            self._one_by_one(portion)

    def _one_by_one(self, portion: Sequence[Delivery]) -> None:
        for delivery in portion:
            self._process([delivery])

    def _undo(self, output: _Output) -> None:
        """Remove what was written and will not be committed."""
        for message in output.produced:
            self._store.delete(message.payload_key)
        if isinstance(self._spec.work, Sink):
            for prepared in output.prepared:
                self._spec.work.discard(prepared)

    def _cannot_write(self, delivery: Delivery, error: BaseException) -> Exception:
        """A full disk is not the split's fault: it ends the worker, and the job says why."""
        if isinstance(error, SolsticeError):
            return error
        return PipelineError(
            f"stage {self._spec.stage!r} cannot write what it made of split {delivery.message.split_id!r}:"
            f" {type(error).__name__}: {error}.",
            remedy="Nothing is lost: mend the place and run the job again.",
        )

    def _blames_rows(self, error: BaseException) -> bool:
        """Whether writing failed because of what was to be written, not because of the place."""
        return self._spec.work.blames_rows(error) if isinstance(self._spec.work, Sink) else blames_rows(error)

    def _forget_finished(self) -> None:
        if self._finished:
            self._queue.mark_done(self._spec.stage, self._finished)
            self._finished = []

    def _renew_leases(self) -> None:
        while not self._ended.wait(self._spec.lease_s / 3):
            try:
                self._intake.extend()
            except QueueError as error:
                self._lease_error = error
                return


def _rebatch(split: Split, ids: list[str], payloads: list[SplitPayload], rows: int) -> list[tuple[Split, SplitPayload]]:
    """Tables of ``rows`` rows; only the last may have fewer. Each has a name of its own, and those of its splits."""
    import pyarrow as pa

    tables = [payload.to_arrow() for payload in payloads]
    table = tables[0] if len(tables) == 1 else pa.concat_tables(tables)
    if len(tables) == 1 and table.num_rows <= rows:
        return [(split, payloads[0])]
    name = split.split_id if len(tables) == 1 else f"{split.split_id}+{len(tables) - 1}"
    ends = list(itertools.accumulate(part.num_rows for part in tables))
    pieces = []
    for index, start in enumerate(range(0, max(table.num_rows, 1), rows)):
        piece_id = name if table.num_rows <= rows else f"{name}~{index}"
        first, last = bisect.bisect_right(ends, start), bisect.bisect_left(ends, start + rows)
        metadata = split.metadata | {"parents": ids[first : last + 1]}
        piece = Split(piece_id, split.stage, split.attempt, metadata)
        pieces.append((piece, SplitPayload.from_arrow(table.slice(start, rows), piece_id)))
    return pieces
