"""The user's cache folder of Solstice."""

import os
from pathlib import Path


def cache_dir() -> Path:
    """Where small files that can be made again are kept. Raises RuntimeError for a user who has no home."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "solstice")
