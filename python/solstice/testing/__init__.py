"""Test doubles for users of Solstice: real servers that run inside the test process.

- :class:`PubSubEmulator`: a Pub/Sub server on loopback, for our source and for the official clients.
- :class:`PubSubFaults`: what is to go wrong in it.
- :class:`KafkaBroker`: a real Apache Kafka on loopback, in a process of its own.
"""

from solstice.testing._kafka import KafkaBroker
from solstice.testing._pubsub import PubSubEmulator, PubSubFaults

__all__ = ["KafkaBroker", "PubSubEmulator", "PubSubFaults"]
