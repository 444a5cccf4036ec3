"""The protocol's message types and methods, in a descriptor pool of their own.

The pool is private, so that these types live beside pyspark's, which are in protobuf's default pool under the same
names, in either import order.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from solstice._core.extras import require
from solstice.connect._descriptors import find_pyspark, load_descriptors

_SERVICE = "spark.connect.SparkConnectService"


@dataclass(frozen=True)
class Method:
    """One method of the service, as a channel needs it."""

    path: str
    serialize: Callable[[Any], bytes]
    deserialize: Callable[[bytes], Any]
    streams_responses: bool
    streams_requests: bool


class Protocol:
    """Message classes by name (``protocol.Relation``, ``protocol.ExecutePlanRequest``) and the service's methods."""

    def __init__(self, descriptors: list[bytes]) -> None:
        from google.protobuf import descriptor_pool, message_factory

        self._class_of = message_factory.GetMessageClass
        self._pool = descriptor_pool.DescriptorPool()
        for file in descriptors:
            self._pool.AddSerializedFile(file)
        self.methods = {
            method.name: Method(
                f"/{_SERVICE}/{method.name}",
                self._class_of(method.input_type).SerializeToString,
                self._class_of(method.output_type).FromString,
                method.server_streaming,
                method.client_streaming,
            )
            for method in self._pool.FindServiceByName(_SERVICE).methods
        }

    def __getattr__(self, name: str) -> Any:
        try:
            message = self.message(f"spark.connect.{name}")
        except KeyError:
            raise AttributeError(f"the installed pyspark's protocol has no message {name!r}") from None
        setattr(self, name, message)
        return message

    def message(self, full_name: str) -> Any:
        """A message class by its full name."""
        return self._class_of(self._pool.FindMessageTypeByName(full_name))


@functools.cache
def load_protocol() -> Protocol:
    """The protocol of the installed pyspark, built once in a process."""
    require("google.protobuf", "connect")
    return Protocol(load_descriptors(find_pyspark()))
