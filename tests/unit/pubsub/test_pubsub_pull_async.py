"""Pulling in an event loop, against a real emulator."""

import asyncio
import os
import threading
import time
from collections.abc import Iterator

import pyarrow as pa
import pytest

from solstice.errors import NotFoundError, PullerClosedError
from solstice.pubsub import AsyncPuller, publish, pull_async
from solstice.testing import PubSubEmulator

TOPIC = "projects/test/topics/events"
SUBSCRIPTION = "projects/test/subscriptions/events"


@pytest.fixture
def emulator() -> Iterator[PubSubEmulator]:
    with PubSubEmulator() as emulator:
        emulator.create_topic(TOPIC)
        emulator.create_subscription(SUBSCRIPTION, TOPIC)
        yield emulator


def send(emulator: PubSubEmulator, count: int) -> set[bytes]:
    payloads = [f"event-{number}".encode() for number in range(count)]
    publish(TOPIC, pa.table({"data": payloads}), emulator_host=emulator.address)
    return set(payloads)


def puller_of(emulator: PubSubEmulator, **options) -> AsyncPuller:
    return pull_async(SUBSCRIPTION, emulator_host=emulator.address, **options)


def test_batches_are_iterated_and_acked(emulator) -> None:
    sent = send(emulator, 2_500)

    async def consume() -> set[bytes]:
        seen: set[bytes] = set()
        async with puller_of(emulator, max_batch_rows=1_000, idle_s=0.3) as puller:
            async for batch in puller:
                seen |= set(batch.rows["data"].to_pylist())
                await batch.ack()
            assert puller.stats()["acked"] == 2_500
        return seen

    assert asyncio.run(consume()) == sent
    assert emulator.counters(SUBSCRIPTION)["acked"] == 2_500


def test_waiting_neither_blocks_the_loop_nor_takes_a_thread(emulator) -> None:
    async def consume() -> tuple[int, set[str]]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.01)
                ticks += 1

        async with puller_of(emulator, idle_s=0.5) as puller:
            ticking = asyncio.create_task(tick())
            assert [batch async for batch in puller] == []
            ticking.cancel()
        return ticks, {thread.name for thread in threading.enumerate()}

    ticks, threads = asyncio.run(consume())
    assert ticks > 10
    assert not any(name.startswith("asyncio") for name in threads)


def test_many_pullers_wait_in_one_loop(emulator) -> None:
    async def first(puller: AsyncPuller) -> int:
        async with puller:
            async for batch in puller:
                await batch.ack()
                return len(batch)
        return 0

    async def consume() -> list[int]:
        waiting = [asyncio.create_task(first(puller_of(emulator, max_outstanding_messages=10))) for _ in range(10)]
        await asyncio.sleep(0.2)
        await asyncio.to_thread(send, emulator, 1_000)
        return await asyncio.gather(*waiting)

    assert all(asyncio.run(consume()))


def test_a_cancelled_task_gives_back_what_it_holds(emulator) -> None:
    send(emulator, 100)

    async def consume(holding: asyncio.Event) -> None:
        async with puller_of(emulator) as puller:
            async for _ in puller:
                holding.set()

    async def cancel() -> None:
        holding = asyncio.Event()
        task = asyncio.create_task(consume(holding))
        await holding.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    began = time.monotonic()
    asyncio.run(cancel())
    assert time.monotonic() - began < 5
    counters = emulator.counters(SUBSCRIPTION)
    assert (counters["outstanding"], counters["nacked"], counters["acked"]) == (0, 100, 0)


def test_a_wait_that_is_given_up_loses_no_batch(emulator) -> None:
    async def consume() -> int:
        async with puller_of(emulator) as puller:
            for _ in range(5):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(puller), 0.02)
            await asyncio.to_thread(send, emulator, 10)
            batch = await anext(puller)
            await batch.nack()
            batch = await anext(puller)
            await batch.ack()
            return len(batch)

    assert asyncio.run(consume()) == 10
    assert emulator.counters(SUBSCRIPTION)["acked"] == 10


def test_an_ack_whose_wait_was_cancelled_goes_on_and_can_be_waited_for_again(emulator) -> None:
    send(emulator, 10)
    emulator.faults.delay("Acknowledge", 0.5)

    async def consume() -> None:
        async with puller_of(emulator) as puller:
            batch = await anext(puller)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(batch.ack(), 0.1)
            await batch.ack()
            assert emulator.counters(SUBSCRIPTION)["acked"] == 10

    asyncio.run(consume())


def test_an_ack_that_has_no_answer_at_the_end_does_not_say_that_the_messages_were_given_back(emulator) -> None:
    send(emulator, 10)
    emulator.faults.delay("Acknowledge", 60)

    async def consume() -> None:
        async with puller_of(emulator) as puller:
            batch = await anext(puller)
            acking = asyncio.create_task(batch.ack())
            await asyncio.sleep(0)
        with pytest.raises(PullerClosedError, match="before Pub/Sub answered"):
            await acking

    asyncio.run(consume())


def test_tasks_that_wait_for_one_ack_all_hear_of_it(emulator) -> None:
    send(emulator, 10)
    emulator.faults.delay("Acknowledge", 0.3)

    async def consume() -> None:
        async with puller_of(emulator) as puller:
            batch = await anext(puller)
            await asyncio.wait_for(asyncio.gather(*(batch.ack() for _ in range(5))), 20)

    descriptors = len(os.listdir("/proc/self/fd"))
    asyncio.run(consume())
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 1  # the connection to the emulator
    assert emulator.counters(SUBSCRIPTION)["acked"] == 10


def test_a_batch_is_of_no_use_after_the_end(emulator) -> None:
    send(emulator, 10)

    async def consume() -> None:
        async with puller_of(emulator) as puller:
            batch = await anext(puller)
        with pytest.raises(PullerClosedError):
            await batch.ack()
        with pytest.raises(PullerClosedError):
            await anext(puller)

    asyncio.run(consume())


def test_an_error_of_opening_is_raised_where_it_is_awaited(emulator) -> None:
    async def consume() -> None:
        async with pull_async("projects/test/subscriptions/nobody", emulator_host=emulator.address):
            pass

    with pytest.raises(NotFoundError, match="nobody"):
        asyncio.run(consume())
