"""What a session controls beside queries: settings, tags, interrupts, progress, tokens, deadlines, its own end."""

import gc
import os
import subprocess
import sys
import threading
import time
import weakref

import grpc
import pyarrow as pa
import pytest
from connect_scripted_server import ScriptedServer, abort, error_details, once

import solstice.connect as sc
from pubsub_authority import Authority
from solstice import errors


@pytest.fixture
def server():
    scripted = ScriptedServer()
    yield scripted
    scripted.stop()


@pytest.fixture
def session(server):
    with sc.connect(server.url()) as connected:
        yield connected


# Settings.


def test_settings_are_set_read_and_unset(server, session):
    session.conf.set("spark.sql.a", True)
    session.conf.set("spark.sql.b", 5)
    assert session.conf.get("spark.sql.a") == "true"
    assert session.conf.getAll == session.conf.get_all == {"spark.sql.a": "true", "spark.sql.b": "5"}
    session.conf.unset("spark.sql.a")
    assert session.conf.get("spark.sql.a", "other") == "other"
    assert session.conf.get("spark.sql.a", None) is None
    assert session.conf.isModifiable("spark.sql.a")
    assert not session.conf.is_modifiable("spark.driver.memory")


def test_the_servers_warnings_about_settings_are_passed_on(session):
    with pytest.warns(UserWarning, match="old"):
        session.conf.set("deprecated", "x")


# Tags and interrupts.


def test_operations_carry_the_tags_of_their_thread(server, session):
    session.addTag("one")
    session.add_tag("two")
    session.remove_tag("one")
    session.remove_tag("never there")
    other = threading.Thread(target=lambda: session.sql("select 1").collect())
    other.start()
    other.join()
    session.sql("select n").collect()
    assert session.getTags() == {"two"}
    session.clear_tags()
    session.sql("select n").collect()
    assert [list(request.tags) for request in server.requests("ExecutePlan")] == [[], ["two"], []]


def test_tags_of_one_session_are_not_those_of_another(server, session):
    session.add_tag("mine")
    with sc.connect(server.url()) as other:
        assert other.get_tags() == set()


@pytest.mark.parametrize("tag", ["", "a,b", None])
def test_what_cannot_be_a_tag_is_refused(session, tag):
    for use in (session.add_tag, session.remove_tag, session.interrupt_tag):
        with pytest.raises(errors.ConfigError, match="not a tag"):
            use(tag)


def test_interrupts_name_what_to_interrupt(server, session):
    assert session.interruptAll() == ["all"]
    assert session.interrupt_tag("t") == ["t"]
    assert session.interrupt_operation("op") == ["op"]
    kinds = [request.interrupt_type for request in server.requests("Interrupt")]
    assert kinds == [1, 2, 3]


def test_an_interrupted_query_says_so(server, session):
    details = error_details("gone", ErrorInfo={"metadata": {"errorClass": "OPERATION_CANCELED"}})
    server.hooks["ExecutePlan"] = abort(grpc.StatusCode.INTERNAL, "gone", details)
    with pytest.raises(errors.OperationInterruptedError):
        session.sql("select n").collect()


# Progress.


def test_handlers_are_told_how_far_a_query_is_and_when_it_is_over(server, session):
    stage = {"stage_id": 3, "num_tasks": 4, "num_completed_tasks": 1, "input_bytes_read": 5}

    def report(request, context):
        yield server.protocol.ExecutePlanResponse(response_id="p", execution_progress={})
        progress = {"stages": [stage], "num_inflight_tasks": 2}
        yield server.protocol.ExecutePlanResponse(response_id="p", execution_progress=progress)

    server.hooks["ExecutePlan"] = report
    told = []

    def handler(stages, inflight_tasks, operation_id, done):
        told.append(([(s.stage_id, s.num_tasks, s.num_completed_tasks) for s in stages], inflight_tasks, done))
        assert operation_id == server.requests("ExecutePlan")[0].operation_id

    session.registerProgressHandler(handler)
    session.register_progress_handler(handler)
    assert session.sql("select n").count() == 1
    assert told == [([(3, 4, 1)], 2, False), ([(3, 4, 1)], 2, True)]
    session.remove_progress_handler(handler)
    session.sql("select n").collect()
    session.clear_progress_handlers()
    assert len(told) == 2


# Tokens.


def test_a_token_function_is_asked_before_every_call(server):
    tokens = iter(f"t{number}" for number in range(99))
    with sc.connect(server.url(), token=lambda: next(tokens), headers={"X-Team": "data"}) as session:
        session.sql("select n").collect()
        server.wait_for("ReleaseExecute")
    sent = [metadata["authorization"] for _, _, metadata in server.calls]
    assert sorted(sent) == sorted({f"Bearer t{number}" for number in range(len(server.calls))})
    assert {metadata["x-team"] for _, _, metadata in server.calls} == {"data"}


def expired(valid):
    """A hook that refuses every token but a valid one."""

    def hook(request, context):
        if dict(context.invocation_metadata()).get("authorization") != f"Bearer {valid}":
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "token expired")

    return hook


@pytest.mark.parametrize("method", ["AnalyzePlan", "ExecutePlan"])
def test_an_expired_token_is_asked_for_again_and_the_call_repeated_once(server, method):
    tokens = ["old"]
    asked = []

    def token():
        asked.append(tokens[-1])
        return tokens[-1]

    with sc.connect(server.url(), token=token) as session:
        before = len(server.requests(method))

        def refuse_old(request, context):
            tokens.append("new")  # what the issuer gives from now on
            expired("new")(request, context)

        server.hooks[method] = refuse_old
        if method == "ExecutePlan":
            assert session.sql("select n").collect() == [(1,), (2,), (3,)]
        else:
            assert session._link.driver is not None
            assert session.sql("select n").schema is not None
    assert len(server.requests(method)) - before == 2
    assert "new" in asked


def test_a_token_that_stays_wrong_fails_once(server):
    server.hooks["AnalyzePlan"] = expired("other")
    with pytest.raises(errors.AuthenticationError, match="token expired") as refused:
        sc.connect(server.url(), token=lambda: "wrong-t")
    assert len(server.requests("AnalyzePlan")) == 1
    assert "wrong-t" not in str(refused.value)


def test_tokens_that_change_and_stay_wrong_fail_after_the_second(server):
    numbers = iter(range(99))
    server.hooks["AnalyzePlan"] = expired("other")
    with pytest.raises(errors.AuthenticationError):
        sc.connect(server.url(), token=lambda: f"wrong-{next(numbers)}")
    assert len(server.requests("AnalyzePlan")) == 2


@pytest.mark.parametrize("token", [None, 5, "two\nlines"])
def test_a_token_function_that_gives_no_token_is_an_error_that_names_it(server, token):
    with pytest.raises(errors.ConfigError, match="'token'"):
        sc.connect(server.url(), token=lambda: token)


# TLS.

TLS_CLIENT = """
import sys, asyncio
import solstice.connect as sc

with sc.connect(sys.argv[1]) as spark:
    print(spark.sql("select n").collect())

async def main():
    async with await sc.connect_async(sys.argv[1]) as spark:
        print(await spark.sql("select n").count())

asyncio.run(main())
"""


def test_tls_with_an_authority_of_ones_own(tmp_path):
    authority = Authority()
    certificate, key = authority.identity
    server = ScriptedServer(grpc.ssl_server_credentials([(key.encode(), certificate.encode())]))
    (tmp_path / "roots.pem").write_text(authority.certificate)
    url = server.url("use_ssl=true;token=t1")
    for roots, outcome in ((tmp_path / "roots.pem", "[Row(n=1), Row(n=2), Row(n=3)]\n1\n"), (None, "")):
        environment = {key: value for key, value in os.environ.items() if "SSL_ROOTS" not in key}
        if roots is not None:
            environment["GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"] = str(roots)
        command = [sys.executable, "-c", TLS_CLIENT, url]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.stdout == outcome, done.stderr
    assert "TransportError" in done.stderr
    assert {metadata["authorization"] for _, _, metadata in server.calls} == {"Bearer t1"}
    server.stop()


# Deadlines and retries.


def test_an_operation_that_takes_too_long_is_ended_and_says_so(server):
    released = threading.Event()

    def hang(request, context):
        context.add_callback(released.set)
        released.wait(30)
        return ()

    server.hooks["ExecutePlan"] = hang
    with sc.connect(server.url(), timeout_s=0.3) as session:
        started = time.monotonic()
        with pytest.raises(errors.OperationTimeoutError, match=r"longer than 0\.3 s"):
            session.sql("select n").collect()
        assert time.monotonic() - started < 3
        server.assert_ended(server.requests("ExecutePlan")[0].operation_id)
        del server.hooks["ExecutePlan"]
        session.timeout_s = None
        assert session.sql("select n").collect() == [(1,), (2,), (3,)]


def test_a_question_that_takes_too_long_says_so(server):
    with sc.connect(server.url()) as session:
        session.timeout_s = 0.2
        server.hooks["AnalyzePlan"] = lambda request, context: time.sleep(1)
        with pytest.raises(TimeoutError):
            _ = session.sql("select n").schema


@pytest.mark.parametrize("timeout_s", [0, -1])
def test_a_timeout_that_is_none_is_refused(server, timeout_s):
    with pytest.raises(errors.ConfigError, match="timeout_s"):
        sc.connect(server.url(), timeout_s=timeout_s)


def test_the_server_says_when_to_try_again(server, session):
    details = error_details(RetryInfo={"retry_delay": {"nanos": 400_000_000}})
    server.hooks["AnalyzePlan"] = once(abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "busy", details))
    started = time.monotonic()
    assert session.sql("select n").schema is not None
    assert time.monotonic() - started >= 0.4


# Bounds of the session.


def test_the_sessions_bounds_hold_where_a_call_has_none_of_its_own(server):
    with sc.connect(server.url(), max_rows=2) as session:
        query = session.sql("select n")
        for fetch in (query.collect, query.to_arrow, query.to_pandas, query.to_polars):
            with pytest.raises(errors.ResultTooLargeError, match="2 rows"):
                fetch()
        assert len(query.collect(max_rows=None)) == query.to_polars(max_rows=3).height == 3
        assert len(list(query.iter_rows())) == len(query.take(9)) == 3  # they say themselves how much they want
    with pytest.raises(errors.ConfigError, match="max_bytes"):
        sc.connect(server.url(), max_bytes=-1)


# Other sessions.


def test_a_clone_and_a_new_session_speak_to_the_same_server(server):
    with sc.connect(server.url(), token=lambda: "t", timeout_s=7, max_rows=2) as session:
        clone = session.cloneSession("11111111-2222-4333-8444-555555555555")
        fresh = session.newSession()
        [request] = server.requests("CloneSession")
        assert request.new_session_id == clone.session_id == "11111111-2222-4333-8444-555555555555"
        assert len({session.session_id, clone.session_id, fresh.session_id}) == 3
        for other in (clone, fresh):
            assert other.timeout_s == 7
            with pytest.raises(errors.ResultTooLargeError):
                other.sql("select n").collect()
            other.stop()
            assert other.is_stopped
        assert session.sql("select n").take(1)


def test_a_lost_session_says_how_to_go_on(server, session):
    changed = error_details(ErrorInfo={"metadata": {"errorClass": "INVALID_HANDLE.SESSION_CHANGED"}})
    server.hooks["ExecutePlan"] = once(abort(grpc.StatusCode.INTERNAL, "restarted", changed))
    with pytest.raises(errors.SessionLostError, match=r"new_session\(\)"):
        session.sql("select n").collect()
    with session.new_session() as renewed:
        assert renewed.sql("select n").collect() == [(1,), (2,), (3,)]


def test_a_session_lives_as_long_as_one_that_was_made_from_it(server):
    session = sc.connect(server.url())
    ended = []
    session._on_stop = weakref.finalize(session, ended.append, True)  # as local() ends its server
    clone = session.new_session().clone_session()
    del session
    gc.collect()
    assert not ended
    assert clone.sql("select n").take(1)
    clone.stop()
    del clone
    gc.collect()
    assert ended


# Results without data.


def schema_only(server):
    def answer(request, context):
        field = {"name": "n", "data_type": {"timestamp": {}}, "nullable": True}
        yield server.protocol.ExecutePlanResponse(response_id="0", schema={"struct": {"fields": [field]}})

    return answer


def test_a_result_without_data_has_its_schema(server, session):
    server.batches = []
    server.hooks["ExecutePlan"] = schema_only(server)
    query = session.sql("select n")
    assert query.collect() == list(query.iter_batches()) == []
    assert query.to_arrow().schema == pa.schema({"n": pa.timestamp("us", "UTC")})
    assert pa.table(query).schema == query.to_arrow().schema
    assert query.to_polars().columns == ["n"]
    assert dict(query.to_pandas().dtypes) == {"n": "datetime64[ns]"}


def test_a_result_without_anything_is_an_error_of_the_server(server, session):
    server.batches = []
    query = session.sql("select n")
    for fetch in (query.to_arrow, query.to_pandas, query.to_polars, query.count, query.show, lambda: pa.table(query)):
        with pytest.raises(errors.TransportError, match="without a result"):
            fetch()
