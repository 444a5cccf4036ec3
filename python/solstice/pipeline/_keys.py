"""Keys of payloads in a file that goes with the process: a sweep meets millions of them."""

import sqlite3
from collections.abc import Iterable
from types import TracebackType
from typing import Self


class KeysOnDisk:
    """A set of keys that takes the same memory at any size."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._database = sqlite3.connect("", isolation_level=None)  # without a name: a temporary file
        self._database.execute("CREATE TABLE keys (key TEXT PRIMARY KEY) WITHOUT ROWID")
        self._change("INSERT OR IGNORE INTO keys VALUES (?)", keys)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._database.close()

    def __bool__(self) -> bool:
        return self._database.execute("SELECT 1 FROM keys LIMIT 1").fetchone() is not None

    def discard(self, keys: Iterable[str]) -> None:
        """Remove keys; they need not be there."""
        self._change("DELETE FROM keys WHERE key = ?", keys)

    def all(self) -> set[str]:
        """What is left."""
        return {row[0] for row in self._database.execute("SELECT key FROM keys")}

    def _change(self, statement: str, keys: Iterable[str]) -> None:
        self._database.execute("BEGIN")
        self._database.executemany(statement, ((key,) for key in keys))
        self._database.execute("COMMIT")
