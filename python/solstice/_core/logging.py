"""Records of the native core, in Python's ``logging`` under ``solstice.native``.

The core puts its records into a bounded channel that never blocks it; one daemon thread takes them out and gives them
to the logger named after the Rust module: ``solstice_core::agent::server`` is ``solstice.native.agent.server``.
"""

import atexit
import logging
import os
import threading

from solstice import _native

_ROOT = "solstice.native"

# How late a changed level of the Python logger reaches the core; an idle process wakes up this often.
_LEVEL_CHECK_S = 0.5
# A handler that hangs must not keep the process from ending.
_END_TIMEOUT_S = 1.0

_lock = threading.Lock()
_thread: threading.Thread | None = None
_ending = threading.Event()


def start_native_logging() -> None:
    """Let the core's records arrive in ``logging``, at the level of ``solstice.native``; further calls cost nothing.

    A forked child does not inherit the thread: whatever uses the core calls this again there.
    """
    global _thread
    _follow_level()
    with _lock:
        if _ending.is_set() or (_thread is not None and _thread.is_alive()):
            return
        _thread = threading.Thread(target=_run, name="solstice-native-logs", daemon=True)
        _thread.start()


def _run() -> None:
    while not _ending.is_set():
        _deliver(_LEVEL_CHECK_S)
        _follow_level()


def _deliver(wait_s: float) -> None:
    records, dropped = _native.drain_logs(wait_s)
    for level, target, message in records:
        logging.getLogger(_logger_name(target)).log(level, "%s", message)
    if dropped:
        logging.getLogger(_ROOT).warning(
            "%d records of the native core were dropped: they came faster than Python's logging took them", dropped
        )


def _logger_name(target: str) -> str:
    crate, *modules = target.split("::")
    if crate not in ("solstice_core", "_native"):
        modules.insert(0, crate)
    return ".".join([_ROOT, *modules])


def _follow_level() -> None:
    level = logging.getLogger(_ROOT).getEffectiveLevel()
    _native.set_log_level(max(0, min(level, logging.CRITICAL)))


def end_native_logging() -> None:
    """Deliver what is left and end the thread: a daemon thread inside the core must not outlive the interpreter.

    Called at exit. A thread that a handler holds up is left alone: waiting for the handler's lock would hang as well.
    """
    _ending.set()
    _native.close_logs()
    if _thread is not None:
        _thread.join(_END_TIMEOUT_S)
        if _thread.is_alive():
            return
    _deliver(0)


def _forget() -> None:
    """In a forked child: the thread is not there, and the lock may have been held by another one."""
    global _lock, _thread, _ending
    _lock, _thread, _ending = threading.Lock(), None, threading.Event()


atexit.register(end_native_logging)
os.register_at_fork(after_in_child=_forget)
