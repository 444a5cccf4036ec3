import json

import pytest
from connect_recorder import session

from solstice import errors
from solstice.connect import functions as F
from solstice.connect import types as T
from solstice.connect._errors import error_of
from solstice.connect._protocol import load_protocol
from solstice.connect._status import Failure, failure_of


def metadata(*details, message="sorry"):
    protocol = load_protocol()
    status = protocol.message("google.rpc.Status")(code=13, message=message)
    for name, fields in details:
        status.details.add(
            type_url=f"type.googleapis.com/google.rpc.{name}",
            value=protocol.message(f"google.rpc.{name}")(**fields).SerializeToString(),
        )
    return [("other", "x"), ("grpc-status-details-bin", status.SerializeToString())]


def test_a_status_without_details_is_its_code_and_message():
    assert failure_of(load_protocol(), "UNAVAILABLE", "Socket closed", None) == Failure("UNAVAILABLE", "Socket closed")


def test_sparks_error_is_read_from_the_details():
    info = {
        "metadata": {
            "errorClass": "DIVIDE_BY_ZERO",
            "sqlState": "22012",
            "errorId": "e1",
            "messageParameters": json.dumps({"config": "ansi"}),
        }
    }
    failure = failure_of(load_protocol(), "INTERNAL", None, metadata(("ErrorInfo", info)))
    assert failure == Failure(
        "INTERNAL",
        "sorry",
        error_class="DIVIDE_BY_ZERO",
        sql_state="22012",
        parameters={"config": "ansi"},
        error_id="e1",
        from_spark=True,
    )
    assert not failure.is_transient


def test_parameters_that_the_server_cut_short_are_left_out():
    info = {"metadata": {"errorClass": "X", "messageParameters": '{"a": "b'}}
    assert failure_of(load_protocol(), "INTERNAL", None, metadata(("ErrorInfo", info))).parameters == {}


def test_a_retry_delay_makes_any_error_transient():
    info = {"retry_delay": {"seconds": 2, "nanos": 500_000_000}}
    failure = failure_of(load_protocol(), "INTERNAL", None, metadata(("RetryInfo", info)))
    assert failure.retry_delay_s == 2.5
    assert failure.is_transient


@pytest.mark.parametrize(
    ("failure", "transient"),
    [
        (Failure("UNAVAILABLE", "connection refused"), True),
        (Failure("INTERNAL", "[INVALID_CURSOR.DISCONNECTED] another reader"), True),
        (Failure("INTERNAL", "Received RST_STREAM with error code 2"), True),
        (Failure("INTERNAL", "division by zero"), False),
        (Failure("UNKNOWN", ""), False),
        (Failure("UNAUTHENTICATED", "wrong token"), False),
        (Failure("RESOURCE_EXHAUSTED", "message too large"), False),
    ],
)
def test_only_what_may_pass_is_transient(failure, transient):
    assert failure.is_transient is transient


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (Failure("UNAVAILABLE", "refused"), errors.TransportError),
        (Failure("UNKNOWN", "?"), errors.TransportError),
        (Failure("RESOURCE_EXHAUSTED", "Received message larger than max (2 vs. 1)"), errors.TransportError),
        (Failure("UNAUTHENTICATED", "no"), errors.AuthenticationError),
        (Failure("PERMISSION_DENIED", "no"), errors.AuthenticationError),
        (Failure("UNIMPLEMENTED", "no"), errors.UnsupportedError),
        (Failure("INTERNAL", "m", error_class="DIVIDE_BY_ZERO", from_spark=True), errors.RemoteError),
        (Failure("INTERNAL", "m", from_spark=True), errors.RemoteError),
        (Failure("INTERNAL", "m", error_class="OPERATION_CANCELED", from_spark=True), errors.OperationInterruptedError),
        (
            Failure("INTERNAL", "m", error_class="INVALID_HANDLE.SESSION_CHANGED", from_spark=True),
            errors.SessionLostError,
        ),
    ],
)
def test_each_failure_has_its_error(failure, kind):
    assert type(error_of(failure, address="h:1")) is kind


def test_an_unreachable_server_is_named_with_what_to_check():
    error = error_of(Failure("UNAVAILABLE", "Connection refused"), address="h:1")
    assert "h:1" in str(error)
    assert "local()" in error.remedy
    assert error.code == "UNAVAILABLE"


def test_the_plan_and_the_java_frames_are_left_out():
    plan = "[X] no table. SQLSTATE: 42P01; line 1 pos 14;\n'Project [*]\n+- 'UnresolvedRelation [nope]"
    stack = "[X] failed. SQLSTATE: 1\n\tat org.apache.spark.Foo(Foo.scala:1)\n\tat java.base/Bar"
    assert str(error_of(Failure("INTERNAL", plan, from_spark=True), address="h")).endswith("line 1 pos 14")
    assert str(error_of(Failure("INTERNAL", stack, from_spark=True), address="h")) == "[X] failed. SQLSTATE: 1"


def test_the_place_in_the_query_is_kept():
    text = "[DIVIDE_BY_ZERO] Division by zero.\n== SQL (line 1, position 8) ==\nselect 1/0\n       ^^^"
    assert str(error_of(Failure("INTERNAL", text, from_spark=True), address="h")) == text


@pytest.mark.parametrize(
    "place",
    [
        "== SQL ==\nselect 1;\n(1 + 2),\n* frm x\n------^^^\nSum(a)\n+ 3",
        "== SQL (line 2, position 1) ==\nSUM(a)\n^^^^^^\n/ (SUM(a) -\n^^^^^^^^^^^\nSUM(a)) as x\n^^^^^^^",
        "== SQL of VIEW v (line 2, position 2) ==\n(a /\n ^^^\n0) as x\n^",
        '== DataFrame ==\n"divide" was called from\n<stdin>:1',
    ],
)
@pytest.mark.parametrize(
    "after", ["", "\n\tat a.B.c(B.scala:1)", "\n\nJVM stacktrace:\na.B: m", ";\n'Project [*]\n+- X"]
)
def test_no_line_of_the_query_is_taken_for_a_plan(place, after):
    if after.startswith(";") and place.startswith("== SQL ==\n"):
        return  # of SQL that cannot be read there is no plan
    text = f"[X] no. SQLSTATE: 1\n{place}"
    assert str(error_of(Failure("INTERNAL", text + after, from_spark=True), address="h")) == text


def test_what_the_server_remembers_completes_the_status():
    details = load_protocol().FetchErrorDetailsResponse(
        root_error_idx=1,
        errors=[
            {"message": "the cause"},
            {
                "message": "the whole message",
                "spark_throwable": {
                    "error_class": "DIVIDE_BY_ZERO",
                    "sql_state": "22012",
                    "message_parameters": {"config": "ansi"},
                    "query_contexts": [{"fragment": "1/0"}],
                },
            },
        ],
    )
    error = error_of(Failure("INTERNAL", "the who...", from_spark=True), address="h", details=details)
    assert str(error) == "the whole message"
    assert (error.error_class, error.sql_state, error.fragment) == ("DIVIDE_BY_ZERO", "22012", "1/0")
    assert error.parameters == {"config": "ansi"}


def test_the_stack_of_the_server_is_there_for_who_asks():
    frame = {"declaring_class": "a.B", "method_name": "c", "file_name": "B.scala", "line_number": 7}
    errors_ = [
        {"message": "why", "error_type_hierarchy": ["a.Cause", "a.Base"], "stack_trace": [frame], "cause_idx": 1},
        {"message": "what", "error_type_hierarchy": ["a.Root"], "stack_trace": [frame, frame], "cause_idx": 0},
    ]
    details = load_protocol().FetchErrorDetailsResponse(root_error_idx=1, errors=errors_)
    failure = Failure("INTERNAL", "m", from_spark=True)
    error = error_of(failure, address="h", details=details)
    at = "\tat a.B.c(B.scala:7)"
    assert error.stack_trace == error.getStackTrace() == f"a.Root\n{at}\n{at}\nCaused by: a.Cause: why\n{at}"
    assert str(error) == "what"
    assert error_of(failure, address="h").stack_trace is None
    bare = load_protocol().FetchErrorDetailsResponse(root_error_idx=0, errors=[{"message": "what"}])
    assert error_of(failure, address="h", details=bare).stack_trace is None


@pytest.mark.parametrize(
    "frame",
    [
        "org.apache.spark.sql.connect.service.SparkConnectServer.main(SparkConnectServer.scala)",
        "java.base/jdk.internal.reflect.NativeMethodAccessorImpl.invoke0(Native Method)",
        "java.base/java.lang.reflect.Method.invoke(Method.java:569)",
    ],
)
def test_java_frames_that_stand_bare_are_cut(frame):
    failure = Failure("INTERNAL", f"It was stopped.\nIt was created at:\n\n{frame}\n", from_spark=True)
    assert str(error_of(failure, address="h:1")) == "It was stopped.\nIt was created at:"


def test_a_spark_that_has_stopped_under_its_server_is_not_an_error_of_the_query():
    message = (
        "Cannot call methods on a stopped SparkContext.\nThis stopped SparkContext was created at:\n\nx.Y.z(Y.java:1)"
    )
    error = error_of(Failure("INTERNAL", message, from_spark=True), address="h:1")
    assert isinstance(error, errors.TransportError)
    assert "h:1" in error.message
    assert "spark.driver.memory" in error.remedy


@pytest.mark.parametrize(
    ("classes", "expected"),
    [
        (
            ["org.apache.spark.sql.catalyst.parser.ParseException", "org.apache.spark.sql.AnalysisException"],
            "ParseError",
        ),
        (
            ["org.apache.spark.sql.catalyst.ExtendedAnalysisException", "org.apache.spark.sql.AnalysisException"],
            "AnalysisError",
        ),
        (["org.apache.spark.SparkArithmeticException", "java.lang.ArithmeticException"], "SparkArithmeticError"),
        (["org.apache.spark.SparkNumberFormatException", "java.lang.NumberFormatException"], "NumberFormatError"),
        (["org.example.Own", "java.lang.Exception"], "RemoteError"),
        ([], "RemoteError"),
    ],
)
def test_the_class_on_the_server_decides_the_class_here(classes, expected):
    info = {"metadata": {"errorClass": "X", "classes": json.dumps(classes)}}
    failure = failure_of(load_protocol(), "INTERNAL", None, metadata(("ErrorInfo", info)))
    assert type(error_of(failure, address="h:1")).__name__ == expected


def test_a_list_of_classes_that_the_server_cut_short_is_read_as_far_as_it_goes():
    info = {"metadata": {"errorClass": "X", "classes": '["org.apache.spark.sql.AnalysisException","java.la'}}
    failure = failure_of(load_protocol(), "INTERNAL", None, metadata(("ErrorInfo", info)))
    assert isinstance(error_of(failure, address="h:1"), errors.AnalysisError)


def test_pysparks_names_and_accessors():
    from solstice.connect.errors import AnalysisException, ParseException, PySparkException

    error = errors.ParseError("no", error_class="PARSE_SYNTAX_ERROR", sql_state="42601", parameters={"a": "b"})
    for name in (ParseException, AnalysisException, PySparkException):
        assert isinstance(error, name)
    assert (error.getErrorClass(), error.getCondition()) == ("PARSE_SYNTAX_ERROR", "PARSE_SYNTAX_ERROR")
    assert (error.getSqlState(), error.getMessageParameters(), error.getMessage()) == ("42601", {"a": "b"}, "no")


def test_a_message_that_is_too_large_names_the_parameter_to_raise():
    error = error_of(Failure("RESOURCE_EXHAUSTED", "Received message larger than max (2 vs. 1)"), address="host:1")
    assert "grpc_max_message_size" in error.remedy


@pytest.mark.parametrize(
    ("kind", "refused"),
    [
        ("PySparkValueError", lambda df: bool(F.col("a") == 1)),
        ("PySparkTypeError", lambda df: iter(F.col("a"))),
        ("PySparkTypeError", lambda df: df.filter(5)),
        ("PySparkTypeError", lambda df: df.join(5, "id")),
        ("PySparkTypeError", lambda df: df.withColumn("a", 5)),
        ("PySparkTypeError", lambda df: df.fillna({"a": None})),
        ("PySparkTypeError", lambda df: df.fillna(None)),
        ("PySparkTypeError", lambda df: F.col("a").cast(5)),
        ("PySparkTypeError", lambda df: F.upper(5)),
        ("PySparkTypeError", lambda df: df.sparkSession.createDataFrame([(1,), ([1],)])),
        ("PySparkTypeError", lambda df: df.sparkSession.createDataFrame([("x",)], T.StructType().add("a", "int"))),
        ("PySparkTypeError", lambda df: df.sparkSession.createDataFrame(5)),
    ],
)
def test_what_the_client_refuses_is_caught_by_pysparks_names(kind, refused):
    import solstice.connect.errors as pysparks

    with pytest.raises(getattr(pysparks, kind)) as caught:
        refused(session().range(1))
    assert isinstance(caught.value, pysparks.PySparkException)
