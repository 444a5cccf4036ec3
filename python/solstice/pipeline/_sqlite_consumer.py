"""Taking and settling in the embedded queue: the transactions that every split goes through."""

import sqlite3
import threading
import time
from collections.abc import Callable, Sequence

from solstice.pipeline._message import QueueMessage
from solstice.pipeline._paths import local_path
from solstice.pipeline._queue import (
    WORKER_DIED,
    Consumer,
    Delivery,
    Settled,
    Settlement,
    Settlements,
    lease_lost,
)
from solstice.pipeline._sqlite_database import Database
from solstice.pipeline._sqlite_log import append, forget_prepared, require_writer

POLL_S = 0.01


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

    def take_many(self, limit: int) -> list[Delivery]:
        """The next messages: first what must be done again, alone, then what is new."""
        with self._database.transaction() as connection:
            require_writer(connection, self._owner)
            return self._take(connection, limit)

    def settle_many(
        self, results: Sequence[Settled], *, to: str = "", done: Sequence[str] = (), take: int = 0
    ) -> Settlements:
        """Commit deliveries with what they produced, and take the next, in one transaction."""
        with self._database.transaction() as connection:
            released = self._leave(connection, [result.delivery for result in results], dead=False)
            append(connection, to, [message for result in results for message in result.produced])
            files = [
                (self._group, file.split_id, self._owner, file.temporary, file.final)
                for result in results
                for file in result.prepared
            ]
            if files:
                connection.executemany("INSERT INTO prepared VALUES (?, ?, ?, ?, ?)", files)
            forget_prepared(connection, self._group, done)
            return Settlements(self._take(connection, take) if take else [], released)

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
            return Settlements(self._take(connection, 1) if take else [], []).single()

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

    def _take(self, connection: sqlite3.Connection, limit: int) -> list[Delivery]:
        while (again := self._take_again(connection)) is not None:
            if again.failures <= self._retries:
                return [again]
            self._bury(connection, again, WORKER_DIED, "")
        return self._take_new(connection, limit)

    def _take_again(self, connection: sqlite3.Connection) -> Delivery | None:
        """A delivery that waited for its retry, or whose worker let the lease end (which counts as a failure)."""
        now = self._now_s()
        row = connection.execute(
            "SELECT id, owner FROM inflight WHERE topic = ? AND grp = ? AND lease_until <= ?"
            " ORDER BY lease_until LIMIT 1",
            (self._topic, self._group, now),
        ).fetchone()
        if row is None:
            return None
        id, owner = row
        if owner is not None:
            connection.execute(
                "UPDATE inflight SET owner = NULL, failures = failures + ? WHERE owner = ? AND lease_until <= ?",
                (holds_one(connection, owner), owner, now),
            )
        attempt, failures = connection.execute(
            "UPDATE inflight SET attempt = attempt + 1, owner = ?, lease_until = ?"
            " WHERE topic = ? AND grp = ? AND id = ? RETURNING attempt, failures",
            (self._owner, now + self._lease_s, self._topic, self._group, id),
        ).fetchone()
        (body,) = connection.execute(
            "SELECT body FROM messages WHERE topic = ? AND id = ?", (self._topic, id)
        ).fetchone()
        return Delivery(self._topic, self._group, id, QueueMessage.from_json(body), attempt, failures)

    def _take_new(self, connection: sqlite3.Connection, limit: int) -> list[Delivery]:
        rows = connection.execute(
            "SELECT id, body FROM messages WHERE topic = ?1 AND id >"
            " (SELECT cursor FROM groups WHERE topic = ?1 AND grp = ?2) ORDER BY id LIMIT ?3",
            (self._topic, self._group, limit),
        ).fetchall()
        if not rows:
            return []
        connection.execute(
            "UPDATE groups SET cursor = ? WHERE topic = ? AND grp = ?", (rows[-1][0], self._topic, self._group)
        )
        until = self._now_s() + self._lease_s
        connection.execute(
            "INSERT INTO inflight SELECT topic, ?, id, ?, 1, 0, ? FROM messages WHERE topic = ? AND id BETWEEN ? AND ?",
            (self._group, self._owner, until, self._topic, rows[0][0], rows[-1][0]),
        )
        return [Delivery(self._topic, self._group, id, QueueMessage.from_json(body), 1, 0) for id, body in rows]

    def _require_ours(self, connection: sqlite3.Connection, delivery: Delivery) -> None:
        require_writer(connection, self._owner)
        held = connection.execute(
            "SELECT attempt FROM inflight WHERE topic = ? AND grp = ? AND id = ? AND owner = ?",
            (self._topic, self._group, delivery.id, self._owner),
        ).fetchone()
        if held != (delivery.attempt,):
            raise lease_lost(delivery, self._owner)

    def _bury(self, connection: sqlite3.Connection, delivery: Delivery, error: str, traceback: str) -> None:
        connection.execute(
            "INSERT INTO dead_letters SELECT topic, ?, id, payload_key, body, ?, ?, ?, ? FROM messages"
            " WHERE topic = ? AND id = ?",
            (self._group, delivery.attempt, error, traceback, self._now_s(), self._topic, delivery.id),
        )
        self._leave(connection, [delivery], dead=True)

    def _leave(
        self, connection: sqlite3.Connection, deliveries: Sequence[Delivery], *, dead: bool
    ) -> list[QueueMessage]:
        """Count messages as settled by this group; returns those whose payloads are of no more use to anybody.

        Raises LeaseLostError if one of them is another's by now.
        """
        if not deliveries:
            require_writer(connection, self._owner)
            return []
        ids = [delivery.id for delivery in deliveries]
        held = connection.execute(
            f"DELETE FROM inflight WHERE topic = ? AND grp = ? AND id IN ({_places(ids)}) AND owner = ?"
            " AND EXISTS (SELECT 1 FROM writers WHERE writer = ?) RETURNING id, attempt",
            (self._topic, self._group, *ids, self._owner, self._owner),
        ).fetchall()
        if len(held) != len(deliveries) or set(held) != {(d.id, d.attempt) for d in deliveries}:
            require_writer(connection, self._owner)
            raise lease_lost(next(d for d in deliveries if (d.id, d.attempt) not in held), self._owner)
        settled_bytes = sum(delivery.message.payload_bytes for delivery in deliveries)
        if dead:
            counted = "dead = dead + ?1, dead_bytes = dead_bytes + ?2"
            records = 0
        else:
            counted = (
                "settled = settled + ?1, settled_bytes = settled_bytes + ?2, settled_records = settled_records + ?3"
            )
            records = sum(delivery.message.num_records for delivery in deliveries)
        (groups,) = connection.execute(
            f"UPDATE groups SET {counted} WHERE topic = ?4 AND grp = ?5"
            " RETURNING (SELECT count(*) FROM groups WHERE topic = ?4)",
            (len(deliveries), settled_bytes, records, self._topic, self._group),
        ).fetchone()
        if groups > 1:
            deliveries = [d for d in deliveries if self._last_to_settle(connection, d.id, groups)]
            ids = [delivery.id for delivery in deliveries]
        connection.execute(f"DELETE FROM messages WHERE topic = ? AND id IN ({_places(ids)})", (self._topic, *ids))
        if dead:
            return []
        return [d.message for d in deliveries if groups == 1 or not self._is_dead(connection, d.id)]

    def _last_to_settle(self, connection: sqlite3.Connection, id: int, groups: int) -> bool:
        (settled_by,) = connection.execute(
            "UPDATE messages SET settled_by = settled_by + 1 WHERE topic = ? AND id = ? RETURNING settled_by",
            (self._topic, id),
        ).fetchone()
        return bool(settled_by == groups)

    def _is_dead(self, connection: sqlite3.Connection, id: int) -> bool:
        """Whether another group has buried a message: then its payload is kept."""
        statement = "SELECT 1 FROM dead_letters WHERE topic = ? AND id = ? LIMIT 1"
        return connection.execute(statement, (self._topic, id)).fetchone() is not None


def _places(values: Sequence[int]) -> str:
    """A parameter each: json_each would cost as much as the rest of a statement about one split."""
    return ",".join("?" * len(values))


def holds_one(connection: sqlite3.Connection, owner: str) -> bool:
    """Whether a worker has one split only: of several nobody knows which one it died of."""
    rows = connection.execute("SELECT 1 FROM inflight WHERE owner = ? LIMIT 2", (owner,)).fetchall()
    return len(rows) == 1
