"""The lock of a run, and those who look at it."""

import fcntl
import threading

import pytest
from pipeline_support import TableSource, make_job, sink

from solstice.errors import JobRunningError
from solstice.pipeline import _watchdog
from solstice.pipeline._sqlite_queue import SqliteQueue
from solstice.pipeline._state import exclusive, running_pid
from waiting import wait_until


def test_a_look_at_the_lock_does_not_refuse_a_run(tmp_path):
    """``solstice status`` holds the lock for an instant."""
    (tmp_path / "run.lock").touch()
    with (tmp_path / "run.lock").open() as looked_at:
        fcntl.flock(looked_at, fcntl.LOCK_EX)
        threading.Timer(0.2, fcntl.flock, (looked_at, fcntl.LOCK_UN)).start()
        with exclusive(tmp_path, "numbers"):
            pass


def test_a_second_run_is_refused_with_the_process_of_the_first(tmp_path):
    with exclusive(tmp_path, "numbers"):
        pid = running_pid(tmp_path)
        with pytest.raises(JobRunningError, match=f"in process {pid}"), exclusive(tmp_path, "numbers"):
            pass
    assert running_pid(tmp_path) is None


def test_dead_letters_that_were_replayed_in_the_meantime_fail_nothing(tmp_path, monkeypatch):
    """The counters are read first, and the letters then."""
    mended = []

    def picky(table):
        if not mended:
            raise ValueError("not yet")
        return table

    job = make_job(tmp_path, TableSource(splits=1), runner="inprocess", on_error="fail")
    job.stages[0].map(picky, retries=0).sink(sink(tmp_path))
    dead_letters = SqliteQueue.dead_letters

    def late(queue):
        letters = dead_letters(queue)
        if letters and not mended:
            mended.append(True)
            queue.replay(letters)
        return dead_letters(queue)

    monkeypatch.setattr(SqliteQueue, "dead_letters", late)
    job.run()
    result = job.run()  # which takes the letter if the first was about to end
    assert (mended, result.dead, result.stage("sink").settled) == ([True], 0, 1)


def test_an_alarm_does_not_come_while_a_split_is_given_up(monkeypatch):
    """It would end the process in the middle of the transaction that settles the split as failed."""
    alarms, given_up = [], []
    monkeypatch.setattr(_watchdog.signal, "setitimer", lambda which, seconds: alarms.append(seconds))
    watchdog = _watchdog.Watchdog(0.1, None, lambda reason, trace: given_up.append(alarms[-1]), own_process=True)
    watchdog.start()
    with pytest.raises(_watchdog.Abandoned), watchdog.watch():
        wait_until(lambda: bool(given_up), "the split given up")
    watchdog.close()
    assert given_up == [60.0]
