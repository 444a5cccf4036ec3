"""Paths of the URLs that name a place on this machine."""

import re
from pathlib import Path
from urllib.parse import quote

from solstice._core.urls import parse_url


def local_path(url: str) -> Path:
    """The path of ``file:///absolute/path`` or ``sqlite://relative/path``."""
    parsed = parse_url(url)
    return Path(parsed.addresses + parsed.path)


def local_url(scheme: str, path: str | Path) -> str:
    """The URL of a path, absolute: the processes that get it may run in another directory."""
    return f"{scheme}://{quote(str(Path(path).absolute()))}"


def absolute_url(url: str) -> str:
    """The same place, named so that it can be passed to another process."""
    parsed = parse_url(url)
    if parsed.scheme not in ("file", "sqlite"):
        return url
    parameters = re.search(r"[;?].*", url)
    return local_url(parsed.scheme, local_path(url)) + (parameters[0] if parameters else "")
