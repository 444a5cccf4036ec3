"""Fixtures: the official clients on an emulator, and one with a topic and a subscription for Spark."""

from collections.abc import Iterator

import pytest
from conformance import Service

from pubsub_queries import SUBSCRIPTION, TOPIC
from solstice.testing import PubSubEmulator


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """A fresh emulator with the official clients on it."""
    with PubSubEmulator() as emulator:
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", emulator.address)
        service = Service(emulator)
        yield service
        service.close()


@pytest.fixture
def topic(service: Service) -> str:
    return service.topic()


@pytest.fixture
def subscription(service: Service, topic: str) -> str:
    """A subscription with the defaults of the service."""
    return service.subscription(topic)


@pytest.fixture
def emulator() -> Iterator[PubSubEmulator]:
    with PubSubEmulator() as emulator:
        emulator.create_topic(TOPIC)
        emulator.create_subscription(SUBSCRIPTION, TOPIC)
        yield emulator
