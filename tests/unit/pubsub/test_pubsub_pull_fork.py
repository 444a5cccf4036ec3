"""Processes that fork after they have used Pub/Sub, as Spark's workers do."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest

from solstice.testing import PubSubEmulator

TOPIC = "projects/test/topics/events"


@pytest.fixture
def emulator() -> Iterator[PubSubEmulator]:
    with PubSubEmulator() as emulator:
        emulator.create_topic(TOPIC)
        for process in ("parent", "child"):
            emulator.create_subscription(f"projects/test/subscriptions/{process}", TOPIC)
        yield emulator


def run(emulator: PubSubEmulator, code: str) -> str:
    """Run code in a process that has published and pulled; a hang ends as an error of this test."""
    begin = """
        import os, sys, traceback
        import pyarrow as pa
        from solstice.errors import ConfigError
        from solstice.pubsub import publish, pull

        def send(who):
            publish("projects/test/topics/events", pa.table({"data": [who.encode()] * 10}))

        def receive(who, count):
            seen = []
            with pull(f"projects/test/subscriptions/{who}") as puller:
                while len(seen) < count:
                    batch = next(puller)
                    seen += batch.rows["data"].to_pylist()
                    batch.ack()
            return len(seen)

        def forked(work):
            pid = os.fork()
            if pid == 0:
                try:
                    work()
                except BaseException:
                    traceback.print_exc()
                    os._exit(1)
                os._exit(0)
            return pid

        def joined(pid):
            assert os.waitpid(pid, 0)[1] == 0, "the child failed"
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(begin) + textwrap.dedent(code)],
        env=os.environ | {"PUBSUB_EMULATOR_HOST": emulator.address},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_both_processes_publish_and_pull_after_a_fork(emulator) -> None:
    run(
        emulator,
        """
        send("before")
        assert receive("parent", 10) == 10
        child = forked(lambda: (send("child"), receive("child", 30)))
        send("parent")
        assert receive("parent", 20) == 20
        joined(child)
        """,
    )
    for process in ("parent", "child"):
        assert emulator.counters(f"projects/test/subscriptions/{process}")["acked"] == 30


def test_a_puller_of_the_parent_is_refused_in_the_child_and_serves_the_parent_on(emulator) -> None:
    out = run(
        emulator,
        """
        send("before")
        with pull("projects/test/subscriptions/parent") as puller:
            batch = next(puller)
            pending = batch._native.ack

            def use():
                for name, attempt in (
                    ("next", lambda: next(puller)), ("ack", batch.ack), ("nack", batch.nack), ("stats", puller.stats),
                    ("close", puller.close), ("expired", lambda: batch.expired),
                ):
                    try:
                        attempt()
                    except ConfigError as error:
                        assert "forked" in str(error), error
                        print(name)
                print(len(batch), batch.rows.num_rows, flush=True)

            def drop():
                global puller, batch, pending
                del puller, batch, pending
                send("child")

            joined(forked(use))
            joined(forked(drop))
            batch.ack()
            assert sum(len(next(puller)) for _ in range(1)) == 10
        """,
    )
    assert out.split() == ["next", "ack", "nack", "stats", "close", "expired", "10", "10"]
    counters = emulator.counters("projects/test/subscriptions/parent")
    assert (counters["acked"], counters["outstanding"]) == (10, 0)
