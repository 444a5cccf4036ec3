"""Taking and settling in the embedded queue: the transactions that every split goes through."""

import sqlite3
import threading
import time
from collections.abc import Callable, Sequence

from solstice.errors import LeaseLostError
from solstice.pipeline._message import QueueMessage, totals
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
from solstice.pipeline._sqlite_schema import POSITION_BITS

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
        self._start = 0  # the id before the first of the topic
        self._number = 0  # of the group; 0 as long as it is not known, which is until it was subscribed

    def take_many(self, limit: int) -> list[Delivery]:
        """The next messages: first what must be done again, alone, then what is new."""
        with self._database.transaction() as connection:
            require_writer(connection, self._owner)
            taken, buried = self._take(connection, limit)
            self._count(connection, taken, (), buried)
            return taken

    def settle_many(
        self, results: Sequence[Settled], *, to: str = "", done: Sequence[str] = (), take: int = 0
    ) -> Settlements:
        """Commit deliveries with what they produced, and take the next, in one transaction."""
        deliveries = [result.delivery for result in results]
        with self._database.transaction() as connection:
            if deliveries:
                self._leave(connection, deliveries)
            else:
                require_writer(connection, self._owner)
            append(connection, to, [message for result in results for message in result.produced])
            files = [
                (self._group, file.split_id, self._owner, file.temporary, file.final)
                for result in results
                for file in result.prepared
            ]
            if files:
                connection.executemany("INSERT INTO prepared VALUES (?, ?, ?, ?, ?)", files)
            forget_prepared(connection, self._group, done)
            taken, buried = self._take(connection, take)
            return Settlements(taken, self._count(connection, taken, deliveries, buried))

    def fail(
        self, delivery: Delivery, error: str, traceback: str, *, delay_s: float = 0.0, take: bool = True
    ) -> Settlement:
        """Give a delivery back for a retry, or bury it."""
        with self._database.transaction() as connection:
            self._require_ours(connection, delivery)
            given_up = delivery.failures + 1 > self._retries
            if given_up:
                self._bury(connection, delivery, error, traceback)
            else:
                connection.execute(
                    "UPDATE inflight SET owner = NULL, failures = failures + 1, lease_until = ?"
                    " WHERE grp = ? AND id = ?",
                    (self._now_s() + delay_s, self._number, delivery.id),
                )
            taken, buried = self._take(connection, int(take))
            self._count(connection, taken, (), [delivery, *buried] if given_up else buried)
            return Settlements(taken, []).single()

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
        connection = self._database.connection
        if not self._is_known(connection):
            return False
        (found,) = connection.execute(
            "SELECT cursor < (SELECT produced FROM topics WHERE number = groups.topic)"
            " OR EXISTS (SELECT 1 FROM inflight WHERE grp = ?1 AND lease_until <= ?2) FROM groups WHERE number = ?1",
            (self._number, self._now_s()),
        ).fetchone()
        return bool(found)

    def _is_known(self, connection: sqlite3.Connection) -> bool:
        """Whether the group was subscribed: it then has a number, for good."""
        if not self._number:
            row = connection.execute(
                "SELECT topics.number, groups.number FROM topics JOIN groups ON groups.topic = topics.number"
                " WHERE topics.topic = ? AND grp = ?",
                (self._topic, self._group),
            ).fetchone()
            if row is not None:
                self._start, self._number = row[0] << POSITION_BITS, row[1]
        return self._number > 0

    def _take(self, connection: sqlite3.Connection, limit: int) -> tuple[list[Delivery], list[Delivery]]:
        """What is ours now, and what was found to have killed its workers too often, and was buried."""
        buried: list[Delivery] = []
        if not limit or not self._is_known(connection):
            return [], buried
        while (again := self._take_again(connection)) is not None:
            if again.failures <= self._retries:
                return [again], buried
            self._bury(connection, again, WORKER_DIED, "")
            buried.append(again)
        return self._take_new(connection, limit), buried

    def _take_again(self, connection: sqlite3.Connection) -> Delivery | None:
        """A delivery that waited for its retry, or whose worker let the lease end (which counts as a failure)."""
        now = self._now_s()
        row = connection.execute(
            "SELECT id, owner FROM inflight WHERE grp = ? AND lease_until <= ? ORDER BY lease_until LIMIT 1",
            (self._number, now),
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
            " WHERE grp = ? AND id = ? RETURNING attempt, failures",
            (self._owner, now + self._lease_s, self._number, id),
        ).fetchone()
        (body,) = connection.execute("SELECT body FROM messages WHERE id = ?", (id,)).fetchone()
        return Delivery(self._topic, self._group, id, QueueMessage.from_json(body), attempt, failures)

    def _take_new(self, connection: sqlite3.Connection, limit: int) -> list[Delivery]:
        rows = connection.execute(
            "SELECT id, body FROM messages WHERE id > ? + (SELECT cursor FROM groups WHERE number = ?) AND id < ?"
            " ORDER BY id LIMIT ?",
            (self._start, self._number, self._start + (1 << POSITION_BITS), limit),
        ).fetchall()
        if not rows:
            return []
        first, last = rows[0][0], rows[-1][0]
        connection.execute(
            "INSERT INTO inflight SELECT ?, id, ?, 1, 0, ? FROM messages WHERE id BETWEEN ? AND ?",
            (self._number, self._owner, self._now_s() + self._lease_s, first, last),
        )
        return [Delivery(self._topic, self._group, id, QueueMessage.from_json(body), 1, 0) for id, body in rows]

    def _require_ours(self, connection: sqlite3.Connection, delivery: Delivery) -> None:
        require_writer(connection, self._owner)
        held = connection.execute(
            "SELECT attempt FROM inflight WHERE grp = ? AND id = ? AND owner = ?",
            (self._number, delivery.id, self._owner),
        ).fetchone()
        if held != (delivery.attempt,):
            raise lease_lost(delivery, self._owner)

    def _bury(self, connection: sqlite3.Connection, delivery: Delivery, error: str, traceback: str) -> None:
        connection.execute(
            "INSERT INTO dead_letters SELECT ?, ?, id, payload_key, body, ?, ?, ?, ? FROM messages WHERE id = ?",
            (self._topic, self._group, delivery.attempt, error, traceback, self._now_s(), delivery.id),
        )
        self._leave(connection, [delivery])

    def _leave(self, connection: sqlite3.Connection, deliveries: Sequence[Delivery]) -> None:
        """Take deliveries out of our hands. Raises LeaseLostError if one of them is another's by now.

        Whoever fences a writer takes what it holds from it, in one transaction: so no look at the writers is needed.
        """
        left = connection.executemany(
            "DELETE FROM inflight WHERE grp = ? AND id BETWEEN ? AND ? AND attempt = ? AND owner = ?",
            [(self._number, *run, self._owner) for run in _runs(deliveries)],
        ).rowcount
        if left != len(deliveries):
            raise self._lost(connection, deliveries)

    def _count(
        self,
        connection: sqlite3.Connection,
        taken: Sequence[Delivery],
        settled: Sequence[Delivery],
        buried: Sequence[Delivery],
    ) -> list[QueueMessage]:
        """Add all that a transaction did to the counters, and remove the messages that every group is through with.

        Returns those whose payloads are of no more use to anybody.
        """
        new = len(taken) if taken and taken[0].attempt == 1 else 0
        if not (new or settled or buried):
            return []
        dead, dead_bytes, _ = totals([delivery.message for delivery in buried])
        counts = (new, *totals([delivery.message for delivery in settled]), dead, dead_bytes)
        (groups,) = connection.execute(
            "UPDATE groups SET cursor = cursor + ?, settled = settled + ?, settled_bytes = settled_bytes + ?,"
            " settled_records = settled_records + ?, dead = dead + ?, dead_bytes = dead_bytes + ? WHERE number = ?"
            " RETURNING (SELECT count(*) FROM groups AS others WHERE others.topic = groups.topic)",
            (*counts, self._number),
        ).fetchone()
        left = [*settled, *buried]
        if groups > 1:
            left = [delivery for delivery in left if self._last_to_settle(connection, delivery.id, groups)]
        connection.executemany(
            "DELETE FROM messages WHERE id BETWEEN ? AND ?", [(first, last) for first, last, _ in _runs(left)]
        )
        if groups == 1:
            return [delivery.message for delivery in settled]
        return [delivery.message for delivery in left if not self._is_dead(connection, delivery.id)]

    def _last_to_settle(self, connection: sqlite3.Connection, id: int, groups: int) -> bool:
        (settled_by,) = connection.execute(
            "UPDATE messages SET settled_by = settled_by + 1 WHERE id = ? RETURNING settled_by", (id,)
        ).fetchone()
        return bool(settled_by == groups)

    def _is_dead(self, connection: sqlite3.Connection, id: int) -> bool:
        """Whether another group has buried a message: then its payload is kept."""
        statement = "SELECT 1 FROM dead_letters WHERE id = ? LIMIT 1"
        return connection.execute(statement, (id,)).fetchone() is not None

    def _lost(self, connection: sqlite3.Connection, deliveries: Sequence[Delivery]) -> LeaseLostError:
        """Why these cannot be settled. Ends the transaction, to see what was held before it."""
        connection.execute("ROLLBACK")
        require_writer(connection, self._owner)
        held = connection.execute(
            "SELECT id, attempt FROM inflight WHERE grp = ? AND owner = ?", (self._number, self._owner)
        ).fetchall()
        gone = (delivery for delivery in deliveries if (delivery.id, delivery.attempt) not in held)
        return lease_lost(next(gone, deliveries[0]), self._owner)


def _runs(deliveries: Sequence[Delivery]) -> list[tuple[int, int, int]]:
    """First id, last id and attempt of what lies side by side: SQLite removes a range for little more than one row."""
    runs: list[tuple[int, int, int]] = []
    first = last = attempt = 0
    for id, tried in sorted([(delivery.id, delivery.attempt) for delivery in deliveries]):
        if id == last + 1 and tried == attempt:
            last = id
            continue
        if attempt:
            runs.append((first, last, attempt))
        first, last, attempt = id, id, tried
    if attempt:
        runs.append((first, last, attempt))
    return runs


def holds_one(connection: sqlite3.Connection, owner: str) -> bool:
    """Whether a worker has one split only: of several nobody knows which one it died of."""
    rows = connection.execute("SELECT 1 FROM inflight WHERE owner = ? LIMIT 2", (owner,)).fetchall()
    return len(rows) == 1
