"""Publishing Arrow data: what is taken, what comes back, what arrives."""

import asyncio
import os
import pickle
import signal
import threading
import time
from collections.abc import Iterator

import polars as pl
import pyarrow as pa
import pytest

from solstice.errors import ConfigError, NotFoundError, PermissionDeniedError, PublishError, UnavailableError
from solstice.pubsub import Publisher, publish, publish_async, pull
from solstice.testing import PubSubEmulator
from waiting import wait_until

TOPIC, SUBSCRIPTION = "projects/test/topics/events", "projects/test/subscriptions/events"
MAP = pa.map_(pa.string(), pa.string())


@pytest.fixture
def emulator(monkeypatch: pytest.MonkeyPatch) -> Iterator[PubSubEmulator]:
    with PubSubEmulator() as emulator:
        emulator.create_topic(TOPIC)
        emulator.create_subscription(SUBSCRIPTION, TOPIC, enable_message_ordering=True)
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", emulator.address)
        yield emulator


def arrived(count: int) -> list[dict]:
    """The messages of the subscription, once so many are there."""
    rows: list[dict] = []
    with pull(SUBSCRIPTION, idle_s=20) as puller:
        for batch in puller:
            rows += batch.rows.to_pylist()
            batch.ack()
            if len(rows) >= count:
                break
    return rows


def test_data_attributes_and_keys_arrive_as_they_were_published(emulator):
    table = pa.table(
        {
            "data": [b"a\xff", b"b", None],
            "attributes": pa.array([[("k", "v"), ("l", "")], None, [("only", "ü"), ("none", None)]], MAP),
            "ordering_key": ["o", None, ""],
        }
    )
    assert publish(TOPIC, table).published == 3
    rows = sorted(arrived(3), key=lambda row: row["data"] or b"")
    assert [(row["data"], dict(row["attributes"]), row["ordering_key"]) for row in rows] == [
        (b"", {"only": "ü"}, None),
        (b"a\xff", {"k": "v", "l": ""}, "o"),
        (b"b", {}, None),
    ]


def test_every_layout_of_strings_and_bytes_can_be_published(emulator):
    layouts = [pa.binary(), pa.large_binary(), pa.binary_view(), pa.string(), pa.large_string(), pa.string_view()]
    arrays = [pa.array(["x"], layout) for layout in layouts] + [pa.array(["x"]).dictionary_encode()]
    for array in arrays:
        assert publish(TOPIC, pa.table({"data": array})).published == 1
    entries = [[{"name": "k", "value": "v"}], None]
    frame = pl.DataFrame({"data": ["a", "b"], "ordering_key": ["k", None], "attributes": entries})
    assert publish(TOPIC, frame).published == 2
    assert publish(TOPIC, pa.record_batch({"data": ["x"]})).published == 1
    assert emulator.published(TOPIC) == len(arrays) + 3
    assert [row["attributes"] for row in arrived(len(arrays) + 3) if row["data"] == b"a"] == [[("k", "v")]]


def test_ids_come_back_in_the_order_of_the_rows(emulator):
    count = 5_000
    numbers = [str(number) for number in range(count)]
    keys = [f"k{number % 3}" if number % 2 else None for number in range(count)]
    result = publish(TOPIC, pa.table({"data": numbers, "ordering_key": keys}), return_ids=True, batch_size=100)
    by_id = {row["message_id"]: row["data"].decode() for row in arrived(count)}
    assert [by_id[message_id] for message_id in result.message_ids.to_pylist()] == numbers
    assert publish(TOPIC, pa.table({"data": ["x"]})).message_ids is None


def test_nothing_to_publish_is_published(emulator):
    result = publish(TOPIC, pa.table({"data": pa.array([], pa.binary())}), return_ids=True)
    assert (result.published, result.message_ids.to_pylist()) == (0, [])
    with Publisher(TOPIC):
        pass


def test_rows_of_one_ordering_key_arrive_in_their_order(emulator):
    count = 20_000
    numbers, keys = list(range(count)), [f"k{number % 5}" for number in range(count)]
    publish(TOPIC, pa.table({"data": [str(number) for number in numbers], "ordering_key": keys}))
    rows = arrived(count)
    for key in set(keys):
        of_key = [int(row["data"]) for row in rows if row["ordering_key"] == key]
        assert of_key == [number for number in numbers if keys[number] == key]


def test_requests_keep_to_the_sizes_asked_for(emulator):
    publish(TOPIC, pa.table({"data": [b"x" * 1000] * 100}), batch_size=7)
    assert emulator.calls()["Publish"] == 15
    publish(TOPIC, pa.table({"data": [b"x" * 1000] * 100}), max_batch_bytes=10_300)
    assert emulator.calls()["Publish"] == 25


def test_compressed_requests_arrive(emulator):
    publish(TOPIC, pa.table({"data": [b"x" * 1000] * 100}), compression="gzip")
    assert {row["data"] for row in arrived(100)} == {b"x" * 1000}


def test_an_iterable_of_tables_is_published_as_it_comes(emulator):
    def tables() -> Iterator[pa.Table]:
        for number in range(3):
            yield pa.table({"data": [str(number)]})
            wait_until(lambda number=number: emulator.published(TOPIC) == number + 1)

    assert publish(TOPIC, tables(), linger_ms=20).published == 3


def test_what_is_no_arrow_data_is_refused(emulator):
    for wrong in ([b"x"], 7, pa.array(["x"]).to_pylist()):
        with pytest.raises(TypeError, match="__arrow_c_stream__"):
            publish(TOPIC, wrong)


def test_columns_that_are_no_part_of_a_message_are_named(emulator):
    for table, problem in [
        ({"x": [1]}, "column 'x' is no part of a message"),
        ({"data": ["x"], "message_id": ["1"]}, "column 'message_id' is no part of a message"),
        ({"ordering_key": ["k"]}, "no column 'data'"),
        ({"data": [1]}, "column 'data' is Int64"),
    ]:
        with pytest.raises(ConfigError, match=problem):
            publish(TOPIC, pa.table(table))
    assert emulator.published(TOPIC) == 0


def test_a_message_of_11_mb_is_refused_by_row_and_column_before_its_batch_is_sent(emulator):
    with pytest.raises(PublishError, match="row 2 of column 'data': a message of 11000005 bytes") as caught:
        publish(TOPIC, pa.table({"data": [b"x", b"y", b"z" * 11_000_000, b"w"]}))
    assert emulator.published(TOPIC) == caught.value.published == 0
    first, large, last = caught.value.failures
    assert (first.rows, large.rows, last.rows) == (range(2), range(2, 3), range(3, 4))
    assert (first.column, large.column) == (None, "data")
    assert pickle.loads(pickle.dumps(caught.value)).failures == caught.value.failures


def test_rows_before_the_refused_batch_are_published_and_counted(emulator):
    tables = [pa.table({"data": ["a", "b"]}), pa.table({"data": ["c", ""]}), pa.table({"data": ["d"]})]
    with pytest.raises(PublishError, match=r"published 2 of 4 rows .* row 3 of column 'data': neither") as caught:
        publish(TOPIC, iter(tables))
    assert emulator.published(TOPIC) == caught.value.published == 2


def test_an_error_tells_all_rows_to_publish_again_also_those_that_were_not_looked_at(emulator):
    rows = [b"%d" % row for row in range(10)]
    broken = pa.array([*rows[:5], None, *rows[6:]], pa.binary())
    table = pa.Table.from_batches(pa.table({"data": broken}).to_batches(max_chunksize=2))
    with pytest.raises(PublishError, match="and what follows row 5") as caught:
        publish(TOPIC, table)
    again = [row for failure in caught.value.failures for row in failure.rows]
    again += range(caught.value.taken, len(rows))
    assert again == list(range(4, 10))
    publish(TOPIC, pa.table({"data": [rows[row] for row in again]}))
    assert emulator.published(TOPIC) == len(rows)


def test_a_missing_topic_says_so_at_once(emulator):
    began = time.monotonic()
    with pytest.raises(NotFoundError, match="projects/test/topics/nobody") as caught:
        publish("nobody", pa.table({"data": ["x"] * 100_000}), project_id="test")
    assert caught.value.code == "NOT_FOUND"
    assert time.monotonic() - began < 5


def test_a_missing_permission_names_the_role(emulator):
    emulator.deny("pubsub.topics.publish")
    with pytest.raises(PermissionDeniedError, match=r"roles/pubsub\.publisher"):
        publish(TOPIC, pa.table({"data": ["x"]}))


def test_nobody_at_the_address_is_said_with_the_fix():
    with pytest.raises(UnavailableError, match="solstice pubsub emulator"):
        publish(TOPIC, pa.table({"data": ["x"]}), emulator_host="127.0.0.1:1")


@pytest.mark.parametrize(
    ("option", "value"), [("batch_size", 1001), ("max_batch_bytes", 10_000_001), ("compression", "zip")]
)
def test_options_out_of_bounds_are_refused(option, value):
    with pytest.raises(ConfigError, match=str(value)):
        Publisher(TOPIC, emulator_host="127.0.0.1:1", **{option: value})


def test_an_unknown_option_is_refused():
    with pytest.raises(TypeError, match="batch_sise"):
        publish(TOPIC, pa.table({"data": ["x"]}), batch_sise=3)


def test_a_publisher_takes_pieces_and_flushes_them(emulator):
    with Publisher(TOPIC, linger_ms=60_000) as publisher:
        publisher.publish(pa.table({"data": ["a"]}))
        publisher.publish(pa.table({"data": ["b"]}))
        assert (publisher.published(), emulator.published(TOPIC)) == (0, 0)
        assert publisher.flush().published == 2
        publisher.publish(pa.table({"data": ["c"]}))
    assert publisher.published() == emulator.published(TOPIC) == 3


def test_an_error_that_leaves_the_block_stops_the_sending_and_notes_the_count(emulator):
    publisher = Publisher(TOPIC, linger_ms=60_000)

    def fail_in_the_block() -> None:
        with publisher:
            publisher.publish(pa.table({"data": ["a"]}))
            publisher.flush()
            publisher.publish(pa.table({"data": ["b"]}))
            raise RuntimeError

    with pytest.raises(RuntimeError) as caught:
        fail_in_the_block()
    assert caught.value.__notes__ == [f"1 messages were published to {TOPIC} before."]
    with pytest.raises(PublishError, match="interrupted"):
        publisher.publish(pa.table({"data": ["c"]}))
    assert emulator.published(TOPIC) == 1


@pytest.mark.parametrize("waits_in", ["publish", "flush"])
def test_ctrl_c_is_noticed_at_once_and_says_how_many_were_published(emulator, waits_in):
    publish(TOPIC, pa.table({"data": ["warm"]}))
    emulator.faults.delay("Publish", 60, times=1_000_000)
    table = pa.table({"data": [b"x" * 1_000_000] * (200 if waits_in == "publish" else 3)})
    sent_at = []

    def interrupt() -> None:
        wait_until(lambda: emulator.calls()["Publish"] > 1)
        time.sleep(0.3)  # so that it does wait
        sent_at.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt) as caught:
        publish(TOPIC, table)
    noticed_after = time.monotonic() - sent_at[0]
    thread.join()
    assert noticed_after < 0.5
    assert caught.value.__notes__ == [f"0 messages were published to {TOPIC} before."]


def test_publishing_in_an_event_loop_does_not_block_it(emulator):
    emulator.faults.delay("Publish", 0.5)

    async def both() -> tuple[int, int]:
        publishing = asyncio.ensure_future(publish_async(TOPIC, pa.table({"data": ["x"] * 10})))
        ticks = 0
        while not publishing.done():
            await asyncio.sleep(0.01)
            ticks += 1
        return (await publishing).published, ticks

    published, ticks = asyncio.run(both())
    assert published == 10
    assert ticks > 20


def test_cancelling_in_an_event_loop_stops_the_sending(emulator):
    given = 0

    def endless() -> Iterator[pa.Table]:
        nonlocal given
        while True:
            given += 1
            yield pa.table({"data": ["x"] * 100})

    async def cancelled() -> None:
        publishing = asyncio.ensure_future(publish_async(TOPIC, endless()))
        await asyncio.to_thread(wait_until, lambda: emulator.published(TOPIC) > 0)
        publishing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await publishing

    asyncio.run(cancelled())
    # asyncio.run waits for the thread, which ended by itself. What was on the wire may still arrive.
    after = given

    def nothing_more_arrives() -> bool:
        before = emulator.published(TOPIC)
        time.sleep(0.2)
        return emulator.published(TOPIC) == before

    wait_until(nothing_more_arrives)
    assert given == after


def test_a_failure_in_an_event_loop_is_the_same_error(emulator):
    with pytest.raises(PublishError, match="row 1 of column 'data'"):
        asyncio.run(publish_async(TOPIC, pa.table({"data": ["x", ""]})))


def test_parent_and_child_publish_after_a_fork(emulator):
    with Publisher(TOPIC) as publisher:
        publisher.publish(pa.table({"data": ["parent"]}))
        publisher.flush()
        pid = os.fork()
        if pid == 0:
            status = 1
            signal.alarm(30)
            try:
                assert publish(TOPIC, pa.table({"data": ["child"] * 1_000})).published == 1_000
                with pytest.raises(ConfigError, match="forked"):
                    publisher.publish(pa.table({"data": ["x"]}))
                del publisher
                status = 0
            finally:
                os._exit(status)  # not even pytest's own clean-up may run in the child
        publisher.publish(pa.table({"data": ["parent"] * 1_000}))
    assert os.waitpid(pid, 0)[1] == 0
    assert emulator.published(TOPIC) == 2_001
