"""What every payload store promises; a new backend adds its URL to the fixture."""

import shutil
import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from object_store import s3_bucket
from solstice._core.urls import parse_url
from solstice.errors import ConfigError, PayloadCorruptError
from solstice.pipeline import PayloadRef, SplitPayload
from solstice.pipeline._store import encode_schema, open_store, schema_fingerprint

TABLE = pa.table({"id": pa.array(range(1000)), "name": pa.array([f"n{i}" for i in range(1000)])})


@pytest.fixture(scope="session")
def bucket():
    with s3_bucket() as url:
        yield lambda folder: url % folder


@pytest.fixture(scope="module")
def ray_url():
    """One actor for all: to start one takes two seconds."""
    import ray

    ray.init(num_cpus=1, include_dashboard=False, object_store_memory=100 << 20, log_to_driver=False)
    yield "ray://solstice-tests"
    ray.shutdown()


@pytest.fixture(params=["file", "shm", "s3", "ray"])
def url(request, tmp_path):
    name = f"solstice-test-{uuid.uuid4().hex}"
    match request.param:
        case "file":
            yield f"file://{tmp_path}/payloads"
        case "shm":
            yield f"shm://{name}/payloads"
            shutil.rmtree(Path("/dev/shm", name), ignore_errors=True)
        case "s3":
            yield request.getfixturevalue("bucket")(f"team/{name}")
        case "ray":
            yield request.getfixturevalue("ray_url")
            open_store(request.getfixturevalue("ray_url")).clear()


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


def test_a_reference_finds_its_payload_by_location_alone(store, url):
    ref = store.store("stage/w1/s0", TABLE)
    if url.startswith("ray:"):
        assert ref.uri == ""  # an object of Ray has no location
        return
    elsewhere = open_store(url.replace("payloads", "elsewhere").replace("team/", "other/"))
    assert elsewhere.get(ref.key) is None
    assert elsewhere.get(ref).to_arrow().equals(TABLE)


def test_a_store_is_found_under_its_shared_url(store):
    store.store("stage/w1/s0", TABLE)
    shared = store.shared_url()
    assert open_store(shared).shared_url() == shared
    other = open_store(shared)
    for _ in range(2):
        assert other.get("stage/w1/s0").to_arrow().equals(TABLE)
        other.close()
    if store.url.startswith("ray:"):
        assert parse_url(shared).port  # of this cluster, whatever others the machine has


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_a_compressed_payload_is_smaller_and_the_same(store, url, compression):
    plain = store.store("stage/w1/s0", TABLE)
    small = open_store(f"{url}{'&' if '?' in url else '?'}compression={compression}").store("stage/w1/s1", TABLE)
    assert small.bytes < plain.bytes
    assert store.get(small).to_arrow().equals(TABLE)


def test_a_parquet_payload_comes_back_with_the_types_of_its_reference(store):
    table = pa.table({"wait": pa.array([1, None], pa.int64())})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    ref = store.store("stage/w1/s0.parquet", sink.getvalue().to_pybytes())
    assert store.get(ref).to_arrow().equals(table)
    assert list(store.keys()) == ["stage/w1/s0.parquet"]
    wait = pa.schema([("wait", pa.duration("us"))])
    typed = PayloadRef(ref.key, ref.uri, ref.bytes, "", encode_schema(wait))
    assert store.get(typed).to_arrow().equals(table.cast(wait))
    store.delete(ref)
    assert list(store.keys()) == []


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
    with pytest.raises(PayloadCorruptError, match="neither Arrow IPC nor parquet"):
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


@pytest.mark.parametrize(
    ("url", "fix"),
    [
        ("ftp://host/x", "file:///"),
        ("file:///tmp/x?compression=gzip", "lz4 or zstd"),
        ("ray:///", "ray://name"),
    ],
)
def test_a_wrong_url_is_refused_with_the_fix(url, fix):
    with pytest.raises(ConfigError, match=fix):
        open_store(url)


def test_a_bucket_of_google_goes_the_way_of_the_other_object_stores():
    store = open_store("gs://bucket/folder?compression=zstd")
    assert store._filesystem.type_name == "gcs"
    assert store._path("stage/w1/s0") == "bucket/folder/stage/w1/s0.arrow"


def test_what_does_not_outlive_the_machine_says_so():
    assert "reboot" in open_store("shm://x").caution
    assert "cluster" in open_store("ray://x").caution
    assert open_store("file:///tmp/x").caution is None
