"""What the options of reading bound, and what holds within the bounds: each of them reaches the agent."""

import json
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from pubsub_agents import START, SUBSCRIPTION, TOPIC, cut, read, reading, send, serving
from solstice import _native
from solstice.errors import ConfigError
from solstice.pubsub import publish
from solstice.pubsub._admin import Admin
from solstice.testing import PubSubEmulator
from waiting import wait_until


@pytest.fixture
def emulator() -> Iterator[PubSubEmulator]:
    with serving() as emulator:
        yield emulator


def test_as_many_streams_are_open_as_asked_for(emulator) -> None:
    with reading(emulator, streams="3") as reader:
        reader.latestOffset(START, ReadMaxRows(10))
        wait_until(lambda: emulator.calls()["StreamingPull"] == 3)


@pytest.mark.parametrize(
    ("bound", "most"), [({"maxOutstandingMessages": "150"}, 150), ({"maxOutstandingBytes": "50kb"}, 50)]
)
def test_no_more_is_held_than_the_bound_and_all_of_it_comes_in_the_end(emulator, bound, most) -> None:
    payloads = [f"{number:04}".encode() + bytes(1_000) for number in range(400)]
    publish(TOPIC, pa.table({"data": payloads}), emulator_host=emulator.address)
    seen: list[bytes] = []
    with reading(emulator, **bound) as reader:
        start = START
        while len(seen) < 400:
            end = reader.latestOffset(start, ReadMaxRows(1_000))
            assert emulator.counters(SUBSCRIPTION)["outstanding"] <= most
            for part in reader.partitions(start, end):
                seen += [value for batch in reader.read(part) for value in batch["data"].to_pylist()]
            start = end
    assert sorted(seen) == payloads


def test_leases_have_the_lengths_asked_for(emulator, monkeypatch) -> None:
    """How the agent keeps to them is a matter of time, and tested where there is a clock: see ``book_tests.rs``."""
    told: list[dict] = []
    agent = _native.Agent

    def overheard(descriptor: int, config: str) -> _native.Agent:
        told.append(json.loads(config))
        return agent(descriptor, config)

    monkeypatch.setattr(_native, "Agent", overheard)
    with reading(emulator, ackDeadline="30s", maxLeaseDuration="2m") as reader:
        reader.latestOffset(START, ReadMaxRows(10))
    assert (told[0]["ack_deadline_s"], told[0]["max_lease_s"]) == (30, 120)


def test_messages_of_one_ordering_key_keep_their_order_inside_a_partition() -> None:
    count = 20_000
    rows = pa.table(
        {"data": [str(number) for number in range(count)], "ordering_key": [f"k{n % 7}" for n in range(count)]}
    )
    with serving(enable_message_ordering=True) as emulator, reading(emulator, numPartitions="3") as reader:
        publish(TOPIC, rows, emulator_host=emulator.address)
        _, parts = cut(reader, START, count)
        seen = 0
        for part in parts:
            last: dict[str, int] = {}
            for batch in reader.read(part):
                for key, data in zip(batch["ordering_key"].to_pylist(), batch["data"].to_pylist(), strict=True):
                    assert int(data) > last.get(key, -1)
                    last[key] = int(data)
                    seen += 1
        assert (len(parts), seen) == (3, count)


def test_a_subscription_is_made_with_the_lease_asked_for_and_only_of_its_topic(emulator) -> None:
    made = "projects/test/subscriptions/made"
    asked = {"subscriptionId": made, "createSubscription": "true", "ackDeadline": "30s"}
    for _ in range(2):  # it is there at the second time
        with reading(emulator, **asked, topicId=TOPIC) as reader:
            reader.latestOffset(START, ReadMaxRows(10))
            send(emulator, 0, 10)
            cut(reader, START, 10)
    settings = Admin(emulatorHost=emulator.address).get_subscription(made)
    assert (settings["topic"], settings["ack_deadline_s"]) == (TOPIC, 30)
    emulator.create_topic("projects/test/topics/other")
    with (
        reading(emulator, **asked, topicId="projects/test/topics/other") as reader,
        pytest.raises(ConfigError, match=f"belongs to '{TOPIC}'.*leave topicId and createSubscription out"),
    ):
        reader.latestOffset(START, ReadMaxRows(10))


def test_a_subscription_that_somebody_else_makes_at_the_same_time_is_taken(emulator) -> None:
    emulator.faults.answer("GetSubscription", "NOT_FOUND", times=1)  # it is not there yet, and then it is
    with reading(emulator, createSubscription="true", topicId=TOPIC) as reader:
        sent = send(emulator, 0, 10)
        _, parts = cut(reader, START, 10)
        assert set(read(reader, parts)) == sent
