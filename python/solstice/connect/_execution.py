"""One execution of a plan as a state machine without I/O: events go in, actions come out, a driver does the rest.

    start ─► Send(execute) ─► response* ─► ... result_complete ─► Release(all), Done
                 │  failed, ended before the result was complete
                 └─► Sleep, Send(reattach, last_response_id) ─► response* ...

Every execution is reattachable and has an operation id from the start, so that a cut connection costs nothing: the
server keeps what was not released and goes on after ``last_response_id``. What arrived is released every ten batches.
A server that does not know the operation, before anything arrived, never got the request: it is sent again, under the
same id, so that the server can refuse a second run.
"""

import random
import time
from collections.abc import Callable
from typing import Any, Literal

from solstice._core.retry import RetryPolicy
from solstice.connect._record import Record
from solstice.connect._status import Failure

# 15 tries over two minutes; the counter starts anew with every response.
RETRY_POLICY = RetryPolicy(initial_s=0.05, max_s=10.0, multiplier=4.0, jitter=0.3, max_attempts=15)
SHORT_TIMEOUT_S = 5.0  # for what is asked on the side
MAX_SERVER_DELAY_S = 600.0
BATCHES_PER_RELEASE = 10

_UNKNOWN_OPERATION = ("INVALID_HANDLE.OPERATION_NOT_FOUND", "INVALID_HANDLE.SESSION_NOT_FOUND")
_KNOWN_OPERATION = "INVALID_HANDLE.OPERATION_ALREADY_EXISTS"


class Batch(Record):
    """An Arrow IPC stream as the server sent it, its chunks joined."""

    data: bytes
    row_count: int


class Schema(Record):
    """The result's schema, a DataType message."""

    message: Any


class CommandResult(Record):
    """What a command answered; ``kind`` is the name of the response's field."""

    kind: str
    message: Any


class Metrics(Record):
    """What was observed on the way, an ObservedMetrics message."""

    message: Any


class Progress(Record):
    """How far the operation is, an ExecutionProgress message."""

    message: Any


Item = Batch | Schema | CommandResult | Metrics | Progress


class Send(Record):
    """Open a stream of responses, for at most so long; one that is open already is over."""

    kind: Literal["execute", "reattach"]
    last_response_id: str | None = None
    timeout_s: float | None = None


class Release(Record):
    """Let the server forget responses up to ``until``, or with None all of the operation, which ends it if it runs."""

    until: str | None


class Sleep(Record):
    """Wait before the next action."""

    seconds: float


class Emit(Record):
    """Hand an item to the caller."""

    item: Item


class Done(Record):
    """The result is complete."""


class Fail(Record):
    """The execution failed for good."""

    failure: Failure


class Expire(Record):
    """The execution took longer than it may; the operation is to be ended."""


Action = Send | Release | Sleep | Emit | Done | Fail | Expire


def retry_delay_s(
    failure: Failure, policy: RetryPolicy, attempt: int, random: Callable[[], float] = random.random
) -> float:
    """How long to wait after attempt number ``attempt``: what the policy says, or the server if that is longer."""
    delay_s = policy.delay_s(attempt, random)
    return delay_s if failure.retry_delay_s is None else max(delay_s, min(failure.retry_delay_s, MAX_SERVER_DELAY_S))


class Execution:
    """The state of one execution. Each event returns what the driver has to do, in order."""

    def __init__(
        self,
        *,
        policy: RetryPolicy = RETRY_POLICY,
        timeout_s: float | None = None,
        random: Callable[[], float] = random.random,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._policy = policy
        self._random = random
        self._now = now
        self._deadline = None if timeout_s is None else now() + timeout_s
        self._sending: Literal["execute", "reattach"] = "execute"
        self._last_response_id: str | None = None
        self._failed_attempts = 0
        self._fruitless_streams = 0
        self._stream_gave_something = False
        self._unreleased_batches = 0
        self._row_count = 0
        self._chunks: list[bytes] = []
        self._over = False

    def start(self) -> list[Action]:
        """Begin."""
        return [self._send("execute")]

    def response(self, response: Any) -> list[Action]:
        """An ExecutePlanResponse arrived."""
        self._failed_attempts = self._fruitless_streams = 0
        self._stream_gave_something = True
        self._last_response_id = response.response_id
        actions: list[Action] = []
        if response.HasField("schema"):
            actions.append(Emit(Schema(response.schema)))
        actions += [Emit(Metrics(metrics)) for metrics in response.observed_metrics]
        kind = response.WhichOneof("response_type")
        if kind == "arrow_batch":
            actions += self._arrow_batch(response.arrow_batch)
        elif kind == "result_complete":
            self._over = True
            actions += [Release(None), Done()]
        elif kind == "execution_progress":
            actions.append(Emit(Progress(response.execution_progress)))
        elif kind is not None:
            actions.append(Emit(CommandResult(kind, getattr(response, kind))))
        return actions

    def ended(self) -> list[Action]:
        """The stream ended. The server ends streams on purpose every few minutes; the result goes on in the next."""
        if self._stream_gave_something:
            return [self._send("reattach")]
        # Without a single response it may be a server in trouble: go on, but not in a busy loop.
        self._fruitless_streams += 1
        return [self._sleep(self._policy.delay_s(self._fruitless_streams, self._random)), self._send("reattach")]

    def failed(self, failure: Failure, *, server_ended: bool = False) -> list[Action]:
        """The stream failed, or could not be opened. Of a server that is known to have ended nothing more is asked."""
        if self._deadline is not None and (failure.code == "DEADLINE_EXCEEDED" or self._now() >= self._deadline):
            return [Expire()]
        if server_ended:
            return self._fail(failure)
        next_kind: Literal["execute", "reattach"] = "reattach"
        if failure.error_class in _UNKNOWN_OPERATION and self._sending == "reattach" and not self._last_response_id:
            next_kind = "execute"
        elif failure.error_class == _KNOWN_OPERATION and self._sending == "execute" and self._failed_attempts:
            pass  # an earlier request did arrive, only later than the question whether it had
        elif not failure.is_transient:
            return self._fail(failure)
        self._failed_attempts += 1
        if self._failed_attempts >= self._policy.max_attempts:
            return self._fail(failure)
        delay_s = retry_delay_s(failure, self._policy, self._failed_attempts, self._random)
        return [self._sleep(delay_s), self._send(next_kind)]

    def cancel(self) -> bool:
        """The caller wants no more. Whether the operation has to be ended: not when the execution is over already.

        A release alone ends a running query. After an interrupt it must not follow at once: seen on Spark 4.3, the
        operation is then forgotten as running, and its query runs on.
        """
        was_over, self._over = self._over, True
        return not was_over

    def _send(self, kind: Literal["execute", "reattach"]) -> Send:
        self._sending = kind
        self._stream_gave_something = False
        return Send(kind, self._last_response_id if kind == "reattach" else None, self._left_s())

    def _sleep(self, seconds: float) -> Sleep:
        left_s = self._left_s()
        return Sleep(seconds if left_s is None else min(seconds, left_s))

    def _left_s(self) -> float | None:
        return None if self._deadline is None else max(self._deadline - self._now(), 0.0)

    def _fail(self, failure: Failure) -> list[Action]:
        self._over = True
        return [Release(None), Fail(failure)]

    def _arrow_batch(self, batch: Any) -> list[Action]:
        if batch.chunk_index != len(self._chunks):
            return self._protocol_broken(f"chunk {batch.chunk_index} arrived where {len(self._chunks)} was expected")
        if not self._chunks and batch.HasField("start_offset") and batch.start_offset != self._row_count:
            return self._protocol_broken(f"row {batch.start_offset} arrived where {self._row_count} was expected")
        self._chunks.append(batch.data)
        if len(self._chunks) < batch.num_chunks_in_batch:
            return []
        data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks = []
        self._row_count += batch.row_count
        actions: list[Action] = [Emit(Batch(data, batch.row_count))]
        self._unreleased_batches += 1
        if self._unreleased_batches >= BATCHES_PER_RELEASE:
            self._unreleased_batches = 0
            actions.append(Release(self._last_response_id))
        return actions

    def _protocol_broken(self, what: str) -> list[Action]:
        return self._fail(Failure("DATA_LOSS", f"the result is not whole: {what}"))
