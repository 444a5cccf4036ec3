"""A fresh emulator for each test, the official clients on it, and raw StreamingPull streams."""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from google.cloud import pubsub_v1
from google.pubsub_v1 import PublisherClient, SubscriberClient
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport
from google.pubsub_v1.types import ReceivedMessage, StreamingPullRequest

from solstice.testing import PubSubEmulator

TOPIC = "projects/p/topics/events"
SUBSCRIPTION = "projects/p/subscriptions/events"
WAIT_S = 10.0


class Pull:
    """One StreamingPull stream: ``send`` requests, ``receive`` deliveries; ``end`` gives the status it ended with."""

    def __init__(self, subscriber: Any, first: StreamingPullRequest) -> None:
        self._requests: queue.SimpleQueue[StreamingPullRequest | None] = queue.SimpleQueue()
        self._received: queue.SimpleQueue[ReceivedMessage] = queue.SimpleQueue()
        self._requests.put(first)
        self._end: grpc.StatusCode | None = None
        self._call = subscriber.transport.streaming_pull(iter(self._requests.get, None))
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        try:
            for response in self._call:
                for received in response.received_messages:
                    self._received.put(received)
        except grpc.RpcError as error:
            self._end = error.code()
        else:
            self._end = self._call.code()

    def send(self, **fields: Any) -> None:
        self._requests.put(StreamingPullRequest(**fields))

    def receive(self, count: int, wait_s: float = WAIT_S) -> list[ReceivedMessage]:
        """``count`` deliveries, or fewer when they do not come in time."""
        deadline = time.monotonic() + wait_s
        received: list[ReceivedMessage] = []
        while len(received) < count:
            try:
                received.append(self._received.get(timeout=max(0, deadline - time.monotonic())))
            except queue.Empty:
                break
        return received

    def end(self) -> grpc.StatusCode | None:
        self._reader.join(WAIT_S)
        assert not self._reader.is_alive(), "the stream does not end"
        return self._end

    def half_close(self) -> None:
        self._requests.put(None)

    def cancel(self) -> None:
        self.half_close()
        self._call.cancel()
        self._reader.join(WAIT_S)


@pytest.fixture
def emulator(monkeypatch: pytest.MonkeyPatch) -> Iterator[PubSubEmulator]:
    with PubSubEmulator() as server:
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", server.address)
        yield server


@pytest.fixture
def publisher(emulator: PubSubEmulator) -> Iterator[Any]:
    client = pubsub_v1.PublisherClient()
    yield client
    client.stop()
    client.transport.close()


@pytest.fixture
def subscriber(emulator: PubSubEmulator) -> Iterator[Any]:
    with pubsub_v1.SubscriberClient() as client:
        yield client


@pytest.fixture
def large_subscriber(emulator: PubSubEmulator) -> Iterator[Any]:
    """For an emulator the official client leaves gRPC's limit of 4 MB a response; this one has none."""
    channel = grpc.insecure_channel(emulator.address, options=[("grpc.max_receive_message_length", -1)])
    with SubscriberClient(transport=SubscriberGrpcTransport(channel=channel)) as client:
        yield client


@pytest.fixture
def subscribed(emulator: PubSubEmulator) -> PubSubEmulator:
    """The emulator with TOPIC and SUBSCRIPTION."""
    emulator.create_topic(TOPIC)
    emulator.create_subscription(SUBSCRIPTION, TOPIC)
    return emulator


@pytest.fixture
def pull(subscriber: Any) -> Iterator[Callable[..., Pull]]:
    """Opens streams; they are cancelled when the test ends."""
    opened: list[Pull] = []

    def open_stream(subscription: str = SUBSCRIPTION, client: Any = subscriber, **fields: Any) -> Pull:
        first = {"subscription": subscription, "stream_ack_deadline_seconds": 10, **fields}
        opened.append(Pull(client, StreamingPullRequest(**first)))
        return opened[-1]

    yield open_stream
    for stream in opened:
        stream.cancel()


@pytest.fixture
def publish(publisher: Any) -> Callable[..., list[str]]:
    """Publishes these payloads in one request and gives their ids."""

    def send(*payloads: bytes, topic: str = TOPIC, ordering_key: str = "") -> list[str]:
        messages = [{"data": payload, "ordering_key": ordering_key} for payload in payloads]
        return list(PublisherClient.publish(publisher, topic=topic, messages=messages).message_ids)

    return send


@pytest.fixture
def eventually() -> Callable[[Callable[[], Any], Any], None]:
    """Waits until a function gives a value, and fails with what it gave last."""

    def wait(read: Callable[[], Any], expected: Any) -> None:
        deadline = time.monotonic() + WAIT_S
        while (value := read()) != expected and time.monotonic() < deadline:
            time.sleep(0.01)
        assert value == expected

    return wait
