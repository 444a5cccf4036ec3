"""Finding processes in tests, and seeing them end."""

import psutil


def descendants(argument: str, of: int | None = None) -> list[psutil.Process]:
    """The living processes below this one (or the one of a pid) that have ``argument`` on their command line."""
    found = []
    for process in psutil.Process(of).children(recursive=True):
        try:
            if any(argument in part for part in process.cmdline()):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return found


def has_ended(process: psutil.Process) -> bool:
    """Whether this very process is gone; also where its parent was first, so that it descends from nobody here."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
