"""What the embedded queue does when its disk or its lock fails it."""

import fcntl
import os
import resource
import sqlite3
import threading
import time

import pytest

from solstice.errors import QueueError
from solstice.pipeline._sqlite_database import Database


@pytest.fixture
def path(tmp_path):
    return tmp_path / "queue.db"


def facts(database: Database) -> int:
    return database.connection.execute("SELECT count(*) FROM facts").fetchone()[0]


@pytest.fixture
def held(path):
    """The lock in the hands of somebody else, as of a process that is stopped inside a transaction."""
    Database(path).close()
    descriptor = os.open(f"{path}.lock", os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    yield descriptor
    os.close(descriptor)


def test_a_lock_that_is_never_free_is_an_error_with_the_fix(path, held):
    fcntl.flock(held, fcntl.LOCK_UN)
    database = Database(path, lock_timeout_s=0.2)
    fcntl.flock(held, fcntl.LOCK_EX)
    with pytest.raises(QueueError, match=rf"{path}.lock is stopped.*fuser"), database.transaction():
        pytest.fail("not ours")
    fcntl.flock(held, fcntl.LOCK_UN)
    with database.transaction() as connection:
        connection.execute("INSERT INTO facts VALUES ('a', 'b')")
    assert facts(database) == 2
    database.close()


def test_a_lock_that_becomes_free_is_waited_for(path, held):
    release = threading.Timer(0.2, fcntl.flock, (held, fcntl.LOCK_UN))
    started_s = time.monotonic()
    release.start()
    Database(path, lock_timeout_s=30.0).close()
    assert time.monotonic() - started_s >= 0.2
    release.join()


def test_a_full_disk_is_told_as_such_and_the_queue_goes_on_when_there_is_room(path):
    def fill() -> None:
        with database.transaction() as connection:
            for n in range(5000):
                connection.execute("INSERT INTO facts VALUES (?, ?)", (str(n), "x" * 2000))

    database = Database(path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, before[1]))
    try:
        with pytest.raises(QueueError) as raised:
            fill()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "rollback" not in str(raised.value)
    assert raised.value.__cause__.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
    assert facts(database) == 1
    with database.transaction() as connection:
        connection.execute("INSERT INTO facts VALUES ('a', 'b')")
    assert facts(database) == 2
    database.close()


def test_what_the_block_raises_comes_out_and_undoes_it(path):
    def fail() -> None:
        with database.transaction() as connection:
            connection.execute("INSERT INTO facts VALUES ('a', 'b')")
            raise ZeroDivisionError

    database = Database(path)
    with pytest.raises(ZeroDivisionError):
        fail()
    assert facts(database) == 1
    database.close()
