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
        self._pool, self._class_of = _empty_pool()
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


def _empty_pool() -> tuple[Any, Callable[[Any], Any]]:
    """A descriptor pool, and what gives the class of a message in it.

    Taken from protobuf's C part, where it has one: its public modules for this also import protobuf's other half, all
    of it again in Python, which is a tenth of a program's start and never used.
    """
    try:
        from google._upb._message import DescriptorPool, MessageMeta
        from google.protobuf.message import Message
    except ImportError:
        from google.protobuf import descriptor_pool, message_factory

        return descriptor_pool.DescriptorPool(), message_factory.GetMessageClass

    def class_of(descriptor: Any) -> Any:  # the same one each time: protobuf keeps it
        return MessageMeta(descriptor.name, (Message,), {"DESCRIPTOR": descriptor, "__module__": None})

    return DescriptorPool(), class_of


@functools.cache
def load_protocol() -> Protocol:
    """The protocol of the installed pyspark, built once in a process."""
    require("google.protobuf", "connect")
    return Protocol(load_descriptors(find_pyspark()))
