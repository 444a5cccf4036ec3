"""The client against a real Spark Connect server, one for the whole module."""

import contextlib
import datetime
import hashlib
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from decimal import Decimal

import pytest

import solstice.connect as sc
from solstice import errors
from solstice.connect import _local, types
from solstice.connect._actions import run
from solstice.connect._protocol import load_protocol

pytestmark = pytest.mark.spark

CONFIG = {
    "spark.master": "local[2]",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.timeType.enabled": "true",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",  # starts faster; nothing here runs long
}


@pytest.fixture(scope="module")
def server():
    running = _local.start_server(CONFIG)
    yield running
    running.stop()


@pytest.fixture(scope="module")
def spark(server):
    with sc.connect(server.url) as session:
        yield session


def test_the_version_is_the_servers(spark):
    from importlib.metadata import version

    assert spark.version == version("pyspark")
    assert spark.session_id in repr(spark)


def test_select_1(spark):
    [row] = spark.sql("select 1 as one").collect()
    assert row == (1,)
    assert row.one == 1


def test_types_round_trip(spark):
    [row] = spark.sql(
        """select true b, 1Y i8, 2S i16, 3 i32, 4L i64, cast(1.5 as float) f32, 2.5D f64,
                  cast('123.4500' as decimal(20, 4)) d, 'żółć' s, X'00ff' bin, date'2024-02-29' day,
                  timestamp_ntz'2024-02-29 01:02:03.000004' ntz, timestamp'2024-02-29 01:02:03.000004Z' ts,
                  interval '1 02:03:04.000005' day to second dt, time'23:59:59.123456' t,
                  array(1, null) a, map('k', date'2024-01-01') m, named_struct('x', 1, 'y', array('z')) st,
                  cast(null as int) n, array() e"""
    ).collect()
    instant = datetime.datetime(2024, 2, 29, 1, 2, 3, 4, tzinfo=datetime.UTC)
    assert row.as_dict() == {
        "b": True,
        "i8": 1,
        "i16": 2,
        "i32": 3,
        "i64": 4,
        "f32": 1.5,
        "f64": 2.5,
        "d": Decimal("123.4500"),
        "s": "żółć",
        "bin": b"\x00\xff",
        "day": datetime.date(2024, 2, 29),
        "ntz": datetime.datetime(2024, 2, 29, 1, 2, 3, 4),
        "ts": instant.astimezone().replace(tzinfo=None),
        "dt": datetime.timedelta(days=1, hours=2, minutes=3, seconds=4, microseconds=5),
        "t": datetime.time(23, 59, 59, 123456),
        "a": [1, None],
        "m": {"k": datetime.date(2024, 1, 1)},
        "st": (1, ["z"]),
        "n": None,
        "e": [],
    }
    assert row.st.y == ["z"]


def test_the_schema_is_analyzed_without_running_the_query(spark):
    query = spark.sql(
        "select raise_error('it ran') as x, 1 as y, array(named_struct('a', 1L)) as z, 'c' collate UNICODE k"
    )
    assert query.columns == ["x", "y", "z", "k"]
    assert query.schema["y"] == types.StructField("y", types.IntegerType(), nullable=False)
    assert query.schema["z"].data_type.simple_string() == "array<struct<a:bigint>>"
    assert query.schema["k"].data_type == types.StringType("UNICODE")
    assert repr(query) == "DataFrame[x: void, y: int, z: array<struct<a:bigint>>, k: string collate UNICODE]"


def test_count_and_limit_are_the_servers_work(spark):
    query = spark.sql("select id from range(1000000)")
    assert query.count() == 1_000_000
    assert query.limit(7).count() == 7
    assert query.limit(0).collect() == []


def test_a_deep_plan_runs(spark):
    query = spark.sql("select id from range(10)")
    for _ in range(200):
        query = query.limit(5)
    assert query.columns == ["id"]
    assert query.count() == 5


def test_an_empty_result_has_its_columns(spark):
    query = spark.sql("select id, cast(id as string) s from range(0)")
    assert query.collect() == []
    assert query.to_arrow().schema.names == ["id", "s"]
    assert query.to_polars().shape == (0, 2)


def test_a_small_result_becomes_a_polars_frame(spark):
    frame = spark.sql("select id, id * 2 as twice from range(3)").to_polars()
    assert frame.to_dict(as_series=False) == {"id": [0, 1, 2], "twice": [0, 2, 4]}


def test_a_large_result_is_refused_by_polars_until_the_bound_is_lifted(spark):
    query = spark.sql("select id from range(10001)")
    with pytest.raises(errors.ResultTooLargeError, match="max_rows=None"):
        query.to_polars()
    assert query.to_polars(max_rows=None).height == 10_001


def test_batches_come_one_by_one_and_complete(spark):
    batches = list(spark.sql("select id from range(0, 25000, 1, 2)").iter_batches())
    assert len(batches) > 1
    assert [value for batch in batches for value in batch["id"].to_pylist()] == list(range(25_000))


def test_a_command_runs_once_and_gives_its_result(spark):
    spark.sql("-- a view\ncreate temporary view numbers as select id from range(3)")
    with pytest.raises(errors.RemoteError, match="TEMP_TABLE_OR_VIEW_ALREADY_EXISTS"):
        spark.sql("create temporary view numbers as select 1")
    assert spark.sql("table numbers").collect() == [(0,), (1,), (2,)]
    assert spark.sql("from numbers select max(id)").collect() == [(2,)]
    shown = spark.sql("show tables")
    assert [row.tableName for row in shown.collect()] == ["numbers"]
    assert [row.tableName for row in shown.collect()] == ["numbers"]


def test_invalid_sql_names_the_place(spark):
    with pytest.raises(errors.RemoteError, match="PARSE_SYNTAX_ERROR") as failed:
        spark.sql("selec 1")
    assert (failed.value.error_class, failed.value.sql_state) == ("PARSE_SYNTAX_ERROR", "42601")
    assert "^^^" in str(failed.value)
    assert "at org.apache" not in str(failed.value)


def test_a_wrong_column_comes_with_the_right_one(spark):
    with pytest.raises(errors.RemoteError, match=r"Did you mean one of the following\? \[`id`\]") as failed:
        spark.sql("select idd from range(3)").collect()
    assert failed.value.error_class == "UNRESOLVED_COLUMN.WITH_SUGGESTION"
    assert failed.value.parameters == {"objectName": "`idd`", "proposal": "`id`"}
    assert failed.value.fragment == "idd"
    assert "Project" not in str(failed.value)


def test_an_error_while_rows_are_made_is_reported_with_its_place(spark):
    with pytest.raises(errors.RemoteError, match="DIVIDE_BY_ZERO") as failed:
        spark.sql("select 1 / (id - 5) from range(10)").collect()
    assert failed.value.fragment == "1 / (id - 5)"


def test_years_and_months_are_refused_by_name_with_the_cast_to_use(spark):
    for query, path in (
        ("select interval '1-2' year to month as ym", "ym"),
        ("select named_struct('ym', interval '1-2' year to month) as s", "s.ym"),
    ):
        for fetch in (spark.sql(query).collect, spark.sql(query).to_polars):
            with pytest.raises(errors.UnsupportedTypeError, match=rf"cast\({path} as string\)") as refusal:
                fetch()
            assert refusal.value.column == path


def test_a_variant_arrives_as_its_two_binary_parts(spark):
    [row] = spark.sql("select parse_json('[1]') as v, to_json(parse_json('[1]')) as j").collect()
    assert sorted(row.v.__fields__) == ["metadata", "value"]
    assert all(isinstance(part, bytes) for part in row.v)
    assert row.j == "[1]"


def test_a_map_with_arrays_as_keys_is_refused_with_what_to_do(spark):
    query = spark.sql("select map(array(1), 2) as m")
    with pytest.raises(errors.UnsupportedTypeError, match="to_arrow"):
        query.collect()
    assert query.to_arrow().num_rows == 1


def test_a_wrong_token_is_refused(server):
    with pytest.raises(errors.AuthenticationError) as refused:
        sc.connect(server.url + "x")
    assert server.url.rpartition("=")[2] not in str(refused.value)


def test_an_unreachable_server_is_reported_soon_with_what_to_check():
    started = time.monotonic()
    with pytest.raises(errors.TransportError, match=r"no Spark Connect server answers at 127\.0\.0\.1:9 ") as failed:
        sc.connect("sc://127.0.0.1:9")
    assert time.monotonic() - started < 10
    assert failed.value.remedy


def test_a_stopped_session_says_so(server):
    session = sc.connect(server.url)
    query = session.sql("select 1")
    assert query.count() == 1
    session.stop()
    with pytest.raises(errors.SessionClosedError):
        query.count()


def test_a_session_that_the_server_ended_is_lost(server):
    session = sc.connect(server.url)
    session.sql("select 1").collect()
    twin = sc.connect(f"{server.url};session_id={session.session_id}")
    twin.stop()
    with pytest.raises(errors.SessionLostError, match="Connect again"):
        session.sql("select 1").collect()
    session.stop()


def operation_states(session):
    protocol = load_protocol()
    request = protocol.GetStatusRequest(**session._link.driver.requests._identity, operation_status={})
    response = run(session._link.driver.unary("GetStatus", request))
    states = protocol.GetStatusResponse.OperationStatus.OperationState
    return [states.Name(status.state).removeprefix("OPERATION_STATE_") for status in response.operation_statuses]


def test_ctrl_c_returns_at_once_and_the_server_stops_working(server):
    # A first batch, so that the job surely runs, then two endless tasks on the server's two cores. (A query that is
    # ended in its first moments may run on in Spark 4.3.)
    endless = "select id from range(0, 1000000000000, 1, 2) where sqrt(id) < -rand()"
    with sc.connect(server.url) as session:
        batches = session.sql(f"select id from range(0, 5, 1, 1) union all {endless}").iter_batches()
        assert next(batches).num_rows == 5
        pressed = []

        def press():
            pressed.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)

        threading.Timer(0.3, press).start()
        with pytest.raises(KeyboardInterrupt):
            next(batches)
        assert time.monotonic() - pressed[0] < 0.5
        deadline = time.monotonic() + 10
        while operation_states(session) != ["CANCELLED"]:
            assert time.monotonic() < deadline, f"the server says: {operation_states(session)}"
            time.sleep(0.05)
        assert session.sql("select sum(id) from range(0, 5, 1, 2)").collect() == [(10,)]


# The package's own __init__ is left out: it refuses to load without packages that the protocol does not need.
PYSPARK = (
    "import types, pyspark.sql; package = types.ModuleType('pyspark.sql.connect'); "
    "package.__path__ = [pyspark.sql.__path__[0] + '/connect']; sys.modules[package.__name__] = package; "
    "from pyspark.sql.connect.proto import base_pb2 as theirs"
)
PROBE = """
import sys
{before}
import solstice.connect as sc
with sc.connect({url!r}) as spark:
    answers = [spark.sql("select 40 + 2").collect()[0][0]]
    loaded = "pyspark" in sys.modules
    {after}
    answers.append(spark.sql("select named_struct('a', 1)").collect()[0][0].a)
print(answers, loaded, theirs.Plan(command={{}}).WhichOneof("op_type"))
"""


@pytest.mark.parametrize("pyspark_comes", ["first", "last"])
def test_pyspark_may_be_imported_before_or_after_and_is_not_needed(server, pyspark_comes):
    before, after = (PYSPARK, "") if pyspark_comes == "first" else ("", PYSPARK)
    script = PROBE.format(before=before, after=after, url=server.url)
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert result.stdout.strip() == f"[42, 1] {pyspark_comes == 'first'} command", result.stderr


class CuttingProxy:
    """Passes bytes on; resets a connection after so many of the server's bytes, or all of them when told."""

    def __init__(self, port, cut_after_bytes, cuts):
        self._target = ("127.0.0.1", port)
        self._cut_after_bytes = cut_after_bytes
        self._cuts_left = cuts
        self.cuts = 0
        self._lock = threading.Lock()
        self._connections = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        self._listener.close()
        self.cut_all()

    def cut_all(self):
        for connection in self._connections:
            self._cut(*connection)

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._target)
            self._connections.append((client, server))
            threading.Thread(target=self._pump, args=(client, server, None), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client, self._cut_after_bytes), daemon=True).start()

    def _pump(self, source, sink, budget):
        with contextlib.suppress(OSError):
            while data := source.recv(16_384):
                sink.sendall(data)
                if budget is not None:
                    budget -= len(data)
                    if budget <= 0 and self._may_cut():
                        break
        self._cut(source, sink)

    def _cut(self, *ends):
        for end in ends:
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, not an end
                end.shutdown(socket.SHUT_RDWR)  # wakes the other direction, which waits in recv
            end.close()

    def _may_cut(self):
        with self._lock:
            if self._cuts_left == 0:
                return False
            self._cuts_left -= 1
            self.cuts += 1
            return True


@pytest.fixture
def through_proxy(server):
    """Connects through a proxy that cuts."""
    port = int(server.url.split(":")[2].split("/")[0])
    with contextlib.ExitStack() as stack:

        def connect(cut_after_bytes, cuts):
            proxy = CuttingProxy(port, cut_after_bytes, cuts)
            stack.callback(proxy.close)
            return proxy, stack.enter_context(sc.connect(server.url.replace(f":{port}/", f":{proxy.port}/")))

        yield connect


def test_200_000_rows_are_exact_though_the_connection_is_cut_again_and_again(through_proxy):
    proxy, session = through_proxy(cut_after_bytes=1_200_000, cuts=8)
    rows = session.sql("select id, md5(cast(id as string)) as m from range(0, 200000, 1, 4)").collect()
    assert proxy.cuts >= 5
    assert len(rows) == 200_000
    assert [row.id for row in rows] == list(range(200_000))
    assert all(row.m == hashlib.md5(str(row.id).encode()).hexdigest() for row in rows)


def test_a_cut_while_a_command_runs_does_not_run_it_twice(server, through_proxy):
    proxy, session = through_proxy(cut_after_bytes=0, cuts=0)
    watcher = sc.connect(f"{server.url};session_id={session.session_id}")
    cut_while = []

    def cut():
        deadline = time.monotonic() + 30
        while operation_states(watcher) != ["RUNNING"] and time.monotonic() < deadline:
            time.sleep(0.01)
        cut_while.extend(operation_states(watcher))
        proxy.cut_all()

    thread = threading.Thread(target=cut)
    thread.start()
    # Run a second time it would fail: the table is there.
    session.sql("create table once as select id, sha2(repeat(cast(id as string), 99), 512) h from range(150000)")
    thread.join()
    run(watcher._link.driver.close())  # not stop(): the session is the other one's
    assert cut_while == ["RUNNING"]
    assert session.sql("table once").count() == 150_000
