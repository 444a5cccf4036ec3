"""Calls over gRPC that are awaited: the same transport in an event loop."""

import asyncio
from collections.abc import Callable
from typing import Any

import grpc.aio

from solstice.connect._protocol import Protocol as Messages
from solstice.connect._status import Failure, failure_of
from solstice.connect._transport import CANCELLED, NO_ANSWER, CallFailed, Metadata, callables, channel_options, invoked
from solstice.connect._url import Endpoint


class AsyncTransport:
    """Over ``grpc.aio``; it belongs to the event loop that it was made in."""

    def __init__(self, messages: Messages, endpoint: Endpoint) -> None:
        self._messages = messages
        options = channel_options(endpoint)
        if endpoint.use_tls:
            self._channel = grpc.aio.secure_channel(endpoint.address, grpc.ssl_channel_credentials(), options=options)
        else:
            self._channel = grpc.aio.insecure_channel(endpoint.address, options=options)
        self._calls = callables(self._channel, messages.methods)
        self._started: set[Any] = set()

    async def unary(
        self,
        method: str,
        request: Any,
        metadata: Metadata,
        timeout_s: float | None,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> Any:
        """Call; cancelling the task ends the call."""
        call = self._call(method, request, metadata, timeout_s)
        meanwhile()
        return await _answer(call, self._failure)

    def stream(self, method: str, request: Any, metadata: Metadata, timeout_s: float | None) -> "_AsyncStream":
        """Call a method that has many responses."""
        return _AsyncStream(self._call(method, request, metadata, timeout_s), self._failure)

    def start(self, method: str, request: Any, metadata: Metadata, timeout_s: float) -> Any:
        """Call and go on. The task is held until it is done."""
        task = asyncio.ensure_future(self._outcome(self._call(method, request, metadata, timeout_s)))
        self._started.add(task)
        task.add_done_callback(self._started.discard)
        return task

    async def wait(self, started: Any, timeout_s: float) -> Failure | None:
        """Wait for a call that was started; it goes on when the wait is cancelled."""
        await asyncio.wait({started}, timeout=timeout_s)
        failure: Failure | None = started.result() if started.done() and not started.cancelled() else NO_ANSWER
        return failure

    async def sleep(self, seconds: float) -> None:
        """Let other tasks run meanwhile."""
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        """Close the channel."""
        await self._channel.close()

    def _call(self, method: str, request: Any, metadata: Metadata, timeout_s: float | None) -> Any:
        given = request() if callable(request) else request
        return invoked(self._calls[method], given, metadata=metadata, timeout=timeout_s)

    async def _outcome(self, call: Any) -> Failure | None:
        try:
            await _answer(call, self._failure)
        except CallFailed as error:
            return error.failure
        return None

    def _failure(self, error: Any) -> Failure:
        return failure_of(self._messages, error.code().name, error.details(), error.trailing_metadata())


class _AsyncStream:
    def __init__(self, call: Any, failure: Callable[[Any], Failure]) -> None:
        self._call = call
        self._failure = failure

    async def next(self) -> Any:
        response = await _answer(self._call.read(), self._failure)
        return None if response is grpc.aio.EOF else response

    def cancel(self) -> None:
        self._call.cancel()


async def _answer(call: Any, failure: Callable[[Any], Failure]) -> Any:
    """What a call gives. gRPC reports a closed channel as if the task had been cancelled; that is told apart here."""
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise CallFailed(failure(error)) from None
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise CallFailed(CANCELLED) from None
