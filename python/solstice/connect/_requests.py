"""Makes the requests of one session: who asks, in which session, and what the server said its side of it is."""

import zlib
from collections.abc import Iterable, Iterator
from typing import Any

from solstice.connect._protocol import Protocol
from solstice.connect._url import Endpoint
from solstice.errors import UnsupportedError

_CHUNK_BYTES = 1024 * 1024


class Requests:
    """Fills the fields that all requests share. ``observe`` every response: a server that lost the session shows."""

    def __init__(self, protocol: Protocol, endpoint: Endpoint) -> None:
        self._protocol = protocol
        self._identity = {
            "session_id": endpoint.session_id,
            "user_context": protocol.UserContext(user_id=endpoint.user_id, user_name=endpoint.user_id),
            "client_type": endpoint.user_agent,
        }
        self._server_session_id: str | None = None

    def observe(self, response: Any) -> None:
        """Remember the server's own id of the session; it refuses later requests when that has changed."""
        if self._server_session_id is None:
            self._server_session_id = response.server_side_session_id or None

    def execute(self, operation_id: str, tags: Iterable[str] = ()) -> Any:
        """Run a plan, to be filled in, reattachable, its large batches in chunks."""
        request = self._request("ExecutePlanRequest", operation_id=operation_id, tags=sorted(tags))
        request.request_options.add().reattach_options.reattachable = True
        if "result_chunking_options" in self._protocol.ExecutePlanRequest.RequestOption.DESCRIPTOR.fields_by_name:
            request.request_options.add().result_chunking_options.allow_arrow_batch_chunking = True
        return request

    def reattach(self, operation_id: str, last_response_id: str | None) -> Any:
        """Go on with a result after a response that has arrived."""
        request = self._request("ReattachExecuteRequest", operation_id=operation_id)
        if last_response_id is not None:
            request.last_response_id = last_response_id
        return request

    def release(self, operation_id: str, until: str | None) -> Any:
        """Let the server forget a result up to a response, or end and forget the operation."""
        request = self._request("ReleaseExecuteRequest", operation_id=operation_id)
        if until is None:
            request.release_all.SetInParent()
        else:
            request.release_until.response_id = until
        return request

    def analyze(self, **question: Any) -> Any:
        """Ask about a plan, to be filled in, or the server; the keyword is the question's name in the protocol."""
        return self._request("AnalyzePlanRequest", **question)

    def config(self, **operation: Any) -> Any:
        """Read or change settings; the keyword is the operation's name in the protocol."""
        return self._request("ConfigRequest", operation=operation)

    def artifact_status(self, name: str) -> Any:
        """Ask whether the session has an artifact."""
        return self._request("ArtifactStatusesRequest", names=[name])

    def artifact(self, name: str, data: bytes) -> Iterator[Any]:
        """Give the session an artifact, in chunks."""
        chunks = [data[start : start + _CHUNK_BYTES] for start in range(0, len(data), _CHUNK_BYTES)] or [b""]
        first, *rest = ({"data": chunk, "crc": zlib.crc32(chunk)} for chunk in chunks)
        if not rest:
            yield self._request("AddArtifactsRequest", batch={"artifacts": [{"name": name, "data": first}]})
            return
        begin = {"name": name, "total_bytes": len(data), "num_chunks": len(chunks), "initial_chunk": first}
        yield self._request("AddArtifactsRequest", begin_chunk=begin)
        for chunk in rest:
            yield self._request("AddArtifactsRequest", chunk=chunk)

    def error_details(self, error_id: str) -> Any:
        """Ask for all that the server knows of an error."""
        return self._request("FetchErrorDetailsRequest", error_id=error_id)

    def interrupt(self, kind: str, **which: str) -> Any:
        """End operations: all, those of a tag, or one."""
        return self._request("InterruptRequest", interrupt_type=f"INTERRUPT_TYPE_{kind}", **which)

    def clone(self, session_id: str) -> Any:
        """Make a session with this one's settings and views."""
        return self._request("CloneSessionRequest", new_session_id=session_id)

    def release_session(self) -> Any:
        """End the session on the server."""
        return self._protocol.ReleaseSessionRequest(**self._identity)

    def _request(self, name: str, **fields: Any) -> Any:
        try:
            message = getattr(self._protocol, name)
        except AttributeError as error:  # an older pyspark
            raise UnsupportedError(f"{error}.", remedy="Install a newer pyspark or pyspark-client.") from None
        request = message(**self._identity, **fields)
        if self._server_session_id is not None:
            request.client_observed_server_side_session_id = self._server_session_id
        return request
