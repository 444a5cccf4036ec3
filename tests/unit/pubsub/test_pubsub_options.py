import pytest

from solstice.errors import ConfigError, InvalidRequestError, UnknownOptionError
from solstice.pubsub import publish
from solstice.pubsub._options import SOURCE_OPTIONS, resource_name

FULL = "projects/p/subscriptions/s"


def parse(**options: str):
    return SOURCE_OPTIONS.parse(options, environ={})


def test_a_full_name_needs_no_project() -> None:
    assert resource_name("subscriptions", FULL, parse(subscriptionId=FULL)) == FULL


def test_a_short_name_is_completed_from_the_option_or_the_environment() -> None:
    assert resource_name("subscriptions", "s", parse(subscriptionId="s", projectId="p")) == FULL
    from_environment = SOURCE_OPTIONS.parse({"subscriptionId": "s"}, environ={"GOOGLE_CLOUD_PROJECT": "p"})
    assert resource_name("subscriptions", "s", from_environment) == FULL


@pytest.mark.parametrize("name", ["projects/p/topics/t", "projects//subscriptions/s", "a/b"])
def test_a_name_of_another_kind_is_refused_with_the_right_form(name: str) -> None:
    with pytest.raises(ConfigError, match="projects/PROJECT/subscriptions/NAME"):
        resource_name("subscriptions", name, parse(subscriptionId=name))


def test_a_short_name_without_a_project_says_where_to_set_it() -> None:
    with pytest.raises(ConfigError, match="GOOGLE_CLOUD_PROJECT"):
        resource_name("subscriptions", "s", parse(subscriptionId="s"))


def test_the_subscription_is_required() -> None:
    with pytest.raises(ConfigError, match="subscriptionId"):
        parse()


def test_an_unknown_option_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UnknownOptionError, match="maxMessagesPerTrigger"):
        parse(subscriptionId=FULL, maxMessagePerTrigger="3")


def test_an_ack_deadline_out_of_bounds_names_option_and_value() -> None:
    with pytest.raises(ConfigError, match=r"ackDeadline.*5s|5s.*ackDeadline"):
        parse(subscriptionId=FULL, ackDeadline="5s")


def test_only_arrow_data_can_be_published() -> None:
    with pytest.raises(TypeError, match="__arrow_c_stream__"):
        publish("projects/p/topics/ttt", [b"x"], emulatorHost="127.0.0.1:1")


def test_a_table_without_data_is_refused() -> None:
    import pyarrow as pa

    from solstice.testing import PubSubEmulator

    with PubSubEmulator() as emulator:
        emulator.create_topic("projects/p/topics/ttt")
        with pytest.raises(ConfigError, match="no column 'data'"):
            publish("projects/p/topics/ttt", pa.table({"x": [1]}), emulatorHost=emulator.address)
        with pytest.raises(ConfigError, match="column 'data' is Int64"):
            publish("projects/p/topics/ttt", pa.table({"data": [1]}), emulatorHost=emulator.address)
        with pytest.raises(InvalidRequestError, match="row 2 has neither data nor attributes"):
            publish("projects/p/topics/ttt", pa.table({"data": ["a", "b", None]}), emulatorHost=emulator.address)
        too_large = pa.table({"data": [b"x", b"x" * 11_000_000]})
        with pytest.raises(InvalidRequestError, match="row 1 has 11000"):
            publish("projects/p/topics/ttt", too_large, emulatorHost=emulator.address)


def test_every_layout_of_strings_and_bytes_can_be_published() -> None:
    import polars as pl
    import pyarrow as pa

    from solstice.testing import PubSubEmulator

    topic = "projects/p/topics/ttt"
    layouts = [pa.binary(), pa.large_binary(), pa.binary_view(), pa.string(), pa.large_string(), pa.string_view()]
    with PubSubEmulator() as emulator:
        emulator.create_topic(topic)
        for layout in layouts:
            assert publish(topic, pa.table({"data": pa.array(["x"], layout)}), emulatorHost=emulator.address) == 1
        frame = pl.DataFrame({"data": ["a", "b"], "ordering_key": ["k", None]})
        assert publish(topic, frame, emulatorHost=emulator.address) == 2
        assert emulator.published(topic) == len(layouts) + 2


def test_attributes_and_ordering_keys_arrive_as_they_were_published() -> None:
    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadMaxRows

    from solstice.pubsub._reader import PubSubStreamReader
    from solstice.testing import PubSubEmulator

    topic, subscription = "projects/p/topics/ttt", "projects/p/subscriptions/sss"
    table = pa.table(
        {
            "data": ["a", "b"],
            "attributes": pa.array([[("k", "v"), ("l", "")], None], pa.map_(pa.string(), pa.string())),
            "ordering_key": ["o", None],
        }
    )
    with PubSubEmulator() as emulator:
        emulator.create_topic(topic)
        emulator.create_subscription(subscription, topic)
        assert publish(topic, table, emulatorHost=emulator.address) == 2
        reader = PubSubStreamReader(parse(subscriptionId=subscription, emulatorHost=emulator.address))
        start, rows = reader.initialOffset(), []
        while len(rows) < 2:
            end = reader.latestOffset(start, ReadMaxRows(10))
            rows += [row for p in reader.partitions(start, end) for b in reader.read(p) for row in b.to_pylist()]
            start = end
        reader.stop()
    assert sorted((row["data"], sorted(row["attributes"]), row["ordering_key"]) for row in rows) == [
        (b"a", [("k", "v"), ("l", "")], "o"),
        (b"b", [], None),
    ]


def test_rows_of_one_ordering_key_are_published_in_their_order() -> None:
    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadMaxRows

    from solstice.pubsub._reader import PubSubStreamReader
    from solstice.testing import PubSubEmulator

    topic, subscription, count = "projects/p/topics/ttt", "projects/p/subscriptions/sss", 20_000
    numbers = [str(number) for number in range(count)]
    with PubSubEmulator() as emulator:
        emulator.create_topic(topic)
        emulator.create_subscription(subscription, topic, enable_message_ordering=True)
        publish(topic, pa.table({"data": numbers, "ordering_key": ["k"] * count}), emulatorHost=emulator.address)
        reader = PubSubStreamReader(
            parse(subscriptionId=subscription, emulatorHost=emulator.address, numPartitions="1")
        )
        start, rows = reader.initialOffset(), []
        while len(rows) < count:
            end = reader.latestOffset(start, ReadMaxRows(count))
            rows += [r for p in reader.partitions(start, end) for b in reader.read(p) for r in b["data"].to_pylist()]
            start = end
        reader.stop()
    assert [row.decode() for row in rows] == numbers


def test_an_error_of_the_service_carries_its_status_as_grpc_spells_it() -> None:
    import pyarrow as pa

    from solstice.errors import NotFoundError
    from solstice.testing import PubSubEmulator

    with PubSubEmulator() as emulator, pytest.raises(NotFoundError) as caught:
        publish("projects/p/topics/nobody", pa.table({"data": ["x"]}), emulatorHost=emulator.address)
    assert caught.value.code == "NOT_FOUND"
