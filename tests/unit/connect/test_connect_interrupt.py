"""Ctrl-C at the worst moments: it must not leave gRPC with a lock that nobody gives back."""

import os
import signal
import subprocess
import sys
import threading

import pytest
from connect_scripted_server import ScriptedServer

from solstice.connect._interrupt import Uninterrupted


def press_ctrl_c():
    os.kill(os.getpid(), signal.SIGINT)


# In a process of its own: where it goes wrong, the process hangs, and its end does too.
SCRIPT = """
import os, signal, sys, threading
import solstice.connect as sc


class PressedWhenTaken:
    def __init__(self, lock):
        self._lock = lock
        self.presses = 0

    def __enter__(self):
        self._lock.acquire()
        if threading.current_thread() is threading.main_thread() and not self.presses:
            self.presses += 1
            os.kill(os.getpid(), signal.SIGINT)
            return self._lock  # a step in which the signal arrives

    def __exit__(self, *exc_info):
        self._lock.release()


with sc.connect(sys.argv[1]) as spark:
    calls = spark._link.driver._transport._channel._call_state
    calls.lock = PressedWhenTaken(calls.lock)
    try:
        {use}
        outcome = "no interrupt"
    except KeyboardInterrupt:
        outcome = "interrupted"
    print(outcome, calls.lock.presses, spark.sql("select n").collect())
"""


@pytest.mark.parametrize("use", ["spark.sql('select n').collect()", "spark.range(1).schema"])
def test_ctrl_c_while_grpc_holds_its_lock_leaves_the_session_usable(use):
    server = ScriptedServer()
    command = [sys.executable, "-c", SCRIPT.replace("{use}", use), server.url()]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    server.stop()
    assert ran.stdout.strip() == "interrupted 1 [Row(n=1), Row(n=2), Row(n=3)]", ran.stderr


def test_what_is_done_within_is_told_at_once_and_goes_to_its_end():
    told, done = threading.Event(), []

    def work():
        with Uninterrupted(told.set):
            press_ctrl_c()
            done.append(told.wait(10))

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == [True]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_of_the_program_itself_is_left_alone():
    pressed = []
    previous = signal.signal(signal.SIGINT, lambda number, frame: pressed.append(number))
    try:
        with Uninterrupted(lambda: pressed.append("cancelled")):
            press_ctrl_c()
    finally:
        signal.signal(signal.SIGINT, previous)
    assert pressed == [signal.SIGINT]


def test_other_threads_do_without_handlers():
    failed = []

    def work():
        try:
            with Uninterrupted():
                failed.append(signal.getsignal(signal.SIGINT) is not signal.default_int_handler)
        except ValueError as error:  # what signal.signal() says there
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert failed == [False]
