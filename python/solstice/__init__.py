"""Solstice moves Arrow data into Spark, out of Spark, and to the person who asks.

The map:

- ``solstice.pubsub``: Google Cloud Pub/Sub as a Spark Structured Streaming source.
- ``solstice.pipeline``: jobs of stages; Spark writes Arrow splits, Python workers process them.
- ``solstice.connect``: a native, light Spark Connect client.
- ``solstice.testing``: the Pub/Sub emulator and other doubles for users' own tests.
- ``solstice.errors``: the whole error tree.

Importing this package imports none of them, and neither pyspark nor pyarrow: each part loads on first use.
"""

import importlib
from typing import Any

from solstice.errors import SolsticeError

__all__ = ["SolsticeError", "__version__", "connect", "errors", "pipeline", "pubsub", "testing"]

_PARTS = frozenset({"connect", "errors", "pipeline", "pubsub", "testing"})


def __getattr__(name: str) -> Any:
    if name in _PARTS:
        return importlib.import_module(f"solstice.{name}")
    if name == "__version__":
        from solstice import _native

        return _native.__version__
    raise AttributeError(f"module 'solstice' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
