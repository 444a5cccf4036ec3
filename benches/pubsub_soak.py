"""Publish, pull and acknowledge for many minutes at half the peak rate: the memory of each process must stay flat.

Three processes: the emulator, a publisher, a puller. The peak is measured first, by letting them run unbounded.
"""

import argparse
import json
import os
import subprocess
import sys
import time

import psutil
from _report import Row, report

TOPIC, SUBSCRIPTION = "projects/bench/topics/soak", "projects/bench/subscriptions/soak"
PEAK_S, SAMPLE_S, CHUNK = 20.0, 10.0, 20_000
# The first samples are left out of the comparison: buffers and allocators fill up.
WARM_UP_SHARE = 0.2
GROWTH_LIMIT = 1.10


def serve() -> None:
    """The emulator; ends with its standard input."""
    from solstice.testing import PubSubEmulator

    with PubSubEmulator() as emulator:
        emulator.create_topic(TOPIC)
        emulator.create_subscription(SUBSCRIPTION, TOPIC, ack_deadline_s=60)
        print(emulator.address, flush=True)
        for _ in sys.stdin:
            counters = emulator.counters(SUBSCRIPTION) | {"published": emulator.published(TOPIC)}
            print(json.dumps(counters), flush=True)


def feed(rate: float) -> None:
    """Publish ``rate`` messages a second (0: as fast as it goes), until killed."""
    import pyarrow as pa

    from solstice.pubsub import publish

    attributes = pa.array(
        [[("key", str(row)), ("origin", "soak")] for row in range(CHUNK)], pa.map_("string", "string")
    )
    table = pa.table({"data": pa.array([bytes(200)] * CHUNK), "attributes": attributes})
    due = time.monotonic()
    while True:
        publish(TOPIC, table)
        if rate:
            due += CHUNK / rate
            time.sleep(max(0.0, due - time.monotonic()))


def drain() -> None:
    """Pull and acknowledge, until killed."""
    from solstice.pubsub import pull

    with pull(SUBSCRIPTION) as puller:
        for batch in puller:
            batch.ack()


class Soak:
    """The three processes, ended together."""

    def __init__(self) -> None:
        self._emulator = self._start("serve", os.environ.copy(), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._emulator.stdout is not None
        address = self._emulator.stdout.readline().decode().strip()
        self._environment = os.environ | {"PUBSUB_EMULATOR_HOST": address}
        self._puller = self._start("drain", self._environment)
        self._publisher: subprocess.Popen[bytes] | None = None

    def _start(self, role: str, environment: dict[str, str], **pipes: int) -> "subprocess.Popen[bytes]":
        return subprocess.Popen([sys.executable, __file__, "--role", role], env=environment, **pipes)

    def publish_at(self, rate: float) -> None:
        """Replace the publisher."""
        if self._publisher is not None:
            self._publisher.kill()
            self._publisher.wait()
        command = [sys.executable, __file__, "--role", "feed", "--rate", str(rate)]
        self._publisher = subprocess.Popen(command, env=self._environment)

    def counters(self) -> dict[str, int]:
        """The emulator's counts."""
        assert self._emulator.stdin is not None
        assert self._emulator.stdout is not None
        self._emulator.stdin.write(b"\n")
        self._emulator.stdin.flush()
        counts: dict[str, int] = json.loads(self._emulator.stdout.readline())
        return counts

    def memory_mb(self) -> dict[str, float]:
        """The resident memory of each process."""
        assert self._publisher is not None
        processes = {"emulator": self._emulator, "puller": self._puller, "publisher": self._publisher}
        return {name: psutil.Process(process.pid).memory_info().rss / 1e6 for name, process in processes.items()}

    def stop(self) -> None:
        """End all three."""
        for process in (self._publisher, self._puller, self._emulator):
            if process is not None:
                process.kill()
                process.wait()


def soak(minutes: float) -> None:
    """Run, sample, compare."""
    run = Soak()
    try:
        run.publish_at(0)
        time.sleep(PEAK_S / 4)
        before, at = run.counters(), time.monotonic()
        time.sleep(PEAK_S)
        peak = (run.counters()["acked"] - before["acked"]) / (time.monotonic() - at)
        run.publish_at(peak / 2)
        samples: list[dict[str, float]] = []
        before, at = run.counters(), time.monotonic()
        while time.monotonic() - at < minutes * 60:
            time.sleep(SAMPLE_S)
            samples.append(run.memory_mb() | {"backlog": run.counters()["backlog"]})
        counters, seconds = run.counters(), time.monotonic() - at
    finally:
        run.stop()
    rate = (counters["acked"] - before["acked"]) / seconds
    samples = samples[int(len(samples) * WARM_UP_SHARE) :]
    third = max(1, len(samples) // 3)
    rows = [Row(f"rate over {seconds / 60:.0f} min", "messages/s", rate, "half the peak", peak / 2)]
    for name in ("emulator", "puller", "publisher"):
        first, last = (max(sample[name] for sample in part) for part in (samples[:third], samples[-third:]))
        rows.append(
            Row(f"{name}: last third's peak memory", "MB", last, "first third's", first, False, first * GROWTH_LIMIT)
        )
    notes = [
        f"peak {peak:,.0f} messages/s; {json.dumps(counters)}",
        f"most backlog {max(s['backlog'] for s in samples):,.0f}",
    ]
    report("pubsub-soak", rows, notes)


def main() -> None:
    """One role, or the whole."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--role", choices=["serve", "feed", "drain"])
    parser.add_argument("--rate", type=float, default=0.0)
    parser.add_argument("--minutes", type=float, default=30.0)
    asked = parser.parse_args()
    if asked.role == "serve":
        serve()
    elif asked.role == "feed":
        feed(asked.rate)
    elif asked.role == "drain":
        drain()
    else:
        soak(asked.minutes)


if __name__ == "__main__":
    main()
