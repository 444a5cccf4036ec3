"""What the conformance tests share: the official clients on a fresh emulator, with short forms of the calls."""

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from google.cloud import pubsub_v1
from google.cloud.pubsub_v1.subscriber.message import Message
from google.pubsub_v1 import PublisherClient
from google.pubsub_v1.types import PubsubMessage, ReceivedMessage

from solstice.testing import PubSubEmulator

PROJECT = "projects/conformance"
WAIT_S = 10.0


def wait_until(holds: Callable[[], Any], what: str) -> None:
    """Wait until it holds, or fail after ``WAIT_S``."""
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.005)


def payloads(received: list[ReceivedMessage]) -> list[bytes]:
    return [one.message.data for one in received]


class Service:
    """The emulator as the official clients see it."""

    def __init__(self, emulator: PubSubEmulator) -> None:
        self.emulator = emulator
        self.publisher = pubsub_v1.PublisherClient(
            publisher_options=pubsub_v1.types.PublisherOptions(enable_message_ordering=True)
        )
        self.subscriber = pubsub_v1.SubscriberClient()

    def close(self) -> None:
        self.publisher.stop()
        self.publisher.transport.close()
        self.subscriber.close()

    def topic(self, name: str = "events", **fields: Any) -> str:
        """Create a topic."""
        path = f"{PROJECT}/topics/{name}"
        self.publisher.create_topic(request={"name": path, **fields})
        return path

    def subscription(self, topic: str, name: str = "events", **fields: Any) -> str:
        """Create a subscription."""
        path = f"{PROJECT}/subscriptions/{name}"
        self.subscriber.create_subscription(request={"name": path, "topic": topic, **fields})
        return path

    def update(self, subscription: str, **fields: Any) -> Any:
        """Update exactly these fields of a subscription."""
        return self.subscriber.update_subscription(
            request={"subscription": {"name": subscription, **fields}, "update_mask": {"paths": list(fields)}}
        )

    def publish(self, topic: str, *data: bytes, **fields: Any) -> list[str]:
        """Publish payloads with the same further fields in one request, and give their ids."""
        return self.publish_messages(topic, [PubsubMessage(data=one, **fields) for one in data])

    def publish_messages(self, topic: str, messages: list[PubsubMessage]) -> list[str]:
        # The client's own ``publish`` batches in the background; this is the plain call.
        request = {"topic": topic, "messages": messages}
        return list(PublisherClient.publish(self.publisher, request=request, retry=None).message_ids)

    def pull(self, subscription: str, max_messages: int = 100, **options: Any) -> list[ReceivedMessage]:
        """What is there now."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The return_immediately flag", DeprecationWarning)
            request = {"subscription": subscription, "max_messages": max_messages, "return_immediately": True}
            return list(self.subscriber.pull(request=request, **options).received_messages)

    def receive(self, subscription: str, count: int) -> list[ReceivedMessage]:
        """Pull until so many messages came; fails when they do not come."""
        received: list[ReceivedMessage] = []
        wait_until(
            lambda: len(received) >= count or received.extend(self.pull(subscription)),
            f"{count} messages of {subscription}",
        )
        assert len(received) == count
        return received

    def ack(self, subscription: str, *received: ReceivedMessage) -> None:
        self.subscriber.acknowledge(subscription=subscription, ack_ids=[one.ack_id for one in received])

    def nack(self, subscription: str, *received: ReceivedMessage) -> None:
        self.extend(subscription, 0, *received)

    def extend(self, subscription: str, seconds: int, *received: ReceivedMessage) -> None:
        self.subscriber.modify_ack_deadline(
            subscription=subscription, ack_ids=[one.ack_id for one in received], ack_deadline_seconds=seconds
        )

    def advance(self, seconds: float) -> None:
        """Turn the emulator's clock."""
        self.emulator.advance(seconds)

    @contextmanager
    def subscribed(self, subscription: str, callback: Callable[[Message], Any], **options: Any) -> Iterator[Any]:
        """A running ``SubscriberClient.subscribe``, which ends with the block."""
        future = self.subscriber.subscribe(subscription, callback, **options)
        try:
            yield future
        finally:
            future.cancel()
            future.result(WAIT_S)
