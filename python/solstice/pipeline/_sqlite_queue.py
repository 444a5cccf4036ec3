"""The embedded queue (``sqlite://``): one file, many processes of one machine."""

import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from solstice.errors import QueueError
from solstice.pipeline._message import QueueMessage
from solstice.pipeline._paths import local_path
from solstice.pipeline._queue import (
    Backlog,
    BatchRecord,
    DeadLetter,
    GroupProgress,
    Prepared,
    Queue,
    TopicProgress,
    WrittenPartition,
    check_stream_batch,
)
from solstice.pipeline._sqlite_consumer import holds_one
from solstice.pipeline._sqlite_database import Database
from solstice.pipeline._sqlite_log import append, forget_prepared, forget_writer, require_writer
from solstice.pipeline._sqlite_schema import POSITION_BITS


class SqliteQueue(Queue):
    """All but the taking and settling, which is ``SqliteConsumer``."""

    def __init__(self, url: str, now_s: Callable[[], float] = time.time) -> None:
        self._database = Database(local_path(url))
        self._now_s = now_s

    def close(self) -> None:
        """Give up the connection."""
        self._database.close()

    def remember(self, name: str, value: str) -> str:
        """Record a fact once; returns the one that holds."""
        with self._database.transaction() as connection:
            connection.execute("INSERT OR IGNORE INTO facts VALUES (?, ?)", (name, value))
            return str(connection.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()[0])

    def subscribe(self, topic: str, group: str) -> None:
        """Make a group a consumer of a topic, from its first message."""
        with self._database.transaction() as connection:
            connection.execute("INSERT OR IGNORE INTO topics (topic) VALUES (?)", (topic,))
            (number,) = connection.execute("SELECT number FROM topics WHERE topic = ?", (topic,)).fetchone()
            known = connection.execute("SELECT grp, settled + dead FROM groups WHERE topic = ?", (number,)).fetchall()
            if group in (name for name, _ in known):
                return
            if any(settled for _, settled in known):
                raise QueueError(
                    f"{group!r} cannot start to consume {topic!r}: others have consumed a part of it, which is gone.",
                    remedy="Give the job another state directory.",
                )
            connection.execute("INSERT INTO groups (topic, grp) VALUES (?, ?)", (number, group))

    def end(self, topic: str) -> None:
        """Record that a topic has all its messages."""
        with self._database.transaction() as connection:
            connection.execute(
                "INSERT INTO topics (topic, ended) VALUES (?, 1) ON CONFLICT (topic) DO UPDATE SET ended = 1", (topic,)
            )

    def register_writer(self, writer: str, stage: str, lease_s: float) -> None:
        """Announce a writer."""
        with self._database.transaction() as connection:
            connection.execute(
                "INSERT INTO writers (writer, stage, lease_until) VALUES (?, ?, ?)",
                (writer, stage, self._now_s() + lease_s),
            )

    def extend_writer(self, writer: str, lease_s: float, hidden_bytes: int | None = None) -> None:
        """Renew a writer's lease."""
        with self._database.transaction() as connection:
            require_writer(connection, writer)
            connection.execute(
                "UPDATE writers SET lease_until = ?, hidden_bytes = coalesce(?, hidden_bytes) WHERE writer = ?",
                (self._now_s() + lease_s, hidden_bytes, writer),
            )

    def withdraw_writer(self, writer: str, *, at_fault: bool = True) -> bool:
        """Forget a writer; what it holds comes again. Returns whether it was still known."""
        with self._database.transaction() as connection:
            known = forget_writer(connection, writer)
            connection.execute(
                "UPDATE inflight SET owner = NULL, failures = failures + ?, lease_until = 0 WHERE owner = ?",
                (at_fault and holds_one(connection, writer), writer),
            )
            return known

    def fence(self, stages: Iterable[str]) -> None:
        """Forget all writers of these stages, and those whose lease has ended."""
        with self._database.transaction() as connection:
            for stage in stages:
                connection.execute("DELETE FROM writers WHERE stage = ?", (stage,))
            connection.execute("DELETE FROM writers WHERE lease_until <= ?", (self._now_s(),))
            connection.execute(
                "UPDATE inflight SET owner = NULL, lease_until = 0"
                " WHERE owner IS NOT NULL AND owner NOT IN (SELECT writer FROM writers)"
            )

    def live_writers(self) -> set[str]:
        """The writers that were not fenced."""
        return {row[0] for row in self._read("SELECT writer FROM writers")}

    def unreferenced(self, keys: Iterable[str]) -> set[str]:
        """Those keys that no message and no dead letter names."""
        connection = self._database.connection
        # A temporary table, which SQLite keeps on the disk, and one pass over the log: an index by key would cost every
        # produce, for a rare question.
        connection.execute("CREATE TEMP TABLE candidates (key TEXT PRIMARY KEY) WITHOUT ROWID")
        try:
            connection.executemany("INSERT OR IGNORE INTO candidates VALUES (?)", ((key,) for key in keys))
            left = connection.execute(
                "SELECT key FROM candidates EXCEPT SELECT payload_key FROM messages"
                " EXCEPT SELECT payload_key FROM dead_letters"
            )
            return {row[0] for row in left}
        finally:
            connection.execute("DROP TABLE candidates")

    def produce(self, topic: str, messages: Sequence[QueueMessage]) -> None:
        """Append messages, all or none."""
        with self._database.transaction() as connection:
            append(connection, topic, messages)

    def start_batch(self, stage: str, batch_id: str, record: BatchRecord) -> BatchRecord:
        """Record what a batch is made of; an older record stands once anything of it is visible."""
        with self._database.transaction() as connection:
            key = (stage, batch_id)
            visible = connection.execute(
                "SELECT 1 FROM completions WHERE stage = ? AND batch_id = ? LIMIT 1", key
            ).fetchone()
            if not visible:
                connection.execute(
                    "INSERT OR REPLACE INTO batches VALUES (?, ?, ?, ?, ?)",
                    (*key, record.fingerprint, record.partitions, record.target_split_bytes),
                )
            row = connection.execute(
                "SELECT fingerprint, partitions, target_split_bytes FROM batches WHERE stage = ? AND batch_id = ?", key
            ).fetchone()
            return BatchRecord(*row)

    def completed_partitions(self, stage: str, batch_id: str) -> set[int]:
        """The partitions of a batch that are visible."""
        statement = "SELECT partition FROM completions WHERE stage = ? AND batch_id = ?"
        return {row[0] for row in self._read(statement, (stage, batch_id))}

    def publish_partition(
        self, stage: str, batch_id: str, partition: int, writer: str, messages: Sequence[QueueMessage]
    ) -> bool:
        """Make a partition's splits visible if no other attempt was first."""
        with self._database.transaction() as connection:
            require_writer(connection, writer)
            won = connection.execute(
                "INSERT OR IGNORE INTO completions VALUES (?, ?, ?, ?)", (stage, batch_id, partition, len(messages))
            ).rowcount
            if won:
                forget_writer(connection, writer)
                append(connection, stage, messages)
            return bool(won)

    def publish_batch(self, stage: str, batch_id: str, partitions: Sequence[WrittenPartition]) -> bool:
        """Make partitions visible together, if none of them is."""
        with self._database.transaction() as connection:
            known = connection.execute(
                "SELECT partition FROM completions WHERE stage = ? AND batch_id = ?", (stage, batch_id)
            )
            if {row[0] for row in known} & {written.partition for written in partitions}:
                return False
            for written in partitions:
                require_writer(connection, written.writer)
                forget_writer(connection, written.writer)
                connection.execute(
                    "INSERT INTO completions VALUES (?, ?, ?, ?)",
                    (stage, batch_id, written.partition, len(written.messages)),
                )
                append(connection, stage, written.messages)
            return True

    def publish_stream_batch(
        self,
        stage: str,
        stream_id: str,
        query_id: str | None,
        batch: int,
        writers: Sequence[str],
        messages: Sequence[QueueMessage],
    ) -> bool:
        """Make a micro-batch visible if it is the next one of its query."""
        with self._database.transaction() as connection:
            known = connection.execute(
                "SELECT query_id, last_batch FROM streams WHERE stage = ? AND stream_id = ?", (stage, stream_id)
            ).fetchone()
            known_query, last = known or ("", -1)
            if not check_stream_batch(stage, stream_id, (known_query, last), (query_id, batch)):
                return False
            for writer in writers:
                require_writer(connection, writer)
                forget_writer(connection, writer)
            connection.execute(
                "INSERT OR REPLACE INTO streams VALUES (?, ?, ?, ?)",
                (stage, stream_id, known_query or query_id or "", batch),
            )
            append(connection, stage, messages)
            return True

    def prepared(self, stage: str, owner: str | None = None) -> list[Prepared]:
        """The output files whose rename is not known to be done."""
        rows = self._read(
            "SELECT split_id, temporary, final FROM prepared WHERE stage = ?1 AND (?2 IS NULL OR owner = ?2)",
            (stage, owner),
        )
        return [Prepared(*row) for row in rows]

    def mark_done(self, stage: str, split_ids: Sequence[str]) -> None:
        """Record that these files have their final names."""
        with self._database.transaction() as connection:
            forget_prepared(connection, stage, split_ids)

    def topic_progress(self, topic: str) -> TopicProgress:
        """Counters of a topic."""
        rows = self._read(
            "SELECT produced, produced_bytes, produced_records, ended FROM topics WHERE topic = ?", (topic,)
        )
        return TopicProgress(rows[0][0], rows[0][1], rows[0][2], bool(rows[0][3])) if rows else TopicProgress()

    def group_progress(self, topic: str, group: str) -> GroupProgress:
        """Counters of a group."""
        rows = self._read(
            "SELECT cursor, settled, settled_bytes, settled_records, dead, dead_bytes FROM groups"
            " WHERE topic = (SELECT number FROM topics WHERE topic = ?) AND grp = ?",
            (topic, group),
        )
        return GroupProgress(*rows[0]) if rows else GroupProgress()

    def backlog(self) -> Backlog:
        """The sums of a few counters: a row per topic, per group and per writer that is alive."""
        ((visible, hidden),) = self._read(
            "SELECT (SELECT coalesce(sum(produced_bytes - done), 0) FROM topics JOIN (SELECT topic AS number,"
            " min(settled_bytes + dead_bytes) AS done FROM groups GROUP BY topic) USING (number)),"
            " (SELECT coalesce(sum(hidden_bytes), 0) FROM writers)"
        )
        return Backlog(visible, hidden)

    def dead_letters(self) -> list[DeadLetter]:
        """All dead letters, oldest first."""
        rows = self._read(
            "SELECT topic, grp, id, body, attempt, error, traceback, at FROM dead_letters ORDER BY at, topic, id"
        )
        return [
            DeadLetter(topic, group, id, QueueMessage.from_json(body), *rest) for topic, group, id, body, *rest in rows
        ]

    def replay(self, letters: Sequence[DeadLetter]) -> int:
        """Give dead letters back to their groups."""
        replayed = 0
        with self._database.transaction() as connection:
            for letter in letters:
                row = connection.execute(
                    "DELETE FROM dead_letters WHERE id = ? AND grp = ? RETURNING payload_key, body, attempt",
                    (letter.id, letter.group),
                ).fetchone()
                if row is None:
                    continue
                payload_key, body, attempt = row
                message = QueueMessage.from_json(body)
                topic = letter.id >> POSITION_BITS
                (groups,) = connection.execute("SELECT count(*) FROM groups WHERE topic = ?", (topic,)).fetchone()
                # The message itself went when its last group was through with it; this one is not, any more.
                connection.execute(
                    "INSERT INTO messages (id, payload_key, settled_by, body) VALUES (?, ?, ?, ?)"
                    " ON CONFLICT (id) DO UPDATE SET settled_by = settled_by - 1",
                    (letter.id, payload_key, groups - 1, body),
                )
                (group,) = connection.execute(
                    "UPDATE groups SET dead = dead - 1, dead_bytes = dead_bytes - ? WHERE topic = ? AND grp = ?"
                    " RETURNING number",
                    (message.payload_bytes, topic, letter.group),
                ).fetchone()
                connection.execute("INSERT INTO inflight VALUES (?, ?, NULL, ?, 0, 0)", (group, letter.id, attempt))
                replayed += 1
        return replayed

    def remove(self) -> None:
        """Remove the file. Nobody else may have it open."""
        path = self._database.path
        self.close()
        # The file itself last: as long as it is there, it has what the write-ahead log has not.
        for suffix in ("-wal", "-shm", "", ".lock"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)

    def _read(self, statement: str, parameters: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        try:
            return self._database.connection.execute(statement, parameters).fetchall()
        except sqlite3.Error as error:
            raise QueueError(f"the queue {self._database.path} failed: {error}.") from error
