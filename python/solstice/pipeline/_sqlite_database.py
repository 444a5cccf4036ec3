"""A connection to the embedded queue's file, and its transactions."""

import fcntl
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from solstice._core.durable import fsync_directory, make_directories
from solstice.errors import QueueError
from solstice.pipeline._sqlite_schema import SCHEMA, VERSION

_LOCK_POLL_S = 0.0005  # less than a transaction takes, so that everybody who waits gets a turn


class Database:
    """One connection, for one thread at a time. Read outside of ``transaction`` only by single statements.

    A read transaction that stays open would keep the write-ahead log from ever being folded back into the file.
    """

    def __init__(self, path: Path, lock_timeout_s: float = 60.0) -> None:
        self.path = path
        self._lock_timeout_s = lock_timeout_s
        try:
            make_directories(path.parent)
            # A lock in front of SQLite's own: its busy handler waits longer and longer between two tries, and under
            # load one worker of four never gets in.
            self._lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise QueueError(
                f"the queue {path} cannot be opened: {error.strerror}.",
                remedy="Name a file whose directory is writable.",
            ) from error
        self._mutex = threading.Lock()
        try:
            self.connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=60)
            self._prepare()
        except sqlite3.Error as error:
            os.close(self._lock)
            raise QueueError(
                f"the queue {path} cannot be opened: {error}.", remedy="Is it a queue, and is the disk writable?"
            ) from error
        except BaseException:
            os.close(self._lock)
            raise

    def _prepare(self) -> None:
        with self._locked():
            self.connection.execute("PRAGMA journal_mode=WAL")
            # NORMAL would forget the last commits at a power loss, after payloads were deleted on their account.
            self.connection.execute("PRAGMA synchronous=FULL")
            # Folding the log back costs a flush of the file, which takes as long as those of ten commits. SQLite's own
            # 1,000 pages are 170 splits, or four times 1,000; four times as much log is still only 16 MB.
            self.connection.execute("PRAGMA wal_autocheckpoint=4000")
            if not self.connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'facts'").fetchone():
                version = f"INSERT INTO facts VALUES ('schema version', '{VERSION}');"
                self.connection.executescript(f"BEGIN IMMEDIATE; {SCHEMA} {version} COMMIT;")
                fsync_directory(self.path.parent)
        row = self.connection.execute("SELECT value FROM facts WHERE name = 'schema version'").fetchone()
        if row is None or row[0] != str(VERSION):
            raise QueueError(
                f"the queue {self.path} has the format {row and row[0]}, this Solstice writes {VERSION}.",
                remedy="Finish the job with the Solstice that started it, or give it another state directory.",
            )

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._mutex:
            self._acquire()
            try:
                yield
            finally:
                fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _acquire(self) -> None:
        deadline_s = time.monotonic() + self._lock_timeout_s
        while True:
            try:
                return fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline_s:
                    raise QueueError(
                        f"the queue {self.path} was not free within {self._lock_timeout_s:g} s: a process that holds"
                        f" {self.path}.lock is stopped, or hangs on its disk.",
                        remedy=f"Find it with `fuser -v {self.path}.lock`, let it go on or end it, and run again.",
                    ) from None
            time.sleep(_LOCK_POLL_S)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """A writing transaction: committed and durable when the block ends, gone when it raises."""
        with self._locked():
            try:
                self.connection.execute("BEGIN IMMEDIATE")
                yield self.connection
                self.connection.execute("COMMIT")
            except sqlite3.Error as error:
                self._roll_back()
                raise QueueError(f"the queue {self.path} failed: {error}.") from error
            except BaseException:
                self._roll_back()
                raise

    def _roll_back(self) -> None:
        # After some errors, a full disk for one, SQLite has done so itself. If it fails now, what came first says why.
        if self.connection.in_transaction:
            with suppress(sqlite3.Error):
                self.connection.execute("ROLLBACK")

    def version(self) -> int:
        """A number that changes when another connection has committed something."""
        return int(self.connection.execute("PRAGMA data_version").fetchone()[0])

    def close(self) -> None:
        """Close the connection; safe to call twice."""
        with self._mutex:
            self.connection.close()
            if self._lock >= 0:
                os.close(self._lock)
                self._lock = -1
