"""Paths of the URLs that name a place on this machine, and writing there so that a power loss keeps it."""

import os
from pathlib import Path
from urllib.parse import quote

from solstice._core.urls import parse_url


def local_path(url: str) -> Path:
    """The path of ``file:///absolute/path`` or ``sqlite://relative/path``."""
    parsed = parse_url(url)
    return Path(parsed.host + parsed.path)


def local_url(scheme: str, path: str | Path) -> str:
    """The URL of a path, absolute: the processes that get it may run in another directory."""
    return f"{scheme}://{quote(str(Path(path).absolute()))}"


def absolute_url(url: str) -> str:
    """The same place, named so that it can be passed to another process."""
    parsed = parse_url(url)
    if parsed.scheme not in ("file", "sqlite"):
        return url
    return local_url(parsed.scheme, local_path(url))


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
