"""What every payload store promises; a new backend adds its URL to the fixture."""

import pyarrow as pa
import pytest

from solstice.errors import ConfigError, PayloadCorruptError
from solstice.pipeline import PayloadRef, SplitPayload
from solstice.pipeline._store import open_store, schema_fingerprint

TABLE = pa.table({"id": pa.array(range(1000)), "name": pa.array([f"n{i}" for i in range(1000)])})


@pytest.fixture(params=["file"])
def url(request, tmp_path):
    return {"file": f"file://{tmp_path}/payloads"}[request.param]


@pytest.fixture
def store(url):
    return open_store(url)


def ipc(table: pa.Table, make=pa.ipc.new_stream) -> bytes:
    sink = pa.BufferOutputStream()
    with make(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize(
    "payload",
    [SplitPayload.from_arrow(TABLE, "s0"), TABLE, ipc(TABLE), ipc(TABLE, pa.ipc.new_file)],
    ids=["SplitPayload", "table", "ipc stream", "ipc file"],
)
def test_what_was_stored_comes_back_as_a_split_payload(store, url, payload):
    ref = store.store("stage/w1/s0", payload)
    assert ref.key == "stage/w1/s0"
    for reader in (store, open_store(url)):
        for name in (ref, ref.key):
            found = reader.get(name)
            assert isinstance(found, SplitPayload)
            assert found.split_id == "s0"
            assert found.to_arrow().equals(TABLE)


def test_a_reference_finds_its_payload_by_location_alone(store, tmp_path):
    ref = store.store("stage/w1/s0", TABLE)
    elsewhere = open_store(f"file://{tmp_path}/elsewhere")
    assert elsewhere.get(ref).to_arrow().equals(TABLE)


def test_a_payload_that_is_not_there_is_none(store):
    assert store.get("stage/w1/none") is None
    assert store.get(PayloadRef("stage/w1/none", "", 0, "crc32:00000000")) is None


def test_a_changed_payload_is_noticed(store):
    ref = store.store("stage/w1/s0", TABLE)
    store.store("stage/w1/s0", TABLE.slice(1))
    with pytest.raises(PayloadCorruptError, match="its message says"):
        store.get(ref)


def test_bytes_that_are_not_arrow_are_refused_on_reading(store):
    ref = store.store("stage/w1/s0", b"not arrow at all, sorry")
    with pytest.raises(PayloadCorruptError, match="not Arrow IPC"):
        store.get(ref)


def test_a_deleted_payload_is_gone_but_what_was_read_stays_usable(store):
    ref = store.store("stage/w1/s0", TABLE)
    other = store.store("stage/w1/s1", TABLE)
    found = store.get(ref)
    store.delete(ref)
    store.delete(ref.key)
    assert store.get(ref) is None
    assert found.to_arrow().equals(TABLE)
    assert store.get(other) is not None


def test_clear_removes_what_lies_below_a_prefix(store):
    for key in ("a/w1/s0", "a/w1/s1", "a/w2/s0", "b/w1/s0"):
        store.store(key, TABLE)
    assert set(store.keys("a")) == {"a/w1/s0", "a/w1/s1", "a/w2/s0"}
    assert set(store.writers()) == {("a", "w1"), ("a", "w2"), ("b", "w1")}
    store.clear("a/w1")
    assert set(store.keys()) == {"a/w2/s0", "b/w1/s0"}
    store.clear()
    assert set(store.keys()) == set()


@pytest.mark.parametrize("key", ["../x", "a/../../x", "", "/etc/passwd", "a//b"])
def test_a_key_cannot_leave_the_store(store, key):
    with pytest.raises(ConfigError):
        store.store(key, TABLE)


def test_odd_characters_in_a_key_survive(store):
    key = "stage/w 1/ä%2F s#0"
    ref = store.store(key, TABLE)
    assert list(store.keys()) == [key]
    assert store.get(ref).to_arrow().equals(TABLE)


def test_equal_schemas_have_equal_fingerprints():
    again = pa.schema([("id", pa.int64()), ("name", pa.string())], metadata={"x": "y"})
    assert schema_fingerprint(again) == schema_fingerprint(TABLE.schema)
    assert schema_fingerprint(TABLE.schema) != schema_fingerprint(TABLE.select(["id"]).schema)


def test_an_unknown_scheme_is_refused_with_the_fix():
    with pytest.raises(ConfigError, match="file:///"):
        open_store("ftp://host/x")
