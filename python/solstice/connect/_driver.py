"""The calls of one session: unary ones with retries, executions by doing what their state machine says.

Written once, as coroutines, over a transport that blocks or one that is awaited (see ``_actions``).
"""

import contextlib
import inspect
import logging
import math
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Any

from solstice._core.retry import RetryPolicy
from solstice.connect._errors import error_of
from solstice.connect._execution import (
    RETRY_POLICY,
    SHORT_TIMEOUT_S,
    Action,
    Done,
    Emit,
    Execution,
    Expire,
    Fail,
    Item,
    Release,
    Send,
    Sleep,
    retry_delay_s,
)
from solstice.connect._protocol import Protocol
from solstice.connect._requests import Requests
from solstice.connect._status import Failure
from solstice.connect._transport import CallFailed, Metadata, Stream, Transport
from solstice.connect._url import Endpoint, check_token
from solstice.errors import ConnectError, OperationTimeoutError, SessionClosedError, TransportError

_log = logging.getLogger("solstice.connect")

_END_TIMEOUT_S = 0.2


class Driver:
    """Speaks for one session. ``timeout_s`` is how long an operation may take, None for as long as it likes."""

    def __init__(
        self,
        protocol: Protocol,
        endpoint: Endpoint,
        transport: Transport,
        *,
        timeout_s: float | None = None,
        server_end: Callable[[], str | None] = lambda: None,
    ) -> None:
        """``server_end`` gives the last words of a server that has ended for good, where that can be known."""
        self.requests = Requests(protocol, endpoint)
        self.endpoint = endpoint
        self.timeout_s = timeout_s
        self.server_end = server_end
        self._transport = transport
        self._closed = False
        self._metadata: Metadata | None = None  # of the last call

    async def unary(
        self,
        method: str,
        request: Any,
        *,
        policy: RetryPolicy = RETRY_POLICY,
        timeout_s: float | None = None,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> Any:
        """Call, retry what is transient, raise what is not as an error of this package.

        ``timeout_s`` is for one try, in place of the session's, which is for all of them. ``meanwhile`` is called in
        each try while the server works.
        """
        allowed_s = self.timeout_s if timeout_s is None else None
        deadline = math.inf if allowed_s is None else time.monotonic() + allowed_s
        tries = 0
        while True:
            tries += 1
            left_s = timeout_s if allowed_s is None else max(deadline - time.monotonic(), 0.0)
            try:
                return await self._once(method, request, left_s, meanwhile)
            except CallFailed as error:
                failure = error.failure
            left_s = deadline - time.monotonic()
            if allowed_s is not None and (failure.code == "DEADLINE_EXCEEDED" or left_s <= 0):
                raise _timeout_error(allowed_s)
            if tries >= policy.max_attempts or not failure.is_transient or self.server_end() is not None:
                raise await self._error(failure)
            await self._transport.sleep(min(retry_delay_s(failure, policy, tries), left_s))

    async def upload(self, name: str, data: bytes) -> None:
        """Give the session an artifact, unless it has one of the name."""
        known = await self.unary("ArtifactStatus", self.requests.artifact_status(name))
        if not known.statuses[name].exists:
            await self.unary("AddArtifacts", lambda: self.requests.artifact(name, data))

    async def execute(
        self, operation_id: str, fill: Callable[[Any], None], tags: Iterable[str] = ()
    ) -> AsyncGenerator[Item, None]:
        """Run the plan that ``fill`` writes, and yield what comes of it. Closing the iterator ends the operation."""
        execution = Execution(timeout_s=self.timeout_s)
        request = self.requests.execute(operation_id, tags)
        fill(request.plan)
        todo: deque[Action] = deque(execution.start())
        stream: _Stream | None = None
        try:
            while True:
                match todo.popleft() if todo else None:
                    case None:
                        todo.extend(await self._advance(execution, stream))
                    case Send(kind="execute", timeout_s=timeout_s):
                        stream = _Stream(self, "ExecutePlan", request, timeout_s)
                    case Send(kind="reattach", last_response_id=last_id, timeout_s=timeout_s):
                        reattach = self.requests.reattach(operation_id, last_id)
                        stream = _Stream(self, "ReattachExecute", reattach, timeout_s)
                    case Release(until=until):
                        await self._release(operation_id, until)
                    case Sleep(seconds=seconds):
                        await self._transport.sleep(seconds)
                    case Emit(item=item):
                        yield item
                    case Done():
                        return
                    case Expire():
                        raise _timeout_error(self.timeout_s)
                    case Fail(failure=failure):
                        raise await self._error(failure)
        finally:
            # Actions are left on Ctrl-C, when the task is cancelled, on an error of the caller and on an early close.
            if execution.cancel():
                if stream is not None:
                    stream.cancel()
                await self._end_operation(operation_id)

    def check_open(self) -> None:
        """Raise SessionClosedError after close()."""
        if self._closed:
            raise SessionClosedError("the session is stopped.", remedy="Start a new one with connect() or local().")

    async def close(self) -> None:
        """Close the channel. Calls under way, and all later ones, raise SessionClosedError."""
        self._closed = True
        await self._transport.close()

    def open_stream(self, method: str, request: Any, metadata: Metadata, timeout_s: float | None) -> Stream:
        """A stream of responses."""
        self.check_open()
        return self._transport.stream(method, request, metadata, timeout_s)

    async def metadata(self) -> Metadata:
        """What goes with a call: the headers, and the token, for which a callback is asked each time."""
        token = self.endpoint.token
        if callable(token):
            given = token()
            token = check_token(await given if inspect.isawaitable(given) else given)
        bearer = () if token is None else (("authorization", f"Bearer {token}"),)
        self._metadata = (*self.endpoint.headers, *bearer)
        return self._metadata

    async def renewed(self, metadata: Metadata, failure: Failure) -> Metadata | None:
        """What to send after a refusal: another token, if the callback has another one by now."""
        if not (failure.is_refusal and callable(self.endpoint.token)):
            return None
        renewed = await self.metadata()
        return None if renewed == metadata else renewed

    async def _advance(self, execution: Execution, stream: "_Stream | None") -> list[Action]:
        if stream is None:
            raise AssertionError("an execution starts by sending")
        try:
            response = await stream.next()
        except CallFailed as error:
            return execution.failed(error.failure, server_ended=self.server_end() is not None)
        if response is None:
            return execution.ended()
        self.requests.observe(response)
        return execution.response(response)

    async def _once(
        self, method: str, request: Any, timeout_s: float | None, meanwhile: Callable[[], None] = lambda: None
    ) -> Any:
        self.check_open()
        metadata = await self.metadata()
        try:
            response = await self._transport.unary(method, request, metadata, timeout_s, meanwhile)
        except CallFailed as error:
            renewed = await self.renewed(metadata, error.failure)
            if renewed is None:
                raise
            response = await self._transport.unary(method, request, renewed, timeout_s)
        self.requests.observe(response)
        return response

    async def _release(self, operation_id: str, until: str | None, metadata: Metadata | None = None) -> Any:
        # Nobody waits for it, and a failure costs nothing: the server drops abandoned results by itself.
        if self._closed:
            return None
        request = self.requests.release(operation_id, until)
        try:
            return self._transport.start("ReleaseExecute", request, metadata or await self.metadata(), SHORT_TIMEOUT_S)
        except CallFailed:
            return None  # closed meanwhile

    async def _end_operation(self, operation_id: str) -> None:
        # Waited for, briefly: after Ctrl-C the process may end before a call in the background is on its way. A token
        # callback may take its time, so it is asked only if the token that it gave last is refused by now.
        failure = await self._ended(operation_id, self._metadata)
        if failure is not None and failure.is_refusal and callable(self.endpoint.token):
            failure = await self._ended(operation_id, None)
        if failure is not None:
            _log.warning("the server did not say that operation %s has ended: %s", operation_id, failure.message)

    async def _ended(self, operation_id: str, metadata: Metadata | None) -> Failure | None:
        started = await self._release(operation_id, None, metadata)
        if started is None:
            return None  # stopping a session ends its operations
        return await self._transport.wait(started, _END_TIMEOUT_S)

    async def _error(self, failure: Failure) -> ConnectError:
        self.check_open()  # a call that failed because the channel was closed under it
        if failure.is_transient and (last_words := self.server_end()) is not None:
            return TransportError(
                f"the local Spark Connect server has ended: {last_words}.",
                code=failure.code,
                remedy='Start a new one; if memory was short: local({"spark.driver.memory": "4g"}).',
            )
        details = None
        if failure.error_id is not None:
            with contextlib.suppress(CallFailed):  # then the status alone has to do
                request = self.requests.error_details(failure.error_id)
                details = await self._once("FetchErrorDetails", request, SHORT_TIMEOUT_S)
        return error_of(failure, address=self.endpoint.address, details=details)


class _Stream:
    """One stream of responses. If the server refuses the token, it is opened once more with a new one."""

    def __init__(self, driver: Driver, method: str, request: Any, timeout_s: float | None) -> None:
        self._driver = driver
        self._call = (method, request)
        self._timeout_s = timeout_s
        self._stream: Stream | None = None

    async def next(self) -> Any:
        if self._stream is not None:
            return await self._stream.next()
        metadata = await self._driver.metadata()
        try:
            return await self._first(metadata)
        except CallFailed as error:
            renewed = await self._driver.renewed(metadata, error.failure)
            if renewed is None:
                raise
        return await self._first(renewed)

    async def _first(self, metadata: Metadata) -> Any:
        self._stream = self._driver.open_stream(*self._call, metadata, self._timeout_s)
        return await self._stream.next()

    def cancel(self) -> None:
        if self._stream is not None:
            self._stream.cancel()


def _timeout_error(timeout_s: float | None) -> OperationTimeoutError:
    return OperationTimeoutError(
        f"the operation took longer than {timeout_s:g} s and was ended.",
        remedy="Set the session's timeout_s to more, or to None.",
    )
