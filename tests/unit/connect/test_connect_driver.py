"""The driver and the session over real gRPC, against a server that answers by a script."""

import gc
import os
import re
import signal
import threading
import time

import grpc
import pyarrow as pa
import pytest
from connect_scripted_server import ScriptedServer, abort, error_details, once

import solstice.connect as sc
from solstice import errors
from solstice.connect import _decode
from solstice.connect._actions import run
from solstice.connect._url import parse_endpoint


@pytest.fixture
def server():
    scripted = ScriptedServer()
    yield scripted
    scripted.stop()


@pytest.fixture
def session(server):
    with sc.connect(server.url()) as connected:
        yield connected


def test_a_query_is_reattachable_and_released_when_read(server, session):
    assert session.sql("select n").collect() == [(1,), (2,), (3,)]
    [execute] = server.requests("ExecutePlan")
    assert any(option.reattach_options.reattachable for option in execute.request_options)
    assert execute.plan.root.sql.query == "select n"
    [release] = server.wait_for("ReleaseExecute")
    assert release.operation_id == execute.operation_id
    assert release.WhichOneof("release") == "release_all"


def test_the_servers_side_of_the_session_is_shown_to_it_from_the_second_call_on(server, session):
    session.sql("select n").collect()
    [version] = server.requests("AnalyzePlan")
    [execute] = server.requests("ExecutePlan")
    assert not version.HasField("client_observed_server_side_session_id")
    assert execute.client_observed_server_side_session_id == "server-1"
    assert execute.session_id == version.session_id == session.session_id


def test_something_else_is_done_while_the_server_works(server, session):
    done = threading.Event()
    server.hooks["AnalyzePlan"] = lambda request, context: done.wait(10) and ()
    driver = session._link.driver

    def meanwhile():
        server.wait_for("AnalyzePlan", 2)  # the first was connect()'s
        done.set()

    run(driver.unary("AnalyzePlan", driver.requests.analyze(spark_version={}), meanwhile=meanwhile))
    assert done.is_set()


def test_releases_arrive_while_a_long_result_is_read(server, session):
    server.batches = [[number] for number in range(25)]
    assert session.sql("select n").to_arrow().num_rows == 25
    releases = server.wait_for("ReleaseExecute", 3)
    assert sorted(release.release_until.response_id for release in releases) == ["", "19", "9"]


def test_a_stream_that_breaks_is_continued_behind_the_last_response(server, session):
    def half(request, context):
        yield server.response(0, [1, 2])
        context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")

    server.hooks["ExecutePlan"] = once(half)
    assert session.sql("select n").collect() == [(1,), (2,), (3,)]
    [reattach] = server.requests("ReattachExecute")
    assert reattach.last_response_id == "0"
    assert reattach.operation_id == server.requests("ExecutePlan")[0].operation_id


def test_a_request_that_never_arrived_is_sent_again_under_the_same_id(server, session):
    unknown = error_details(ErrorInfo={"metadata": {"errorClass": "INVALID_HANDLE.OPERATION_NOT_FOUND"}})
    server.hooks["ExecutePlan"] = once(abort(grpc.StatusCode.UNAVAILABLE, "cut"))
    server.hooks["ReattachExecute"] = abort(grpc.StatusCode.INTERNAL, "who?", unknown)
    assert session.sql("select n").collect() == [(1,), (2,), (3,)]
    first, second = server.requests("ExecutePlan")
    assert first.operation_id == second.operation_id


def test_an_error_of_spark_is_not_retried(server, session):
    details = error_details("by zero", ErrorInfo={"metadata": {"errorClass": "DIVIDE_BY_ZERO", "sqlState": "22012"}})
    server.hooks["ExecutePlan"] = abort(grpc.StatusCode.INTERNAL, "by zero", details)
    with pytest.raises(errors.RemoteError, match="by zero") as failed:
        session.sql("select n").collect()
    assert (failed.value.error_class, failed.value.sql_state) == ("DIVIDE_BY_ZERO", "22012")
    assert len(server.requests("ExecutePlan")) == 1
    assert not server.requests("ReattachExecute")


def test_a_transient_error_of_a_unary_call_is_retried(server):
    server.hooks["AnalyzePlan"] = once(abort(grpc.StatusCode.UNAVAILABLE, "starting"))
    with sc.connect(server.url()) as session:
        assert session.version == "4.3.0"
    assert len(server.requests("AnalyzePlan")) == 2


def test_refused_credentials_fail_once(server):
    server.hooks["AnalyzePlan"] = abort(grpc.StatusCode.UNAUTHENTICATED, "wrong token")
    with pytest.raises(errors.AuthenticationError, match="wrong token") as refused:
        sc.connect(server.url("token=secret-t"))
    assert len(server.requests("AnalyzePlan")) == 1
    assert "secret-t" not in str(refused.value)


def test_token_and_headers_go_with_every_call(server):
    with sc.connect(server.url("token=t1;x-team=data")) as session:
        session.sql("select n").collect()
    assert {name for name, _, _ in server.calls} >= {"AnalyzePlan", "ExecutePlan", "ReleaseSession"}
    for _, _, metadata in server.calls:
        assert (metadata["authorization"], metadata["x-team"]) == ("Bearer t1", "data")


def test_a_method_that_the_server_does_not_know_is_unsupported(server):
    server.hooks["AnalyzePlan"] = abort(grpc.StatusCode.UNIMPLEMENTED, "no such method")
    with pytest.raises(errors.UnsupportedError):
        sc.connect(server.url())


def test_the_collector_rests_until_the_last_batch_is_rows(server, session, monkeypatch):
    enabled, rows_of = [], _decode.rows_of
    monkeypatch.setattr(_decode, "rows_of", lambda *batch: enabled.append(gc.isenabled()) or rows_of(*batch))
    server.batches = [[1], [2], [3]]
    assert session.sql("select n").collect() == [(1,), (2,), (3,)]
    assert enabled == [True, False, False]
    assert gc.isenabled()


def test_leaving_a_result_half_read_ends_the_operation(server, session):
    server.batches = [[number] for number in range(100)]
    batches = session.sql("select n").iter_batches()
    next(batches)
    batches.close()
    server.assert_ended(server.requests("ExecutePlan")[0].operation_id)


def test_a_bound_that_is_exceeded_ends_the_operation(server, session):
    with pytest.raises(errors.ResultTooLargeError, match="max_rows=None"):
        session.sql("select n").collect(max_rows=1)
    server.assert_ended(server.requests("ExecutePlan")[0].operation_id)


def test_a_bound_in_bytes_says_how_to_lift_it(session):
    with pytest.raises(errors.ResultTooLargeError, match="max_bytes=None"):
        session.sql("select n").to_arrow(max_bytes=1)


def test_ctrl_c_ends_the_operation_at_once(server, session):
    ended = threading.Event()

    def hang(request, context):
        context.add_callback(ended.set)
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        ended.wait(30)
        return ()

    server.hooks["ExecutePlan"] = hang
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        session.sql("select n").collect()
    assert time.monotonic() - started < 2
    server.assert_ended(server.requests("ExecutePlan")[0].operation_id)
    assert ended.wait(5), "the stream is still open"


def test_what_is_left_early_does_not_ask_for_a_token_again(server):
    asked = []
    with sc.connect(server.url(), token=lambda: asked.append(1) or "t") as session:
        rows = session.sql("select n").iter_rows()
        next(rows)
        before = len(asked)
        rows.close()
        assert len(asked) == before
    server.assert_ended(server.requests("ExecutePlan")[0].operation_id)


def test_a_token_that_expired_meanwhile_does_not_keep_an_operation_from_being_ended(server):
    tokens = iter(f"t{number}" for number in range(99))
    refuse = once(abort(grpc.StatusCode.UNAUTHENTICATED, "token expired"))
    server.hooks["ReleaseExecute"] = refuse
    with sc.connect(server.url(), token=lambda: next(tokens)) as session:
        rows = session.sql("select n").iter_rows()
        next(rows)
        rows.close()
    releases = [headers["authorization"] for name, _, headers in server.calls if name == "ReleaseExecute"]
    assert releases == ["Bearer t1", "Bearer t2"]


def test_a_command_runs_once_and_a_query_not_before_it_is_asked(server, session):
    session.sql("drop table t")
    assert [r.plan.WhichOneof("op_type") for r in server.requests("ExecutePlan")] == ["command"]
    query = session.sql("select 1")
    assert len(server.requests("ExecutePlan")) == 1
    query.collect()
    assert len(server.requests("ExecutePlan")) == 2


def test_after_stop_everything_says_so(server):
    session = sc.connect(server.url())
    query = session.sql("select n")
    session.stop()
    session.stop()
    assert len(server.requests("ReleaseSession")) == 1
    assert "stopped" in repr(session)
    assert repr(query) == "DataFrame[schema not available: SessionClosedError]"
    for use in (query.collect, query.count, lambda: query.schema, lambda: session.sql("select 1")):
        with pytest.raises(errors.SessionClosedError, match="connect"):
            use()


def test_stopping_in_another_thread_ends_a_running_query_with_the_reason(server):
    session = sc.connect(server.url())
    released = threading.Event()

    def hang(request, context):
        context.add_callback(released.set)
        threading.Thread(target=session.stop).start()
        released.wait(30)
        return ()

    server.hooks["ExecutePlan"] = hang
    with pytest.raises(errors.SessionClosedError):
        session.sql("select n").collect()


def test_stopping_when_the_server_is_gone_is_quiet(server):
    session = sc.connect(server.url())
    server.stop()
    session.stop()


@pytest.mark.parametrize("use", [lambda df: df.collect(), lambda df: df.schema])
def test_a_local_server_that_has_ended_is_reported_at_once_with_its_last_words(server, use):
    words = []
    endpoint = parse_endpoint(server.url())
    with run(sc.Session._open(endpoint, server_end=lambda: words[0] if words else None)) as session:
        query = session.sql("select n")
        words.append("OutOfMemoryError: Java heap space")
        server.stop()
        started = time.monotonic()
        with pytest.raises(errors.TransportError, match=r"has ended: OutOfMemoryError.*spark\.driver\.memory"):
            use(query)
        assert time.monotonic() - started < 2


@pytest.mark.parametrize("n", ["5", 1.5, -1, True, None, 2**31])
def test_a_limit_that_is_no_row_count_is_refused_by_value(session, n):
    with pytest.raises(errors.InvalidPlanError, match=re.escape(f"limit({n!r})")):
        session.sql("select n").limit(n)


@pytest.mark.parametrize("bound", [-1, 1.5, "5"])
@pytest.mark.parametrize("option", ["max_rows", "max_bytes"])
def test_a_bound_that_is_no_count_is_refused_before_anything_runs(server, session, option, bound):
    with pytest.raises(errors.ConfigError, match=re.escape(f"{option}={bound!r}")):
        session.sql("select n").collect(**{option: bound})
    assert not server.requests("ExecutePlan")


def test_two_columns_of_one_name_are_refused_by_polars_with_what_to_do(server, session):
    batch = pa.record_batch([pa.array([1]), pa.array([2])], ["id", "id"])
    server.batches = [batch]
    with pytest.raises(errors.InvalidPlanError, match=r"'id'.*aliases"):
        session.sql("select n").to_polars()
    assert session.sql("select n").to_arrow().num_columns == 2
