"""The planner's side of the agent: its birth, its questions, its end. Run as a module, this file is the agent."""

import json
import logging
import os
import resource
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from solstice import _native
from solstice._core.logging import end_native_logging, start_native_logging
from solstice._core.options import OptionValues
from solstice.errors import AgentLostError, SolsticeError
from solstice.pubsub._cluster import Driver
from solstice.pubsub._registry import AgentEntry, AgentFolder, living_agents

if TYPE_CHECKING:
    from solstice.pubsub._shape import Selection

_log = logging.getLogger(__name__)

# The agent gives back what it holds within a second.
_FAREWELL_S = 5.0

# The agent's buffers are large and come and go with every batch. As it is, glibc gives most of them back to the kernel
# and takes the pages anew, page by page, which is a third of the cost of receiving; and one arena a thread holds twice
# what is needed. Other libcs do not know these.
_MALLOC = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),  # the highest there is
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
}


@dataclass(frozen=True)
class Batch:
    """A batch that the agent has cut: the offset at its end and the rows of each part."""

    end: dict[str, Any]
    parts: list[int]


class AgentProcess:
    """A running agent. It ends when this process does, whatever the reason."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        agent: _native.Agent,
        folder: AgentFolder,
        *,
        epoch: str,
        token: str,
        host: str,
    ) -> None:
        self._process = process
        self._agent = agent
        self._folder = folder
        self.epoch = epoch
        self.token = token
        self.socket = folder.socket
        # Where executors on other hosts find it: at Spark's driver, if no host is given.
        self.host = host
        self.port = agent.port
        # Whether all that was there at the start of an availableNow run has been cut, and is acknowledged.
        self.drained = False

    @classmethod
    def start(
        cls,
        subscription: str,
        connection: _native.Connection,
        values: OptionValues,
        selection: "Selection",
        *,
        cluster: Driver,
        available_now: bool,
    ) -> "AgentProcess":
        """Start an agent and wait until it pulls, or raise what keeps it from doing so.

        With ``available_now`` it reads what is there at its start, and then is ``drained``.
        """
        host = values["agentHost"] or ""
        tcp = (host or cluster.address, values["agentPort"]) if host or not cluster.is_local else None
        epoch, token = str(uuid.uuid4()), secrets.token_hex(32)
        folder = AgentFolder()
        config = {
            "epoch": epoch,
            "subscription": subscription,
            "connection": json.loads(connection.as_json()),
            "streams": values["streams"],
            "ack_deadline_s": round(values["ackDeadline"]),
            "max_lease_s": round(values["maxLeaseDuration"]),
            "max_outstanding_messages": values["maxOutstandingMessages"],
            "max_outstanding_bytes": values["maxOutstandingBytes"],
            "columns": selection.columns,
            "attribute_columns": selection.attribute_columns,
            "grow_parts": not values["numPartitions"] and not cluster.is_local,
            "socket": folder.socket,
            "tcp": tcp,
            "token": token,
            "available_now_idle_ms": round(values["availableNowIdle"] * 1_000) if available_now else None,
        }
        ours, theirs = socket.socketpair()
        with ours, theirs, _removed_on_error(folder):
            try:
                process = subprocess.Popen(
                    [sys.executable, "-m", "solstice.pubsub._agent", str(theirs.fileno()), str(folder.path)],
                    pass_fds=[theirs.fileno(), folder.lock],
                    stdin=subprocess.DEVNULL,
                    stdout=sys.stderr.fileno(),  # the log of the driver; stdout may be somebody's protocol
                    start_new_session=True,
                    env=_MALLOC | os.environ,
                )
            finally:
                folder.hand_over()
            theirs.close()  # or the end of the agent would not be the end of the socket
            try:
                agent = _native.Agent(ours.detach(), json.dumps(config))
            except AgentLostError as error:
                _reap(process)
                raise AgentLostError(
                    f"the Pub/Sub agent did not start: it ended with status {process.returncode}.",
                    remedy="Its standard error, in the driver's log, has the reason.",
                ) from error
            except BaseException:
                _reap(process)
                raise
            endpoint = config["connection"]["endpoint"]
            _announce(AgentEntry(process.pid, epoch, endpoint, subscription, folder.socket, token, time.time()))
        return cls(process, agent, folder, epoch=epoch, token=token, host=host)

    def cut(
        self, start: dict[str, Any], *, max_rows: int, max_bytes: int, max_parts: int, wait_ms: int
    ) -> Batch | None:
        """The batch after ``start``; None when nothing came within the wait."""
        cut, self.drained = self._agent.cut(
            (start["epoch"], start["seq"]), max_rows=max_rows, max_bytes=max_bytes, max_parts=max_parts, wait_ms=wait_ms
        )
        if cut is None:
            return None
        (epoch, seq), parts = cut
        return Batch({"epoch": epoch, "seq": seq}, parts)

    def write(self, end: dict[str, Any], files: Sequence[str]) -> None:
        """Write the parts of a batch to files of this machine, as Arrow files; an OSError is the machine's own."""
        self._agent.write((end["epoch"], end["seq"]), list(files))

    def acknowledge(self, end: dict[str, Any]) -> None:
        """Acknowledge the batch that ends at ``end``; Pub/Sub's answer is not waited for."""
        self._agent.acknowledge((end["epoch"], end["seq"]))

    def confirmed(self, end: dict[str, Any]) -> bool | None:
        """Whether Pub/Sub took all acknowledgements of a batch while its leases lasted; None: they are under way."""
        return self._agent.confirmed((end["epoch"], end["seq"]))

    def status(self) -> dict[str, Any]:
        """The agent's counts."""
        return _counts(self._agent.status())

    def close(self) -> None:
        """Let the agent give back what it holds, and see it end."""
        self._agent.close()
        _reap(self._process)
        self._folder.remove()


def ask_status(socket: str, token: str) -> dict[str, Any]:
    """The counts of any agent on this host; its planner may be waiting for a batch meanwhile."""
    return _counts(_native.agent_status(socket, token))


def _counts(status: str) -> dict[str, Any]:
    """``pubsub_backlog_count``, a name that is known, is what was received and not acknowledged."""
    counts: dict[str, Any] = json.loads(status)
    return counts | {"pubsub_backlog_count": counts["leased"]}


def _announce(entry: AgentEntry) -> None:
    """Let others know of the agent, and the user of the others; the query goes on without."""
    try:
        _warn_of_others(entry.endpoint, entry.subscription)
        entry.write()
    except (OSError, SolsticeError) as error:
        _log.warning("solstice pubsub status does not see the agent in process %s: %s", entry.pid, error)


def _warn_of_others(endpoint: str, subscription: str) -> None:
    """Two queries may share a subscription on purpose; two sides of a join that do so find no pairs."""
    here = (endpoint, subscription)
    pids = [entry.pid for entry in living_agents() if (entry.endpoint, entry.subscription) == here]
    if pids:
        _log.warning(
            "another agent on this host reads %s (process %s): each message goes to one of the two. To join a stream "
            "with itself, do it in foreachBatch; else give each query a subscription of its own.",
            subscription,
            ", ".join(map(str, pids)),
        )


@contextmanager
def _removed_on_error(folder: AgentFolder) -> Iterator[None]:
    try:
        yield
    except BaseException:
        folder.remove()
        raise


def _reap(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(_FAREWELL_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _lift_limits() -> None:
    """Spark may bound its planner's memory; that bound is not meant for the agent, which has its own."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    for limit in ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), (hard, hard)):
        try:
            resource.setrlimit(resource.RLIMIT_AS, limit)
        except (ValueError, OSError):
            continue
        return


def main() -> None:
    """Be an agent at the socket whose descriptor is the first argument; the second is the folder of its own socket."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the planner; its end is ours
    _lift_limits()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    start_native_logging()
    status = 1
    try:
        _native.run_agent(int(sys.argv[1]))
        status = 0
    except SolsticeError:
        _log.exception("the agent failed")
    finally:
        shutil.rmtree(sys.argv[2], ignore_errors=True)
        end_native_logging()
        os._exit(status)  # a log that nobody reads any more must not keep the agent alive


if __name__ == "__main__":
    main()
