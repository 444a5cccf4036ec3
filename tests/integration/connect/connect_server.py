"""What tests of the client need beside a real server: a proxy that cuts, and what the server knows of operations."""

import contextlib
import socket
import struct
import threading
import time

from solstice.connect._actions import run
from solstice.connect._protocol import load_protocol
from solstice.errors import UnsupportedError

# A first batch, so that the job surely runs, then two endless tasks on the server's two cores. (A query that is ended
# in its first moments may run on in Spark 4.3.)
ENDLESS = (
    "select id from range(0, 5, 1, 1) union all select id from range(0, 1000000000000, 1, 2) where sqrt(id) < -rand()"
)


def operations(session):
    """The states of the session's operations, by their ids; None from Spark 4.0, which does not tell."""
    protocol = load_protocol()
    request = protocol.GetStatusRequest(**session._link.driver.requests._identity, operation_status={})
    try:
        response = run(session._link.driver.unary("GetStatus", request))
    except UnsupportedError:
        if not session.version.startswith("4.0."):
            raise
        return None
    states = protocol.GetStatusResponse.OperationStatus.OperationState
    return {
        status.operation_id: states.Name(status.state).removeprefix("OPERATION_STATE_")
        for status in response.operation_statuses
    }


def operation_states(session):
    return list((operations(session) or {}).values())


def wait_for_states(session, expected):
    if operations(session) is None:
        return  # the caller sees that the server's cores are free
    deadline = time.monotonic() + 10
    while operation_states(session) != expected:
        assert time.monotonic() < deadline, f"the server says: {operation_states(session)}"
        time.sleep(0.05)


class CuttingProxy:
    """Passes bytes on; resets a connection after so many of the server's bytes, or all of them when told."""

    def __init__(self, port, cut_after_bytes, cuts):
        self._target = ("127.0.0.1", port)
        self._cut_after_bytes = cut_after_bytes
        self._cuts_left = cuts
        self.cuts = 0
        self._lock = threading.Lock()
        self._connections = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        self._listener.close()
        self.cut_all()

    def cut_all(self):
        for connection in self._connections:
            self._cut(*connection)

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._target)
            self._connections.append((client, server))
            threading.Thread(target=self._pump, args=(client, server, None), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client, self._cut_after_bytes), daemon=True).start()

    def _pump(self, source, sink, budget):
        with contextlib.suppress(OSError):
            while data := source.recv(16_384):
                sink.sendall(data)
                if budget is not None:
                    budget -= len(data)
                    if budget <= 0 and self._may_cut():
                        break
        self._cut(source, sink)

    def _cut(self, *ends):
        for end in ends:
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, not an end
                end.shutdown(socket.SHUT_RDWR)  # wakes the other direction, which waits in recv
            end.close()

    def _may_cut(self):
        with self._lock:
            if self._cuts_left == 0:
                return False
            self._cuts_left -= 1
            self.cuts += 1
            return True
