"""Calls over gRPC that block. The methods are coroutines, as those of the asynchronous transport, and never suspend.

Calls are futures and streams, never blocking unary calls: those would see Ctrl-C late. gRPC itself never sees it.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import grpc

from solstice.connect._interrupt import Uninterrupted
from solstice.connect._protocol import Method
from solstice.connect._protocol import Protocol as Messages
from solstice.connect._status import Failure, failure_of
from solstice.connect._url import Endpoint

Metadata = tuple[tuple[str, str], ...]


class CallFailed(Exception):
    """A call failed; ``failure`` says how."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Stream(Protocol):
    """The responses of a call that has many."""

    async def next(self) -> Any:
        """The next response, or None at the end. Raises CallFailed."""
        ...

    def cancel(self) -> None:
        """End the call."""
        ...


class Transport(Protocol):
    """One channel to one server. For a method that streams its requests, ``request`` is a function that makes them."""

    async def unary(
        self,
        method: str,
        request: Any,
        metadata: Metadata,
        timeout_s: float | None,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> Any:
        """Call and wait for the response; ``meanwhile`` is called before the wait. Raises CallFailed."""
        ...

    def stream(self, method: str, request: Any, metadata: Metadata, timeout_s: float | None) -> Stream:
        """Call a method that has many responses."""
        ...

    def start(self, method: str, request: Any, metadata: Metadata, timeout_s: float) -> Any:
        """Call and go on; what is returned can be waited for."""
        ...

    async def wait(self, started: Any, timeout_s: float) -> Failure | None:
        """Wait for a call that was started, so long. None if it has succeeded, else why not."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after so many seconds."""
        ...

    async def close(self) -> None:
        """Close the channel. Calls under way fail."""
        ...


def channel_options(endpoint: Endpoint) -> list[tuple[str, int]]:
    """What gRPC is told of a channel to an endpoint."""
    options = [
        ("grpc.max_send_message_length", endpoint.max_message_bytes),
        ("grpc.max_receive_message_length", endpoint.max_message_bytes),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 5000),
        ("grpc.use_local_subchannel_pool", 1),  # a session's failures stay its own
    ]
    if endpoint.keepalive is not None:
        # A connection that died without a word fails after this; the execution then goes on over a new one.
        options += [
            ("grpc.keepalive_time_ms", endpoint.keepalive.time_ms),
            ("grpc.keepalive_timeout_ms", endpoint.keepalive.timeout_ms),
            ("grpc.keepalive_permit_without_calls", int(endpoint.keepalive.without_calls)),
        ]
    if endpoint.is_local:
        options.append(("grpc.enable_http_proxy", 0))
    return options


def callables(channel: Any, methods: Mapping[str, Method]) -> dict[str, Any]:
    """gRPC's objects that call the methods, of a channel of either kind."""
    openers = {
        (False, False): channel.unary_unary,
        (False, True): channel.unary_stream,
        (True, False): channel.stream_unary,
    }
    return {
        name: openers[method.streams_requests, method.streams_responses](
            method.path, request_serializer=method.serialize, response_deserializer=method.deserialize
        )
        for name, method in methods.items()
    }


class BlockingTransport:
    """Over ``grpc``."""

    def __init__(self, messages: Messages, endpoint: Endpoint) -> None:
        self._messages = messages
        options = channel_options(endpoint)
        if endpoint.use_tls:
            self._channel = grpc.secure_channel(endpoint.address, grpc.ssl_channel_credentials(), options=options)
        else:
            self._channel = grpc.insecure_channel(endpoint.address, options=options)
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
        """Call; Ctrl-C ends the wait."""
        with Uninterrupted():
            future = self._future(method, request, metadata, timeout_s)
        try:
            meanwhile()
        except BaseException:
            future.cancel()
            raise
        try:
            with Uninterrupted(future.cancel):
                return future.result()
        except grpc.RpcError as error:
            raise CallFailed(self._failure(error)) from None
        except grpc.FutureCancelledError:
            raise CallFailed(CANCELLED) from None

    def stream(self, method: str, request: Any, metadata: Metadata, timeout_s: float | None) -> "_BlockingStream":
        """Call a method that has many responses."""
        with Uninterrupted():
            call = invoked(self._calls[method], request, metadata=metadata, timeout=timeout_s)
        return _BlockingStream(call, self._failure)

    def start(self, method: str, request: Any, metadata: Metadata, timeout_s: float) -> Any:
        """Call and go on. The call is held until it is done: gRPC cancels one whose future is collected."""
        with Uninterrupted():
            future = self._future(method, request, metadata, timeout_s)
            self._started.add(future)
            future.add_done_callback(self._started.discard)
        return future

    async def wait(self, started: Any, timeout_s: float) -> Failure | None:
        """Wait for a call that was started."""
        try:
            with Uninterrupted():
                started.result(timeout=timeout_s)
        except grpc.RpcError as error:
            return self._failure(error)
        except (grpc.FutureTimeoutError, grpc.FutureCancelledError):
            return NO_ANSWER
        return None

    async def sleep(self, seconds: float) -> None:
        """Sleep in this thread."""
        time.sleep(seconds)  # noqa: ASYNC251  (the point of this transport)

    async def close(self) -> None:
        """Close the channel."""
        with Uninterrupted():
            self._channel.close()

    def _future(self, method: str, request: Any, metadata: Metadata, timeout_s: float | None) -> Any:
        call = self._calls[method]
        return invoked(call.future, request() if callable(request) else request, metadata=metadata, timeout=timeout_s)

    def _failure(self, error: Any) -> Failure:
        return failure_of(self._messages, error.code().name, error.details(), error.trailing_metadata())


class _BlockingStream:
    def __init__(self, call: Any, failure: Callable[[Any], Failure]) -> None:
        self._call = call
        self._failure = failure

    async def next(self) -> Any:
        try:
            with Uninterrupted(self._call.cancel):
                return next(self._call, None)
        except grpc.RpcError as error:
            raise CallFailed(self._failure(error)) from None

    def cancel(self) -> None:
        with Uninterrupted():
            self._call.cancel()


NO_ANSWER = Failure("DEADLINE_EXCEEDED", "no answer")
CANCELLED = Failure("CANCELLED", "the call was cancelled")


def invoked(call: Callable[..., Any], request: Any, **options: Any) -> Any:
    """Make a call; on a channel that was closed meanwhile it fails like one under way."""
    try:
        return call(request, **options)
    except Exception as error:  # the two kinds of channel have different ones
        if "closed" not in str(error).lower():
            raise
        raise CallFailed(CANCELLED) from None
