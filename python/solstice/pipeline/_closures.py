"""Functions that travel to another process, lambdas and those of ``__main__`` included.

cloudpickle comes with pyspark, but importing ``pyspark.cloudpickle`` runs all of ``pyspark``, which every worker would
pay for. Its one file needs nothing else of pyspark, so it is loaded by its path, under a name that both sides know.
"""

import functools
import importlib.util
import sys
from pathlib import Path
from typing import Any

from solstice.errors import ConfigError, MissingExtraError

_MODULE = "solstice.pipeline._cloudpickle"


def dumps(value: Any, what: str) -> bytes:
    """Pickle a value; what cannot be imported by name is pickled by value. ``what`` it is, for the error."""
    try:
        return bytes(_cloudpickle().dumps(value))
    except Exception as error:  # each type has its own way to say that it cannot be pickled
        raise ConfigError(
            f"{what} cannot be sent to a worker: {type(error).__name__}: {error}.",
            option="function",
            remedy="It uses something from outside that lives in one process only, such as a lock, a connection or a"
            " Spark session: make it inside the function, or in setup() of an Operator.",
        ) from error


def loads(data: bytes) -> Any:
    """The inverse of ``dumps``; ordinary unpickling would not find the module that the pickle names."""
    return _cloudpickle().loads(data)


@functools.cache
def _cloudpickle() -> Any:
    pyspark = importlib.util.find_spec("pyspark")  # finds it without importing it
    if pyspark is None or pyspark.origin is None:
        raise MissingExtraError("pyspark", "pipeline")
    path = Path(pyspark.origin).parent / "cloudpickle" / "cloudpickle.py"
    spec = importlib.util.spec_from_file_location(_MODULE, path)
    if spec is None or spec.loader is None:
        raise MissingExtraError("pyspark", "pipeline")
    module = importlib.util.module_from_spec(spec)
    sys.modules[_MODULE] = module
    spec.loader.exec_module(module)
    return module
