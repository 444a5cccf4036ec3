"""``solstice pubsub emulator --data-dir``: what a client was told is done survives ``kill -9``."""

import contextlib
import functools
import os
import queue
import random
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from conformance import PROJECT, Service
from google.api_core.exceptions import GoogleAPICallError, NotFound, ResourceExhausted
from google.pubsub_v1 import PublisherClient, SubscriberClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

from solstice.errors import ConfigError
from solstice.testing import PubSubEmulator

pytestmark = pytest.mark.filterwarnings("ignore:The return_immediately flag:DeprecationWarning")

MAIN = "import sys; from solstice.cli import main; sys.exit(main())"
TOPIC = f"{PROJECT}/topics/events"
SUBSCRIPTION = f"{PROJECT}/subscriptions/events"
SOUGHT_TOPIC = f"{PROJECT}/topics/sought"
SOUGHT = f"{PROJECT}/subscriptions/sought"
SNAPSHOT = f"{PROJECT}/snapshots/snap"
CALL_S = 10.0


class Emulator:
    """An emulator in a process of its own, and clients without retries: what they say is what the emulator said."""

    def __init__(self, folder: Path, limit: Callable[[], None] | None = None) -> None:
        command = [sys.executable, "-c", MAIN, "pubsub", "emulator", "--port", "0", "--data-dir", str(folder)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=limit)
        lines = [self.process.stdout.readline(), self.process.stdout.readline()]
        address = re.fullmatch(r"export PUBSUB_EMULATOR_HOST=(127\.0\.0\.1:\d+)\n", lines[1])[1]
        self.channel = grpc.insecure_channel(address, options=[("grpc.max_receive_message_length", -1)])
        self.publisher = PublisherClient(transport=PublisherGrpcTransport(channel=self.channel))
        self.subscriber = SubscriberClient(transport=SubscriberGrpcTransport(channel=self.channel))

    def call(self, method: str, **request: Any) -> Any:
        client = self.publisher if hasattr(self.publisher, method) else self.subscriber
        return getattr(client, method)(request=request, retry=None, timeout=CALL_S)

    def publish(self, *data: bytes, topic: str = TOPIC, **fields: Any) -> list[str]:
        messages = [{"data": one, **fields} for one in data]
        return list(self.call("publish", topic=topic, messages=messages).message_ids)

    def pull(self, subscription: str = SUBSCRIPTION, count: int = 1000) -> list[Any]:
        request = {"subscription": subscription, "max_messages": count, "return_immediately": True}
        return list(self.call("pull", **request).received_messages)

    def drain(self, subscription: str = SUBSCRIPTION) -> dict[str, Any]:
        """Everything that waits, by message id."""
        received: dict[str, Any] = {}
        while batch := self.pull(subscription):
            received |= {one.message.message_id: one for one in batch}
        return received

    def ack(self, *received: Any, subscription: str = SUBSCRIPTION) -> None:
        self.call("acknowledge", subscription=subscription, ack_ids=[one.ack_id for one in received])

    def kill(self) -> None:
        self.process.kill()
        self.close()

    def close(self) -> None:
        self.channel.close()
        if self.process.poll() is None:
            self.process.terminate()
        self.process.communicate(timeout=10)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Emulator]]:
    """Starts an emulator on one and the same folder."""
    started: list[Emulator] = []

    def begin(limit: Callable[[], None] | None = None) -> Emulator:
        started.append(Emulator(tmp_path / "data", limit))
        return started[-1]

    yield begin
    for emulator in started:
        emulator.kill()


def subscribed(emulator: Emulator, **fields: Any) -> None:
    emulator.call("create_topic", name=TOPIC)
    emulator.call("create_subscription", name=SUBSCRIPTION, topic=TOPIC, **fields)


class Seeker:
    """One client alone with a subscription: it always knows exactly which messages are unacknowledged there."""

    def __init__(self) -> None:
        self.published: set[str] = set()
        self.unacked: set[str] = set()
        self.snapshot: set[str] | None = None
        # What the call under way makes of them; published ids are not known before they are told.
        self.next: set[str] | None = None
        self.publishing = 0

    def work_on(self, emulator: Emulator, rng: random.Random) -> None:
        while True:
            self.step(emulator, rng.choice(["publish", "publish", "ack", "past", "future", "snapshot", "to-snapshot"]))

    def step(self, emulator: Emulator, action: str) -> None:
        seek = functools.partial(emulator.call, "seek", subscription=SOUGHT)
        if action == "publish":
            self.publishing = 10
            ids = set(emulator.publish(*[b"x"] * self.publishing, topic=SOUGHT_TOPIC))
            self.published |= ids
            self.unacked |= ids
            if self.snapshot is not None:
                self.snapshot |= ids
            self.publishing = 0
        elif action == "ack":
            received = emulator.pull(SOUGHT)
            if received:
                self.change(
                    self.unacked - {one.message.message_id for one in received},
                    lambda: emulator.ack(*received, subscription=SOUGHT),
                )
        elif action == "past":
            self.change(set(self.published), lambda: seek(time={"seconds": 1}))
        elif action == "future":
            self.change(set(), lambda: seek(time={"seconds": int(time.time()) + 1000}))
        elif action == "snapshot" and self.snapshot is None:
            emulator.call("create_snapshot", name=SNAPSHOT, subscription=SOUGHT)
            self.snapshot = set(self.unacked)
        elif action == "to-snapshot" and self.snapshot is not None:
            self.change(set(self.snapshot), lambda: seek(snapshot=SNAPSHOT))

    def change(self, then: set[str], call: Callable[[], Any]) -> None:
        self.next = then
        call()
        self.unacked, self.next = then, None

    def check(self, emulator: Emulator) -> None:
        waiting = set(emulator.drain(SOUGHT))
        new = waiting - self.published
        assert len(new) in (0, self.publishing), "a request is published whole or not at all"
        assert waiting - new in (self.unacked, self.next)
        has_snapshot = bool(emulator.call("list_snapshots", project=PROJECT).snapshots)
        assert has_snapshot or self.snapshot is None
        if self.snapshot is not None:
            self.snapshot |= new
        elif has_snapshot:
            self.snapshot = set(self.unacked)
        self.published |= new
        self.unacked, self.next, self.publishing = waiting, None, 0


class Told:
    """What the emulator has told its clients over all its lives."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.published: dict[str, bytes] = {}
        self.acked: set[str] = set()
        self.ack_asked: set[str] = set()
        self.topics: dict[str, bool] = {}
        self.unsure_topics: set[str] = set()
        self.errors: list[GoogleAPICallError] = []


def publish_on(emulator: Emulator, told: Told, rng: random.Random, thread: str) -> None:
    number = 0
    while True:
        data = [f"{thread}-{number + offset}".encode() for offset in range(rng.randrange(1, 50))]
        number += len(data)
        ids = emulator.publish(*data, attributes={"thread": thread})
        with told.lock:
            assert not told.published.keys() & set(ids), "an id was given twice"
            told.published |= dict(zip(ids, data, strict=True))


def ack_on(emulator: Emulator, told: Told, rng: random.Random) -> None:
    while True:
        received = emulator.pull(count=rng.randrange(1, 200))
        some = rng.sample(received, len(received) // 2)
        if not some:
            continue
        ids = {one.message.message_id for one in some}
        with told.lock:
            told.ack_asked |= ids
        emulator.ack(*some)
        with told.lock:
            told.acked |= ids


def administrate_on(emulator: Emulator, told: Told, rng: random.Random, life: int) -> None:
    for number in range(1_000_000):
        name = f"{PROJECT}/topics/made-{life}-{number}"
        with told.lock:
            told.unsure_topics.add(name)
        emulator.call("create_topic", name=name)
        with told.lock:
            told.topics[name] = True
            told.unsure_topics.remove(name)
        if rng.random() < 0.5:
            with told.lock:
                told.unsure_topics.add(name)
            emulator.call("delete_topic", topic=name)
            with told.lock:
                told.topics[name] = False
                told.unsure_topics.remove(name)


def until_killed(told: Told, work: Callable[[], None]) -> None:
    try:
        work()
    except GoogleAPICallError as error:
        told.errors.append(error)


def check(emulator: Emulator, told: Told) -> None:
    names = {topic.name for topic in emulator.publisher.list_topics(project=PROJECT)}
    for name, exists in told.topics.items():
        if name not in told.unsure_topics:
            assert (name in names) == exists, name
    received = emulator.drain()
    assert not received.keys() & told.acked, "an acknowledged message came again"
    missing = told.published.keys() - told.ack_asked - received.keys()
    assert not missing, f"{len(missing)} of {len(told.published)} published messages are lost"
    for message_id, one in received.items():
        if message_id in told.published:
            assert one.message.data == told.published[message_id]
            assert one.message.attributes["thread"] in ("a", "b")


def test_what_clients_were_told_survives_kill_9_at_any_moment(start):
    rng = random.Random(20)
    told, seeker = Told(), Seeker()
    emulator = start()
    subscribed(emulator)
    emulator.call("create_topic", name=SOUGHT_TOPIC)
    emulator.call("create_subscription", name=SOUGHT, topic=SOUGHT_TOPIC, retain_acked_messages=True)
    for life in range(8):
        seeds = [random.Random(rng.random()) for _ in range(6)]
        work = [
            functools.partial(publish_on, emulator, told, seeds[0], "a"),
            functools.partial(publish_on, emulator, told, seeds[1], "b"),
            functools.partial(ack_on, emulator, told, seeds[2]),
            functools.partial(ack_on, emulator, told, seeds[3]),
            functools.partial(administrate_on, emulator, told, seeds[4], life),
            functools.partial(seeker.work_on, emulator, seeds[5]),
        ]
        threads = [threading.Thread(target=until_killed, args=(told, one)) for one in work]
        for thread in threads:
            thread.start()
        time.sleep(rng.uniform(0.05, 0.6))
        emulator.process.kill()
        for thread in threads:
            thread.join(CALL_S)
            assert not thread.is_alive()
        emulator.kill()
        assert {error.grpc_status_code for error in told.errors} <= {
            grpc.StatusCode.UNAVAILABLE,
            grpc.StatusCode.UNKNOWN,  # a stream that the kill reset in the middle of an answer
            grpc.StatusCode.INTERNAL,
        }
        emulator = start()
        check(emulator, told)
        seeker.check(emulator)
        # The leases of this check end with its process.
        emulator.kill()
        emulator = start()
    assert len(told.published) > 1000
    assert len(told.acked) > 100
    assert len(told.topics) > 20
    assert len(seeker.published) > 20


def test_settings_survive(start):
    emulator = start()
    subscribed(emulator, labels={"a": "1"}, retain_acked_messages=True, filter="attributes:x")
    emulator.call("create_topic", name=f"{PROJECT}/topics/dead-letters", message_retention_duration={"seconds": 700})
    emulator.call(
        "update_subscription",
        subscription={
            "name": SUBSCRIPTION,
            "ack_deadline_seconds": 77,
            "dead_letter_policy": {"dead_letter_topic": f"{PROJECT}/topics/dead-letters"},
        },
        update_mask={"paths": ["ack_deadline_seconds", "dead_letter_policy"]},
    )
    emulator.call("create_snapshot", name=SNAPSHOT, subscription=SUBSCRIPTION)
    emulator.call("create_subscription", name=f"{PROJECT}/subscriptions/detached", topic=TOPIC)
    emulator.call("detach_subscription", subscription=f"{PROJECT}/subscriptions/detached")
    emulator.call("create_topic", name=f"{PROJECT}/topics/deleted")
    emulator.call("create_subscription", name=f"{PROJECT}/subscriptions/left-over", topic=f"{PROJECT}/topics/deleted")
    emulator.call("delete_topic", topic=f"{PROJECT}/topics/deleted")

    def everything(emulator: Emulator) -> list[Any]:
        return [
            sorted(emulator.call("list_topics", project=PROJECT).topics, key=lambda one: one.name),
            sorted(emulator.call("list_subscriptions", project=PROJECT).subscriptions, key=lambda one: one.name),
            list(emulator.call("list_snapshots", project=PROJECT).snapshots),
            list(emulator.call("list_topic_subscriptions", topic=TOPIC).subscriptions),
        ]

    before = everything(emulator)
    assert [len(part) for part in before] == [2, 3, 1, 1]
    emulator.kill()
    emulator = start()
    assert everything(emulator) == before
    emulator.kill()
    assert everything(start()) == before, "nor does the rewritten journal lose anything"


def test_messages_come_back_whole_and_in_the_order_of_their_key(start):
    emulator = start()
    subscribed(emulator, enable_message_ordering=True)
    for key in ("a", "b"):
        emulator.publish(*[b"%d" % n for n in range(100)], ordering_key=key, attributes={"key": key})
    before = emulator.drain()
    emulator.kill()
    emulator = start()
    after = emulator.drain()
    assert {i: one.message for i, one in after.items()} == {i: one.message for i, one in before.items()}
    for key in ("a", "b"):
        in_order = [one.message.data for one in after.values() if one.message.ordering_key == key]
        assert in_order == [b"%d" % n for n in range(100)]
    with contextlib.suppress(GoogleAPICallError):
        emulator.ack(*list(before.values())[:1])
    emulator.kill()
    assert start().drain().keys() == before.keys(), "an ack id of an earlier life acknowledges nothing"


def test_seeks_and_snapshots_survive(start):
    emulator = start()
    subscribed(emulator, retain_acked_messages=True)
    first = emulator.publish(b"1", b"2")
    received = emulator.drain()
    emulator.call("create_snapshot", name=SNAPSHOT, subscription=SUBSCRIPTION)
    emulator.ack(*received.values())
    since = emulator.publish(b"3")
    emulator.ack(*emulator.drain().values())
    emulator.kill()
    emulator = start()
    assert emulator.drain() == {}
    emulator.call("seek", subscription=SUBSCRIPTION, snapshot=SNAPSHOT)
    emulator.kill()
    emulator = start()
    received = emulator.drain()
    assert received.keys() == {*first, *since}
    emulator.ack(*received.values())
    emulator.call("seek", subscription=SUBSCRIPTION, time={"seconds": 1})
    emulator.kill()
    emulator = start()
    assert emulator.drain().keys() == {*first, *since}
    emulator.call("seek", subscription=SUBSCRIPTION, time={"seconds": int(time.time()) + 1000})
    emulator.kill()
    emulator = start()
    assert emulator.drain() == {}
    emulator.call("delete_snapshot", snapshot=SNAPSHOT)
    emulator.kill()
    with pytest.raises(NotFound):
        start().call("get_snapshot", snapshot=SNAPSHOT)


def test_delivery_attempts_survive_and_a_dead_letter_is_one_for_good(start):
    letters = f"{PROJECT}/subscriptions/letters"
    emulator = start()
    emulator.call("create_topic", name=f"{PROJECT}/topics/letters")
    emulator.call("create_subscription", name=letters, topic=f"{PROJECT}/topics/letters")
    subscribed(
        emulator, dead_letter_policy={"dead_letter_topic": f"{PROJECT}/topics/letters", "max_delivery_attempts": 5}
    )
    emulator.publish(b"poison")
    attempts = []
    for _ in range(5):
        (received,) = emulator.pull()
        attempts.append(received.delivery_attempt)
        request = {"subscription": SUBSCRIPTION, "ack_ids": [received.ack_id], "ack_deadline_seconds": 0}
        emulator.call("modify_ack_deadline", **request)
        emulator.kill()
        emulator = start()
    assert attempts == [1, 2, 3, 4, 5]
    assert [one.message.data for one in emulator.drain(letters).values()] == [b"poison"]
    assert emulator.drain() == {}


def test_the_journal_shrinks_to_what_is_alive(start, tmp_path):
    journal = tmp_path / "data" / "journal"
    emulator = start()
    subscribed(emulator)
    for _ in range(20):
        emulator.publish(*[b"x" * 1000] * 100)
    emulator.ack(*emulator.drain().values())
    assert journal.stat().st_size > 2_000_000
    emulator.kill()
    emulator = start()
    assert journal.stat().st_size < 2_000
    assert emulator.drain() == {}
    assert emulator.publish(b"more")


def test_a_journal_that_has_grown_is_condensed_while_the_emulator_runs(start, tmp_path):
    journal = tmp_path / "data" / "journal"
    emulator = start()
    subscribed(emulator)
    kept = emulator.publish(b"kept")
    largest = 0
    for number in range(9):
        ids = set(emulator.publish(b"%d" % number * 9_000_000))
        received = emulator.drain()
        emulator.ack(*[one for message_id, one in received.items() if message_id in ids])
        largest = max(largest, journal.stat().st_size)
    assert largest > 60_000_000
    assert journal.stat().st_size < 30_000_000
    emulator.kill()
    assert start().drain().keys() == set(kept)


def test_a_full_disk_fails_the_call_and_nothing_that_was_told_is_lost(start):
    emulator = start()
    subscribed(emulator)
    emulator.kill()
    emulator = start(lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY)))
    told: set[str] = set()

    def publish_until_it_fails() -> None:
        while True:
            told.update(emulator.publish(b"x" * 4000))

    def create_until_it_fails() -> None:
        for number in range(10_000):
            emulator.call("create_topic", name=f"{PROJECT}/topics/topic-{number}")

    with pytest.raises(ResourceExhausted, match="the journal cannot be written: File too large"):
        publish_until_it_fails()
    assert told
    received = emulator.drain()
    assert received.keys() == told, "reading goes on, and what failed is not there"
    with pytest.raises(ResourceExhausted):
        emulator.publish(b"x" * 40_000)
    with pytest.raises(ResourceExhausted):
        create_until_it_fails()
    made = {topic.name for topic in emulator.publisher.list_topics(project=PROJECT)}
    with pytest.raises(ResourceExhausted):
        emulator.ack(*received.values())
    room = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    resource.prlimit(emulator.process.pid, resource.RLIMIT_FSIZE, room)
    told.update(emulator.publish(b"there is room again"))
    emulator.kill()
    emulator = start()
    assert emulator.drain().keys() == told
    assert {topic.name for topic in emulator.publisher.list_topics(project=PROJECT)} == made


def test_a_full_disk_ends_a_stream_that_acknowledges_as_it_fails_a_call(start):
    emulator = start()
    subscribed(emulator)
    emulator.publish(*[b"%d" % number for number in range(100)])
    acks: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
    acks.put({"subscription": SUBSCRIPTION, "stream_ack_deadline_seconds": 60})
    requests = iter(acks.get, None)
    stream = emulator.subscriber.streaming_pull(requests=requests, timeout=CALL_S, retry=None)
    received = next(iter(stream)).received_messages
    resource.prlimit(emulator.process.pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
    acks.put({"ack_ids": [one.ack_id for one in received]})
    with pytest.raises(ResourceExhausted, match="the journal cannot be written"):
        next(iter(stream))
    acks.put(None)


def test_a_folder_is_free_after_the_end_whatever_was_forked_meanwhile(tmp_path):
    emulator = PubSubEmulator(data_dir=tmp_path).start()
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    try:
        emulator.stop()
        with PubSubEmulator(data_dir=tmp_path):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_the_end_of_a_forked_child_leaves_the_emulator_alone(tmp_path, monkeypatch):
    with PubSubEmulator(data_dir=tmp_path) as emulator:
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", emulator.address)
        child = os.fork()
        if child == 0:
            emulator.stop()
            os._exit(7)
        deadline = time.monotonic() + 5
        while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
            if time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                pytest.fail("stop() hangs in the child")
            time.sleep(0.01)
        assert os.waitstatus_to_exitcode(ended[1]) == 7
        service = Service(emulator)
        service.topic()
        service.close()
        with pytest.raises(ConfigError, match="another emulator keeps its data"):
            PubSubEmulator(data_dir=tmp_path).start()


def test_a_folder_serves_one_emulator_at_a_time(start, tmp_path):
    start()
    command = [sys.executable, "-c", MAIN, "pubsub", "emulator", "--port", "0", "--data-dir", str(tmp_path / "data")]
    second = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (second.returncode, second.stdout) == (1, "")
    line = second.stderr.splitlines()[-1]
    assert f"another emulator keeps its data in {tmp_path / 'data'}" in line
    assert "Stop it, or give this one a folder of its own." in line


def test_a_damaged_journal_is_an_error_that_says_where(start, tmp_path):
    emulator = start()
    subscribed(emulator)
    emulator.publish(b"precious" * 100)
    emulator.kill()
    journal = tmp_path / "data" / "journal"
    content = bytearray(journal.read_bytes())
    content[content.index(b"precious") + 3] ^= 1
    journal.write_bytes(content)
    with pytest.raises(ConfigError, match=r"is damaged at byte \d+") as caught:
        PubSubEmulator(data_dir=tmp_path / "data").start()
    at = re.search(r"at byte (\d+)", str(caught.value))[1]
    assert f"truncate --size {at} {journal}" in str(caught.value)


def test_it_ends_in_order_on_sigterm_and_keeps_everything(start):
    emulator = start()
    subscribed(emulator)
    ids = emulator.publish(b"1", b"2")
    emulator.process.send_signal(signal.SIGTERM)
    assert emulator.process.wait(10) == 0
    assert start().drain().keys() == set(ids)


def test_the_test_double_keeps_its_data_too(tmp_path, monkeypatch):
    for life in range(3):
        with PubSubEmulator(data_dir=tmp_path) as emulator:
            monkeypatch.setenv("PUBSUB_EMULATOR_HOST", emulator.address)
            service = Service(emulator)
            if life == 0:
                service.subscription(service.topic())
            assert len(service.pull(SUBSCRIPTION)) == life
            service.publish(TOPIC, b"%d" % life)
            service.close()
    with PubSubEmulator(data_dir=tmp_path) as emulator:
        assert emulator.counters(SUBSCRIPTION)["backlog"] == 3


def test_an_acknowledgement_that_a_stream_confirmed_survives(start):
    emulator = start()
    subscribed(emulator, enable_exactly_once_delivery=True)
    emulator.publish(*[b"%d" % number for number in range(100)])
    acks: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
    acks.put({"subscription": SUBSCRIPTION, "stream_ack_deadline_seconds": 60})
    confirmed = 0
    requests = iter(acks.get, None)
    for response in emulator.subscriber.streaming_pull(requests=requests, timeout=CALL_S, retry=None):
        if response.received_messages:
            acks.put({"ack_ids": [one.ack_id for one in response.received_messages]})
        confirmed += len(response.acknowledge_confirmation.ack_ids)
        if confirmed == 100:
            break
    emulator.kill()
    acks.put(None)
    assert start().drain() == {}
