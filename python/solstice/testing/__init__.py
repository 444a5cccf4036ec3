"""Test doubles for users of Solstice: real servers that run inside the test process.

- :class:`PubSubEmulator`: a Pub/Sub server on loopback, for our source and for the official clients' StreamingPull.
"""

from solstice.testing._pubsub import PubSubEmulator

__all__ = ["PubSubEmulator"]
