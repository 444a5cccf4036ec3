"""What Spark pickles for its executors, where Solstice may not be installed."""

from collections.abc import Callable
from typing import Any


class Portable:
    """An object of a query that, where Solstice is missing, says so and how to install it.

    Pickle alone says ``No module named 'solstice'``, about a host that the user may never have seen. Spark pickles with
    cloudpickle, which takes a function that no module has at its top along as code.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        from pyspark import cloudpickle

        from solstice import __version__

        return _loader(), (cloudpickle.dumps((type(self), self.__dict__)), f"solstice-spark=={__version__}")


def _loader() -> Callable[[bytes, str], Any]:
    def load(pickled: bytes, requirement: str) -> Any:
        import socket
        import sys

        from pyspark import cloudpickle

        try:
            import solstice  # noqa: F401
        except ImportError as error:
            raise ImportError(
                f"Solstice is not installed for {sys.executable} on {socket.gethostname()}, where Spark runs a task of "
                f"this query ({error}). Run there, and wherever Spark has executors: "
                f"{sys.executable} -m pip install '{requirement}'"
            ) from None
        cls, fields = cloudpickle.loads(pickled)
        loaded = cls.__new__(cls)
        loaded.__dict__.update(fields)
        return loaded

    return load
