"""From a failed call to the error that a user sees: short, with Spark's own class, and what to do about it."""

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

from solstice.connect._query_context import QueryContext
from solstice.connect._status import Failure
from solstice.errors import (
    AnalysisError,
    ArrayIndexError,
    AuthenticationError,
    ConnectError,
    DateTimeError,
    IllegalArgumentError,
    NoSuchElementError,
    NumberFormatError,
    OperationInterruptedError,
    ParseError,
    PythonWorkerError,
    QueryExecutionError,
    RemoteError,
    SessionLostError,
    SparkArithmeticError,
    SparkRuntimeError,
    SparkUpgradeError,
    StreamingQueryError,
    TransportError,
    UnsupportedError,
    UnsupportedOperationError,
    ViewExistsError,
)

_LOST_SESSION = ("INVALID_HANDLE.SESSION_NOT_FOUND", "INVALID_HANDLE.SESSION_CHANGED", "INVALID_HANDLE.SESSION_CLOSED")
_INTERRUPTED = "OPERATION_CANCELED"
# A server whose memory ran out says this, between the end of its Spark and its own.
_STOPPED_SPARK = "Cannot call methods on a stopped SparkContext"
_CLASSES: dict[str, type[RemoteError]] = {
    "org.apache.spark.sql.catalyst.parser.ParseException": ParseError,
    "org.apache.spark.sql.catalyst.analysis.TempTableAlreadyExistsException": ViewExistsError,
    "org.apache.spark.sql.AnalysisException": AnalysisError,
    "org.apache.spark.sql.streaming.StreamingQueryException": StreamingQueryError,
    "org.apache.spark.sql.execution.QueryExecutionException": QueryExecutionError,
    "org.apache.spark.SparkRuntimeException": SparkRuntimeError,
    "org.apache.spark.SparkUpgradeException": SparkUpgradeError,
    "org.apache.spark.SparkNoSuchElementException": NoSuchElementError,
    "org.apache.spark.api.python.PythonException": PythonWorkerError,
    "java.lang.NumberFormatException": NumberFormatError,
    "java.lang.IllegalArgumentException": IllegalArgumentError,
    "java.lang.ArithmeticException": SparkArithmeticError,
    "java.lang.UnsupportedOperationException": UnsupportedOperationError,
    "java.lang.ArrayIndexOutOfBoundsException": ArrayIndexError,
    "java.time.DateTimeException": DateTimeError,
}
_NO_ANSWER = ("UNAVAILABLE", "DEADLINE_EXCEEDED")
# After the sentence Spark prints the plan, or the Java frames; both are of no use to the caller.
_STACK = (
    r"\n(?=\s*at [\w.$/<>]+\(|\nJVM stacktrace"
    r"|\s*[\w.$/]+\.[\w$<>]+\((?:[\w$]+\.(?:java|scala)[:)]|Native Method\)|Unknown Source\)))"
)
_PLAN = r"\n(?=['+:!*(]|[A-Z][A-Za-z]+ ?[\[(])"
# Before either may stand a place in the query, whose lines look like anything; a semicolon sets a plan off from it.
_PLACE = re.compile(r"^== (?:SQL|DataFrame)(?: .*)? ==$", re.MULTILINE)
_AFTER_THE_SENTENCE = re.compile(rf";?(?:{_PLAN}|{_STACK})")
_AFTER_A_PLACE = re.compile(rf";{_PLAN}|{_STACK}")
_AFTER_SQL_THAT_CANNOT_BE_READ = re.compile(_STACK)  # of which there is no plan


def error_of(failure: Failure, *, address: str, details: Any = None) -> ConnectError:
    """The error to raise. ``details`` is a FetchErrorDetailsResponse, where the server gave one."""
    contexts: Sequence[QueryContext] = ()
    if details is not None:
        failure, contexts = _enriched(failure, details)
    message = _short(failure.message)
    if failure.error_class in _LOST_SESSION:
        return SessionLostError(
            f"the server at {address} no longer knows this session: {message.rstrip('.')}.",
            remedy="Go on with session.new_session(), or connect again; views, settings and caches are gone.",
        )
    if failure.error_class == _INTERRUPTED:
        return OperationInterruptedError(message)
    if message.startswith(_STOPPED_SPARK):
        return TransportError(
            f"Spark has stopped in the server at {address}, which cannot run queries any more.",
            code=failure.code,
            remedy="Start the server anew; if its log says OutOfMemoryError, with more spark.driver.memory.",
        )
    if failure.from_spark:
        return _remote_class(failure)(
            message,
            error_class=failure.error_class,
            sql_state=failure.sql_state,
            parameters=failure.parameters,
            contexts=contexts,
            stack_trace=_stack_trace(details),
        )
    if failure.is_refusal:
        return AuthenticationError(
            f"the server at {address} refused the credentials: {message.rstrip('.')}.",
            remedy="Check the token: connect(token=...), ;token=... in the URL, or SPARK_CONNECT_AUTHENTICATE_TOKEN.",
        )
    if failure.code == "UNIMPLEMENTED":
        return UnsupportedError(f"the server at {address} does not know this operation: {message}")
    if failure.code in _NO_ANSWER:
        return TransportError(
            f"no Spark Connect server answers at {address} ({message}).",
            code=failure.code,
            remedy="Check that it runs, the host and port of the URL, and use_ssl; local() starts one here.",
        )
    if failure.code == "RESOURCE_EXHAUSTED" and "larger than max" in message:
        return TransportError(
            f"a message between {address} and this client is larger than either takes: {message}",
            code=failure.code,
            remedy="Raise ;grpc_max_message_size=... in the URL (in bytes), or select less at a time.",
        )
    if failure.code == "UNKNOWN":
        return TransportError(
            f"the server at {address} failed without a reason ({message or 'no message'}).",
            code=failure.code,
            remedy="A plan of hundreds of nested operations does this: save an intermediate result and go on from it.",
        )
    return TransportError(f"the call to {address} failed with {failure.code}: {message}", code=failure.code)


def _remote_class(failure: Failure) -> type[RemoteError]:
    """The class for the nearest known one of the exception on the server."""
    return next((_CLASSES[name] for name in failure.java_classes if name in _CLASSES), RemoteError)


def _enriched(failure: Failure, details: Any) -> "tuple[Failure, list[QueryContext]]":
    """Complete a failure by what the server remembers of it: the status itself is cut at 2 KB."""
    if not details.HasField("root_error_idx") or not details.errors:
        return failure, []
    root = details.errors[details.root_error_idx]
    throwable = root.spark_throwable
    changes: dict[str, Any] = {"message": root.message or failure.message}
    if throwable.HasField("error_class"):
        changes["error_class"] = throwable.error_class
    if throwable.HasField("sql_state"):
        changes["sql_state"] = throwable.sql_state
    if throwable.message_parameters:
        changes["parameters"] = dict(throwable.message_parameters)
    # Without a place in a text or a method, which a plan of ours does not tell, Spark sends an empty context.
    contexts = [QueryContext(context) for context in throwable.query_contexts if context.fragment]
    return dataclasses.replace(failure, **changes), contexts


def _stack_trace(details: Any) -> str | None:
    """The frames of the error and of its causes, as Java prints them."""
    if details is None or not details.HasField("root_error_idx"):
        return None
    lines: list[str] = []
    left = dict(enumerate(details.errors))  # each once, whatever the server says of causes
    error = left.pop(details.root_error_idx, None)
    while error is not None:
        name = next(iter(error.error_type_hierarchy), "")
        lines.append(f"Caused by: {name}: {error.message}" if lines else name)
        lines += (f"\tat {f.declaring_class}.{f.method_name}({f.file_name}:{f.line_number})" for f in error.stack_trace)
        error = left.pop(error.cause_idx, None) if error.HasField("cause_idx") else None
    return "\n".join(lines) if len(lines) > 1 else None


def _short(message: str) -> str:
    place = _PLACE.search(message)
    sentence = message if place is None else message[: place.start()]
    short = _AFTER_THE_SENTENCE.split(sentence, maxsplit=1)[0]
    if place is not None and short == sentence:
        unread = place.group() == "== SQL =="
        ends = _AFTER_SQL_THAT_CANNOT_BE_READ if unread else _AFTER_A_PLACE
        short += ends.split(message[place.start() :], maxsplit=1)[0]
    return short.strip()
