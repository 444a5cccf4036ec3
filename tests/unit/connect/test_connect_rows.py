import datetime
import gc
import pickle
import time
from decimal import Decimal

import pyarrow as pa
import pytest

from solstice.connect import Row, _decode, types
from solstice.connect._collector import collector_paused
from solstice.connect._decode import read_batches
from solstice.connect._execution import Batch
from solstice.connect._protocol import load_protocol
from solstice.connect._row import row_class
from solstice.connect._types import decode_struct
from solstice.errors import UnsupportedTypeError


@pytest.fixture
def zone(monkeypatch):
    def use(name):
        monkeypatch.setenv("TZ", name)
        time.tzset()

    yield use
    monkeypatch.undo()
    time.tzset()


def rows_of(batch, classes=row_class):
    """The rows of a record batch that came over the wire."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write(batch)
    return _decode.rows_of(Batch(sink.getvalue().to_pybytes(), batch.num_rows), classes)


def column(values, arrow_type):
    return [row[0] for row in rows_of(pa.record_batch([pa.array(values, arrow_type)], ["c"]))]


def test_a_row_is_a_tuple_that_knows_its_names():
    row = Row(city="Łódź", size=7)
    assert row == ("Łódź", 7)
    assert (row.city, row["size"], row[0]) == ("Łódź", 7, "Łódź")
    assert repr(row) == "Row(city='Łódź', size=7)"
    assert "city" in row
    assert "Łódź" not in row
    assert row.as_dict() == {"city": "Łódź", "size": 7}


def test_a_row_without_names_has_positions_only():
    row = Row(1, 2)
    assert repr(row) == "<Row(1, 2)>"  # as PySpark shows it
    assert 2 in row
    with pytest.raises(TypeError, match="without names"):
        row.as_dict()


def test_a_wrong_name_lists_the_right_ones():
    with pytest.raises(AttributeError, match=r"'town'; it has: city, size"):
        _ = Row(city=1, size=2).town
    with pytest.raises(ValueError, match="it has: city"):  # PySpark's is a ValueError too
        _ = Row(city=1)["town"]


def test_a_maker_may_be_given_fewer_values_and_not_more():
    row = Row("a", "b")(1)
    assert (repr(row), row.as_dict(), row.__fields__, row.a) == ("Row(a=1)", {"a": 1}, ["a", "b"], 1)
    for use in (lambda: row["b"], lambda: Row("a")(1, 2)):
        with pytest.raises(ValueError, match=r"no column|does not make"):
            use()
    with pytest.raises(AttributeError):
        _ = row.b


def test_rows_inside_rows_become_dicts_on_request():
    row = Row(a=[Row(b=1)], c={"k": Row(d=2)})
    assert row.as_dict(recursive=True) == {"a": [{"b": 1}], "c": {"k": {"d": 2}}}


def test_rows_survive_pickling():
    row = row_class(("a", "b"))((1, Row(c=2)))
    copy = pickle.loads(pickle.dumps(row))
    assert copy == row
    assert (copy.a, copy.b.c) == (1, 2)


def test_rows_of_one_result_share_one_class():
    rows = rows_of(pa.record_batch({"a": [1, 2], "b": ["x", None]}))
    assert rows == [(1, "x"), (2, None)]
    assert type(rows[0]) is type(rows[1])
    assert isinstance(rows[0], Row)


def test_of_two_columns_with_one_name_the_name_finds_the_first():
    [row] = rows_of(pa.record_batch([pa.array([1]), pa.array([2])], ["a", "a"]))
    assert (row, row.a) == ((1, 2), 1)


def test_fields_of_one_name_have_it_though_the_data_has_numbered_them():
    field, whole = load_protocol().DataType.StructField, load_protocol().DataType(integer={})
    twice = [field(name=name, data_type=whole) for name in ("x", "y", "x")]
    inner = load_protocol().DataType(array={"element_type": {"struct": {"fields": twice}}})
    schema = load_protocol().DataType(struct={"fields": [field(name="s", data_type=inner)]})
    data = pa.record_batch({"s": [[{"x_0": 1, "y": 2, "x_1": 3}]], "t": [{"x_0": 4, "x_1": 5}]})
    [row] = rows_of(data, _decode.struct_classes(schema))
    assert repr(row) == "Row(s=[Row(x=1, y=2, x=3)], t=Row(x_0=4, x_1=5))"


def test_rows_without_columns_are_still_counted():
    batch = pa.record_batch({"a": [1, 2, 3]}).select([])
    assert rows_of(batch) == [(), (), ()]


@pytest.mark.parametrize(
    ("arrow_type", "values"),
    [
        (pa.bool_(), [True, None, False]),
        (pa.int8(), [-128, None, 127]),
        (pa.int64(), [-(2**63), None, 2**63 - 1]),
        (pa.float32(), [1.5, None, -0.25]),
        (pa.float64(), [1e300, None, float("inf")]),
        (pa.string(), ["", None, "żółć"]),
        (pa.binary(), [b"", None, b"\x00\xff"]),
        (pa.decimal128(38, 18), [Decimal("1.000000000000000001"), None]),
        (pa.list_(pa.int32()), [[1, None], None, []]),
        (pa.map_(pa.string(), pa.date32()), [{"d": datetime.date(2024, 2, 29)}, None, {}]),
        (pa.null(), [None, None]),
    ],
)
def test_values_come_out_as_they_went_in(arrow_type, values):
    converted = [list(value.items()) if isinstance(value, dict) else value for value in values]
    assert column(converted, arrow_type) == values


@pytest.mark.parametrize(
    ("arrow_type", "values"),
    [
        (pa.date32(), [datetime.date.min, None, datetime.date(1969, 12, 31), datetime.date.max]),
        (pa.timestamp("us"), [datetime.datetime.min, None, datetime.datetime(1969, 12, 31, 23, 59, 59, 999999)]),
        (pa.timestamp("us"), [datetime.datetime.max, datetime.datetime(2024, 2, 29, 1, 2, 3, 4)]),
        (pa.duration("us"), [datetime.timedelta(days=-3, microseconds=1), None, datetime.timedelta(0)]),
        (pa.time64("ns"), [datetime.time(23, 59, 59, 999999), None]),
    ],
)
def test_dates_and_times_come_out_as_they_went_in(arrow_type, values):
    assert column(values, arrow_type) == values


@pytest.mark.parametrize("name", ["UTC", "Europe/Warsaw", "America/St_Johns", "Asia/Kathmandu", "Africa/Monrovia"])
def test_instants_become_the_local_time_of_this_process(zone, name):
    zone(name)
    utc = datetime.UTC
    hours = [datetime.datetime(2024, 3, 31, tzinfo=utc) + datetime.timedelta(minutes=20 * n) for n in range(72 * 3)]
    old = [datetime.datetime(1915, 8, 4, 22, 35, 30, tzinfo=utc), datetime.datetime(1969, 12, 31, tzinfo=utc)]
    dst_end = [datetime.datetime(2024, 10, 27, 0, n, 0, 123456, tzinfo=utc) for n in range(60)]
    instants = [*hours, *old, *dst_end]
    expected = [instant.astimezone().replace(tzinfo=None, fold=0) for instant in instants]
    assert column([*instants, None], pa.timestamp("us", tz="UTC")) == [*expected, None]


def test_a_moment_that_python_cannot_hold_is_an_error_not_a_number():
    year_10000 = (datetime.datetime.max - datetime.datetime(1970, 1, 1)) // datetime.timedelta(microseconds=1) + 1
    with pytest.raises(UnsupportedTypeError, match="to_arrow"):
        rows_of(pa.record_batch([pa.array([year_10000]).view(pa.timestamp("us"))], ["c"]))


def test_an_interval_of_months_is_refused_before_any_row():
    schema = pa.schema([("s", pa.struct([("i", pa.month_day_nano_interval())]))])
    with pytest.raises(UnsupportedTypeError, match="cast") as refusal:
        rows_of(pa.RecordBatch.from_pylist([], schema))
    assert refusal.value.column == "s.i"


def test_large_kinds_of_text_and_bytes_and_lists_are_read_too():
    assert column(["a", None], pa.large_string()) == ["a", None]
    assert column([b"a", None], pa.large_binary()) == [b"a", None]
    assert column([[1], None], pa.large_list(pa.int8())) == [[1], None]


def test_every_day_of_four_centuries_is_the_day_it_is():
    days = [datetime.date(1850, 1, 1) + datetime.timedelta(n) for n in range(146_100)]
    moments = [datetime.datetime.combine(day, datetime.time(23, 59, 59, 999_999)) for day in days]
    assert column(days, pa.date32()) == days
    assert column(moments, pa.timestamp("us")) == moments


def test_bytes_that_are_no_arrow_data_are_an_error():
    with pytest.raises(ValueError, match="no Arrow data"):
        _decode.rows_of(Batch(b"nonsense", 1))


def test_structs_become_rows_and_nested_values_are_converted():
    kind = pa.struct([("n", pa.int32()), ("days", pa.list_(pa.date32()))])
    values = [{"n": 1, "days": [datetime.date(2024, 1, 1), None]}, None, {"n": None, "days": None}]
    [first, second, third] = column(values, kind)
    assert isinstance(first, Row)
    assert first == (1, [datetime.date(2024, 1, 1), None])
    assert first.n == 1
    assert second is None
    assert third == (None, None)


def test_a_slice_of_nested_data_gives_its_own_rows():
    batch = pa.record_batch(
        {
            "l": pa.array([[1], [2, 3], None, [4]]),
            "m": pa.array([[("a", 1)], [], [("b", 2)], None], pa.map_(pa.string(), pa.int64())),
            "s": pa.array([{"x": 1}, {"x": 2}, None, {"x": 4}]),
        }
    ).slice(1, 3)
    assert rows_of(batch) == [([2, 3], {}, (2,)), (None, {"b": 2}, None), ([4], None, (4,))]


def test_the_collector_is_off_inside_only_and_for_all_who_asked():
    assert gc.isenabled()
    with collector_paused():
        with collector_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_the_collector_stays_off_when_the_user_had_it_off():
    gc.disable()
    try:
        with collector_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_message_without_rows_still_has_its_schema():
    schema = pa.schema([("a", pa.int64())])
    sink = pa.BufferOutputStream()
    pa.ipc.new_stream(sink, schema).close()
    assert read_batches(Batch(sink.getvalue().to_pybytes(), 0)) == (schema, [])


@pytest.mark.parametrize(
    ("name", "moment", "fold"),
    [
        ("America/New_York", datetime.datetime(2024, 11, 3, 5, 30, tzinfo=datetime.UTC), 0),
        ("America/New_York", datetime.datetime(2024, 11, 3, 6, 30, 0, 7, tzinfo=datetime.UTC), 1),
        (
            "AAA0BBB-1,M3.5.0,J300/1",
            datetime.datetime(2023, 10, 27, 0, 30, tzinfo=datetime.UTC),
            1,
        ),  # clocks go back at 00:00 UTC
    ],
)
def test_an_instant_in_the_hour_that_comes_twice_stays_the_same_instant(zone, name, moment, fold):
    zone(name)
    [value] = column([moment], pa.timestamp("us", tz="UTC"))
    assert (value, value.fold) == (moment.astimezone().replace(tzinfo=None), fold)
    assert value.timestamp() == moment.timestamp()


def test_zones_that_call_themselves_the_same_are_kept_apart(zone):
    noon = datetime.datetime(2024, 1, 15, 12, tzinfo=datetime.UTC)
    for name, hour in (("CST6CDT,M3.2.0,M11.1.0", 6), ("CST-8CDT,M3.2.0,M11.1.0", 20)):
        zone(name)
        assert column([noon], pa.timestamp("us", tz="UTC")) == [datetime.datetime(2024, 1, 15, hour)]


@pytest.mark.parametrize("key", [pa.list_(pa.int32()), pa.struct([("a", pa.list_(pa.int32()))])])
def test_a_map_whose_keys_python_cannot_hash_is_refused_with_its_path(key):
    schema = pa.schema([("s", pa.struct([("m", pa.map_(key, pa.int32()))]))])
    with pytest.raises(UnsupportedTypeError, match="to_arrow") as refusal:
        rows_of(pa.RecordBatch.from_pylist([], schema))
    assert refusal.value.column == "s.m"


def test_a_map_with_flat_keys_is_no_problem():
    schema = pa.schema([("m", pa.map_(pa.struct([("a", pa.int32())]), pa.list_(pa.int32())))])
    [row] = rows_of(pa.RecordBatch.from_pylist([{"m": [({"a": 1}, [2])]}], schema))
    assert row.m == {(1,): [2]}


def test_a_type_that_the_installed_protocol_does_not_know_is_unknown():
    message = load_protocol().DataType(struct={"fields": [{"name": "new", "data_type": {}}]})
    [field] = decode_struct(message)
    assert (field.name, field.data_type) == ("new", types.UnknownType("unknown"))
    assert field.simple_string()
