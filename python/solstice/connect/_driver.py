"""Carries calls over gRPC: unary ones with retries, executions by doing what their state machine says.

Calls are futures and streams, never blocking unary calls: those would see Ctrl-C late.
"""

import contextlib
import logging
import uuid
from collections import deque
from collections.abc import Callable, Generator
from typing import Any

import grpc

from solstice._core.retry import Clock, RetryPolicy, SystemClock, call
from solstice.connect._errors import error_of
from solstice.connect._execution import (
    RETRY_POLICY,
    Action,
    Done,
    Emit,
    Execution,
    Fail,
    Item,
    Release,
    Send,
    Sleep,
)
from solstice.connect._protocol import Method, Protocol
from solstice.connect._requests import Requests
from solstice.connect._status import Failure, failure_of
from solstice.connect._url import Endpoint
from solstice.errors import ConnectError, SessionClosedError, TransportError

_log = logging.getLogger("solstice.connect")

_MAX_MESSAGE_BYTES = 128 * 1024 * 1024  # the server's own limit
_SHORT_TIMEOUT_S = 5.0
_END_TIMEOUT_S = 0.3


class _CallFailed(Exception):
    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Driver:
    """One channel to one server, for the calls of one session."""

    def __init__(
        self,
        protocol: Protocol,
        endpoint: Endpoint,
        *,
        clock: Clock | None = None,
        server_end: Callable[[], str | None] = lambda: None,
    ) -> None:
        """``server_end`` gives the last words of a server that has ended for good, where that can be known."""
        self.requests = Requests(protocol, endpoint)
        self._protocol = protocol
        self._endpoint = endpoint
        self._clock = clock or SystemClock()
        self._server_end = server_end
        self._metadata = endpoint.headers
        if endpoint.token is not None:
            self._metadata += (("authorization", f"Bearer {endpoint.token}"),)
        self._closed = False
        self._channel = _open_channel(endpoint)
        self._releases: set[Any] = set()
        self._calls: dict[str, Any] = {
            name: self._opener(method)(
                method.path, request_serializer=method.serialize, response_deserializer=method.deserialize
            )
            for name, method in protocol.methods.items()
        }

    def unary(
        self, method: str, request: Any, *, policy: RetryPolicy = RETRY_POLICY, timeout_s: float | None = None
    ) -> Any:
        """Call, retry what is transient, raise what is not as an error of this package."""
        return self._retrying(lambda: self._unary_once(method, request, timeout_s), policy)

    def upload(self, name: str, data: bytes) -> None:
        """Give the session an artifact, unless it has one of the name."""
        if self.unary("ArtifactStatus", self.requests.artifact_status(name)).statuses[name].exists:
            return
        self._retrying(lambda: self._unary_once("AddArtifacts", self.requests.artifact(name, data), None), RETRY_POLICY)

    def _retrying(self, attempt: Callable[[], Any], policy: RetryPolicy) -> Any:
        try:
            return call(
                attempt,
                policy=policy,
                retryable=lambda error: (
                    isinstance(error, _CallFailed) and error.failure.is_transient and self._server_end() is None
                ),
                clock=self._clock,
            )
        except _CallFailed as error:
            failure = error.failure
        raise self._error(failure)

    def execute(self, fill: Callable[[Any], None]) -> Generator[Item, None, None]:
        """Run the plan that ``fill`` writes, and yield what comes of it. Closing the iterator ends the operation."""
        execution, operation_id = Execution(), str(uuid.uuid4())
        request = self.requests.execute(operation_id)
        fill(request.plan)
        todo: deque[Action] = deque(execution.start())
        stream: Any = None
        try:
            while True:
                match todo.popleft() if todo else None:
                    case None:
                        todo.extend(self._advance(execution, stream))
                    case Send(kind="execute"):
                        stream = self._stream("ExecutePlan", request)
                    case Send(kind="reattach", last_response_id=last_id):
                        stream = self._stream("ReattachExecute", self.requests.reattach(operation_id, last_id))
                    case Release(until=until):
                        self._release(operation_id, until)
                    case Sleep(seconds=seconds):
                        self._clock.sleep(seconds)
                    case Emit(item=item):
                        yield item
                    case Done():
                        return
                    case Fail(failure=failure):
                        raise self._error(failure)
        finally:
            # Actions are left on Ctrl-C, on an error of the caller and when the iterator is closed early.
            if execution.cancel():
                if stream is not None:
                    stream.cancel()
                self._end_operation(operation_id)

    def check_open(self) -> None:
        """Raise SessionClosedError after close()."""
        if self._closed:
            raise SessionClosedError("the session is stopped.", remedy="Start a new one with connect() or local().")

    def close(self) -> None:
        """Close the channel. Calls under way, and all later ones, raise SessionClosedError."""
        self._closed = True
        self._channel.close()

    def _opener(self, method: Method) -> Callable[..., Any]:
        if method.streams_requests:
            opener: Callable[..., Any] = self._channel.stream_unary
            return opener
        return self._channel.unary_stream if method.streams_responses else self._channel.unary_unary

    def _stream(self, method: str, request: Any) -> Any:
        self.check_open()
        return self._calls[method](request, metadata=self._metadata)

    def _advance(self, execution: Execution, stream: Any) -> list[Action]:
        try:
            response = next(stream, None)
        except grpc.RpcError as error:
            return execution.failed(self._failure(error), server_ended=self._server_end() is not None)
        if response is None:
            return execution.ended()
        self.requests.observe(response)
        return execution.response(response)

    def _unary_once(self, method: str, request: Any, timeout_s: float | None) -> Any:
        self.check_open()
        future = self._calls[method].future(request, metadata=self._metadata, timeout=timeout_s)
        try:
            response = future.result()
        except grpc.RpcError as error:
            raise _CallFailed(self._failure(error)) from None
        except grpc.FutureCancelledError:
            raise _CallFailed(Failure("CANCELLED", "the call was cancelled")) from None
        except BaseException:
            future.cancel()
            raise
        self.requests.observe(response)
        return response

    def _release(self, operation_id: str, until: str | None) -> Any:
        # Nobody waits for it, and a failure costs nothing: the server drops abandoned results by itself. It is held
        # until it is done, because gRPC cancels a call whose future is collected.
        if self._closed:
            return None
        request = self.requests.release(operation_id, until)
        future = self._calls["ReleaseExecute"].future(request, metadata=self._metadata, timeout=_SHORT_TIMEOUT_S)
        self._releases.add(future)
        future.add_done_callback(self._releases.discard)
        return future

    def _end_operation(self, operation_id: str) -> None:
        # Waited for, briefly: after Ctrl-C the process may end before a call in the background is on its way.
        future = self._release(operation_id, None)
        if future is None:
            return  # stopping a session ends its operations
        try:
            future.result(timeout=_END_TIMEOUT_S)
        except (grpc.RpcError, grpc.FutureTimeoutError, grpc.FutureCancelledError) as error:
            _log.warning("the server did not say that operation %s has ended: %s", operation_id, error)

    def _failure(self, error: Any) -> Failure:
        return failure_of(self._protocol, error.code().name, error.details(), error.trailing_metadata())

    def _error(self, failure: Failure) -> ConnectError:
        self.check_open()  # a call that failed because the channel was closed under it
        if failure.is_transient and (last_words := self._server_end()) is not None:
            return TransportError(
                f"the local Spark Connect server has ended: {last_words}.",
                code=failure.code,
                remedy='Start a new one; if memory was short: local({"spark.driver.memory": "4g"}).',
            )
        details = None
        if failure.error_id is not None:
            with contextlib.suppress(_CallFailed):  # then the status alone has to do
                request = self.requests.error_details(failure.error_id)
                details = self._unary_once("FetchErrorDetails", request, _SHORT_TIMEOUT_S)
        return error_of(failure, address=self._endpoint.address, details=details)


def _open_channel(endpoint: Endpoint) -> grpc.Channel:
    options = [
        ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
        ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 5000),
        ("grpc.use_local_subchannel_pool", 1),  # a session's failures stay its own
        # A connection that died without a word fails after this; the execution then goes on over a new one.
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
    ]
    if endpoint.is_local:
        options.append(("grpc.enable_http_proxy", 0))
    if endpoint.use_tls:
        return grpc.secure_channel(endpoint.address, grpc.ssl_channel_credentials(), options=options)
    return grpc.insecure_channel(endpoint.address, options=options)
