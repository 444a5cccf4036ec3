"""Statements on the log that queue and consumer share. Each runs inside a transaction of the caller."""

import sqlite3
from collections.abc import Sequence

from solstice.errors import LeaseLostError
from solstice.pipeline._message import QueueMessage


def append(connection: sqlite3.Connection, topic: str, messages: Sequence[QueueMessage]) -> None:
    """Append messages to a topic and count them."""
    if not messages:
        return
    connection.execute("INSERT OR IGNORE INTO topics (topic) VALUES (?)", (topic,))
    (last,) = connection.execute(
        "UPDATE topics SET produced = produced + ?, produced_bytes = produced_bytes + ?,"
        " produced_records = produced_records + ? WHERE topic = ? RETURNING produced",
        (
            len(messages),
            sum(message.payload_bytes for message in messages),
            sum(message.num_records for message in messages),
            topic,
        ),
    ).fetchone()
    first = last - len(messages) + 1
    connection.executemany(
        "INSERT INTO messages (topic, id, payload_key, bytes, records, body) VALUES (?, ?, ?, ?, ?, ?)",
        (
            (topic, id, message.payload_key, message.payload_bytes, message.num_records, message.to_json())
            for id, message in enumerate(messages, first)
        ),
    )


def require_writer(connection: sqlite3.Connection, writer: str) -> None:
    """Refuse to go on for a writer that was fenced: its payloads may be deleted already."""
    if connection.execute("SELECT 1 FROM writers WHERE writer = ?", (writer,)).fetchone() is None:
        raise LeaseLostError(
            f"writer {writer} was fenced: its lease had ended, or its job was started again.",
            remedy="Nothing is lost: what it wrote is written again.",
        )


def forget_writer(connection: sqlite3.Connection, writer: str) -> bool:
    """End a writer; returns whether it was known."""
    return connection.execute("DELETE FROM writers WHERE writer = ?", (writer,)).rowcount > 0


def forget_prepared(connection: sqlite3.Connection, stage: str, split_ids: Sequence[str]) -> None:
    """Forget output files that have their final names."""
    connection.executemany(
        "DELETE FROM prepared WHERE stage = ? AND split_id = ?", ((stage, split_id) for split_id in split_ids)
    )
