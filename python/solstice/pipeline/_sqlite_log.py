"""Statements on the log that queue and consumer share. Each runs inside a transaction of the caller."""

import sqlite3
from collections.abc import Sequence

from solstice.pipeline._message import QueueMessage, totals
from solstice.pipeline._queue import fenced
from solstice.pipeline._sqlite_schema import POSITION_BITS

_COUNT = (
    "UPDATE topics SET produced = produced + ?, produced_bytes = produced_bytes + ?,"
    " produced_records = produced_records + ? WHERE topic = ? RETURNING number, produced"
)


def append(connection: sqlite3.Connection, topic: str, messages: Sequence[QueueMessage]) -> None:
    """Append messages to a topic and count them."""
    if not messages:
        return
    counts = (*totals(messages), topic)
    row = connection.execute(_COUNT, counts).fetchone()
    if row is None:
        connection.execute("INSERT INTO topics (topic) VALUES (?)", (topic,))
        row = connection.execute(_COUNT, counts).fetchone()
    number, last = row
    first = (number << POSITION_BITS) + last - len(messages) + 1
    connection.executemany(
        "INSERT INTO messages (id, payload_key, body) VALUES (?, ?, ?)",
        [(id, message.stored_key, message.to_json()) for id, message in enumerate(messages, first)],
    )


def require_writer(connection: sqlite3.Connection, writer: str) -> None:
    """Refuse to go on for a writer that was fenced: its payloads may be deleted already."""
    if connection.execute("SELECT 1 FROM writers WHERE writer = ?", (writer,)).fetchone() is None:
        raise fenced(writer)


def forget_writer(connection: sqlite3.Connection, writer: str) -> bool:
    """End a writer; returns whether it was known."""
    return connection.execute("DELETE FROM writers WHERE writer = ?", (writer,)).rowcount > 0


def forget_prepared(connection: sqlite3.Connection, stage: str, split_ids: Sequence[str]) -> None:
    """Forget output files that have their final names."""
    if not split_ids:
        return
    connection.executemany(
        "DELETE FROM prepared WHERE stage = ? AND split_id = ?", ((stage, split_id) for split_id in split_ids)
    )
