"""Writing to a disk so that a power loss keeps it."""

import os
from pathlib import Path


def make_directories(path: Path) -> None:
    """Create a directory and the missing ones above it, and fsync what holds each new entry."""
    missing = []
    while not path.exists():
        missing.append(path)
        path = path.parent
    for directory in reversed(missing):
        directory.mkdir(exist_ok=True)
        fsync_directory(directory.parent)


def fsync_directory(path: Path) -> None:
    """Make the entries of a directory durable: without it, a file that was fsynced may have no name after a crash."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_file(path: Path) -> None:
    """Make the content of a file durable, whoever wrote it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
