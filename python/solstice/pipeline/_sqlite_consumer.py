"""Taking and settling in the embedded queue: the transactions that every split goes through."""

import sqlite3
import threading
import time
from collections.abc import Callable, Sequence

from solstice.errors import LeaseLostError
from solstice.pipeline._message import QueueMessage
from solstice.pipeline._paths import local_path
from solstice.pipeline._queue import Consumer, Delivery, Prepared, Settlement
from solstice.pipeline._sqlite_database import Database
from solstice.pipeline._sqlite_log import append, forget_prepared, require_writer

POLL_S = 0.01
_WORKER_DIED = "the worker died, or did not renew its lease, while it had the split"


class SqliteConsumer(Consumer):
    """One worker of a group on one topic."""

    def __init__(
        self,
        url: str,
        topic: str,
        group: str,
        owner: str,
        *,
        retries: int,
        lease_s: float,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        path = local_path(url)
        self._database = Database(path)
        # Its own connection: leases are renewed by another thread while this one is in the middle of something.
        self._lease_database = Database(path)
        self._topic = topic
        self._group = group
        self._owner = owner
        self._retries = retries
        self._lease_s = lease_s
        self._now_s = now_s

    def take(self) -> Delivery | None:
        """The next message: first what must be done again, then what is new."""
        with self._database.transaction() as connection:
            require_writer(connection, self._owner)
            return self._take(connection)

    def settle(
        self,
        delivery: Delivery,
        produced: Sequence[QueueMessage] = (),
        *,
        to: str = "",
        prepared: Sequence[Prepared] = (),
        done: Sequence[str] = (),
        take: bool = True,
    ) -> Settlement:
        """Commit a delivery with what it produced, and take the next, in one transaction."""
        with self._database.transaction() as connection:
            self._require_ours(connection, delivery)
            released = self._leave(connection, delivery.id, dead=False)
            append(connection, to, produced)
            connection.executemany(
                "INSERT INTO prepared VALUES (?, ?, ?, ?, ?)",
                ((self._group, file.split_id, self._owner, file.temporary, file.final) for file in prepared),
            )
            forget_prepared(connection, self._group, done)
            return Settlement(self._take(connection) if take else None, released)

    def fail(
        self, delivery: Delivery, error: str, traceback: str, *, delay_s: float = 0.0, take: bool = True
    ) -> Settlement:
        """Give a delivery back for a retry, or bury it."""
        with self._database.transaction() as connection:
            self._require_ours(connection, delivery)
            if delivery.failures + 1 > self._retries:
                self._bury(connection, delivery, error, traceback)
            else:
                connection.execute(
                    "UPDATE inflight SET owner = NULL, failures = failures + 1, lease_until = ?"
                    " WHERE topic = ? AND grp = ? AND id = ?",
                    (self._now_s() + delay_s, self._topic, self._group, delivery.id),
                )
            return Settlement(self._take(connection) if take else None)

    def require(self, delivery: Delivery) -> None:
        """Raise LeaseLostError when the delivery is another's by now."""
        with self._database.transaction() as connection:
            self._require_ours(connection, delivery)

    def extend(self) -> None:
        """Renew the worker's own lease and those of what it holds. Raises LeaseLostError when it was fenced."""
        with self._lease_database.transaction() as connection:
            require_writer(connection, self._owner)
            until = self._now_s() + self._lease_s
            connection.execute("UPDATE writers SET lease_until = ? WHERE writer = ?", (until, self._owner))
            connection.execute("UPDATE inflight SET lease_until = ? WHERE owner = ?", (until, self._owner))

    def wait(self, timeout_s: float, stop: threading.Event) -> None:
        """Poll the file's version, which costs microseconds, and look closer only when it has changed."""
        deadline = time.monotonic() + timeout_s
        version = -1
        while not stop.is_set() and time.monotonic() < deadline:
            current = self._database.version()
            if current != version and self._available():
                return
            version = current
            stop.wait(POLL_S)

    def close(self) -> None:
        """Give up both connections."""
        self._database.close()
        self._lease_database.close()

    def _available(self) -> bool:
        """Whether a take would find something new; what comes again by time alone is found by the timeout of wait."""
        row = self._database.connection.execute(
            "SELECT cursor < produced OR EXISTS (SELECT 1 FROM inflight WHERE topic = ?1 AND grp = ?2"
            " AND lease_until <= ?3) FROM groups JOIN topics USING (topic) WHERE topic = ?1 AND grp = ?2",
            (self._topic, self._group, self._now_s()),
        ).fetchone()
        return bool(row and row[0])

    def _take(self, connection: sqlite3.Connection) -> Delivery | None:
        while (again := self._take_again(connection)) is not None:
            if again.failures <= self._retries:
                return again
            self._bury(connection, again, _WORKER_DIED, "")
        return self._take_new(connection)

    def _take_again(self, connection: sqlite3.Connection) -> Delivery | None:
        """A delivery that waited for its retry, or whose worker let the lease end (which counts as a failure)."""
        now = self._now_s()
        row = connection.execute(
            "UPDATE inflight SET failures = failures + (owner IS NOT NULL), attempt = attempt + 1, owner = ?4,"
            " lease_until = ?5 WHERE topic = ?1 AND grp = ?2 AND id = (SELECT id FROM inflight WHERE topic = ?1"
            " AND grp = ?2 AND lease_until <= ?3 ORDER BY lease_until LIMIT 1) RETURNING id, attempt, failures",
            (self._topic, self._group, now, self._owner, now + self._lease_s),
        ).fetchone()
        if row is None:
            return None
        id, attempt, failures = row
        return Delivery(self._topic, self._group, id, self._message(connection, id), attempt, failures)

    def _take_new(self, connection: sqlite3.Connection) -> Delivery | None:
        row = connection.execute(
            "UPDATE groups SET cursor = cursor + 1 WHERE topic = ?1 AND grp = ?2"
            " AND cursor < (SELECT produced FROM topics WHERE topic = ?1) RETURNING cursor",
            (self._topic, self._group),
        ).fetchone()
        if row is None:
            return None
        connection.execute(
            "INSERT INTO inflight VALUES (?, ?, ?, ?, 1, 0, ?)",
            (self._topic, self._group, row[0], self._owner, self._now_s() + self._lease_s),
        )
        return Delivery(self._topic, self._group, row[0], self._message(connection, row[0]), 1, 0)

    def _message(self, connection: sqlite3.Connection, id: int) -> QueueMessage:
        (body,) = connection.execute(
            "SELECT body FROM messages WHERE topic = ? AND id = ?", (self._topic, id)
        ).fetchone()
        return QueueMessage.from_json(body)

    def _require_ours(self, connection: sqlite3.Connection, delivery: Delivery) -> None:
        require_writer(connection, self._owner)
        row = connection.execute(
            "SELECT owner, attempt FROM inflight WHERE topic = ? AND grp = ? AND id = ?",
            (self._topic, self._group, delivery.id),
        ).fetchone()
        if row != (self._owner, delivery.attempt):
            raise LeaseLostError(
                f"split {delivery.message.split_id!r} is no longer held by {self._owner}: its lease had ended.",
                remedy="Nothing is lost: the split was given to another worker.",
            )

    def _bury(self, connection: sqlite3.Connection, delivery: Delivery, error: str, traceback: str) -> None:
        connection.execute(
            "INSERT INTO dead_letters SELECT topic, ?, id, payload_key, body, ?, ?, ?, ? FROM messages"
            " WHERE topic = ? AND id = ?",
            (self._group, delivery.attempt, error, traceback, self._now_s(), self._topic, delivery.id),
        )
        self._leave(connection, delivery.id, dead=True)

    def _leave(self, connection: sqlite3.Connection, id: int, *, dead: bool) -> list[QueueMessage]:
        """Count a message as settled by this group; returns it if its payload is of no more use to anybody."""
        key = (self._topic, id)
        connection.execute(
            "DELETE FROM inflight WHERE topic = ? AND grp = ? AND id = ?", (self._topic, self._group, id)
        )
        (groups,) = connection.execute("SELECT count(*) FROM groups WHERE topic = ?", (self._topic,)).fetchone()
        settled_by, size_bytes, records, body = connection.execute(
            "SELECT settled_by + 1, bytes, records, body FROM messages WHERE topic = ? AND id = ?", key
        ).fetchone()
        if dead:
            counted = "dead = dead + 1, dead_bytes = dead_bytes + ?"
            amounts: tuple[int, ...] = (size_bytes,)
        else:
            counted = "settled = settled + 1, settled_bytes = settled_bytes + ?, settled_records = settled_records + ?"
            amounts = (size_bytes, records)
        connection.execute(
            f"UPDATE groups SET {counted} WHERE topic = ? AND grp = ?", (*amounts, self._topic, self._group)
        )
        if settled_by < groups:
            connection.execute("UPDATE messages SET settled_by = ? WHERE topic = ? AND id = ?", (settled_by, *key))
            return []
        connection.execute("DELETE FROM messages WHERE topic = ? AND id = ?", key)
        kept = connection.execute("SELECT 1 FROM dead_letters WHERE topic = ? AND id = ? LIMIT 1", key).fetchone()
        return [] if kept else [QueueMessage.from_json(body)]
