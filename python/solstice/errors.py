"""Every error Solstice raises, in one place.

    SolsticeError                        the root: catch this to catch all of Solstice
    ├── ConfigError                      an option, URL or environment variable is wrong (also a ValueError)
    │   ├── UnknownOptionError           an option nobody knows, with the nearest known name
    │   ├── UnsupportedTypeError         a data type that cannot cross between Spark and Arrow
    │   └── MissingExtraError            a package of an optional extra is not installed (also an ImportError)
    ├── MachineError                     the machine lacks something: Java, memory, space
    ├── NativeError                      the native core failed in a way it never should (a Rust panic)
    ├── PubSubError                      Google Cloud Pub/Sub
    │   ├── NotFoundError                no such topic or subscription
    │   ├── AlreadyExistsError           a topic or subscription of that name is there
    │   ├── PermissionDeniedError        the caller lacks a role
    │   ├── UnauthenticatedError         no credentials, or bad ones
    │   ├── InvalidRequestError          the service refused the request as malformed
    │   ├── UnavailableError             the service could not be reached within the deadline
    │   ├── PublishError                 rows that were not published, and why
    │   ├── AgentLostError               the agent of a streaming query is gone; nothing is lost, restart the query
    │   ├── PartUnavailableError         a part of a batch could not be read whole
    │   ├── LogError                     the log of delivery="log" is damaged, out of reach or another query's
    │   ├── AcknowledgeError             acknowledgements came too late and were refused for good
    │   ├── PullerClosedError            a puller, or a batch of it, was used after its end
    │   ├── CorruptRowError              a payload does not fit its schema, in mode FAILFAST
    │   └── UnsupportedTriggerError      a trigger under which nothing would ever be acknowledged
    ├── PipelineError                    jobs, queues, payloads, workers
    │   ├── QueueError                   the queue refused or failed
    │   │   └── LeaseLostError           a worker's split was given to another worker
    │   ├── PayloadMissingError          a message names a payload that is not in the store
    │   ├── PayloadCorruptError          a payload's checksum differs from its message
    │   ├── StoreError                   the payload store cannot be reached, or refuses
    │   ├── OperatorError                the user's function raised or returned the wrong type
    │   ├── StreamResetError             a checkpoint was reset under a stream that is known already
    │   ├── PlanChangedError             a resumed job differs from the one that was started
    │   ├── SinkError                    the committing sink found its files in an impossible state
    │   ├── JobRunningError              another process runs the job
    │   └── JobFailedError               a job ended with splits that could not be processed
    └── ConnectError                     the Spark Connect client
        ├── TransportError               the connection failed and could not be mended
        ├── AuthenticationError          the server refused the credentials; never retried
        ├── RemoteError                  Spark reported an error: class, SQLSTATE, parameters
        │   ├── AnalysisError            the query is wrong: no such table, column or function, or types that do not fit
        │   │   ├── ParseError           the SQL cannot be read
        │   │   └── ViewExistsError      a temporary view of that name is there
        │   ├── IllegalArgumentError     an argument that Spark refuses
        │   │   └── NumberFormatError    text that is not a number
        │   ├── SparkArithmeticError     an overflow, or a division by zero
        │   ├── ArrayIndexError          an element that an array does not have
        │   ├── DateTimeError            text that is not a date or time
        │   ├── NoSuchElementError       a key or setting that does not exist
        │   ├── PythonWorkerError        a function of Python failed on the server
        │   ├── QueryExecutionError      a query failed while it ran
        │   ├── SparkRuntimeError        a value in the data that an operation refuses
        │   ├── SparkUpgradeError        something that this version of Spark does in another way
        │   ├── StreamingQueryError      a streaming query failed
        │   └── UnsupportedOperationError  an operation that Spark does not have
        ├── InvalidPlanError             a plan, or an argument of one, that cannot be sent (also a ValueError)
        ├── ArgumentTypeError            an argument, or a value in data to send, of a wrong type (also a TypeError)
        ├── UnsupportedError             this server does not know the operation
        ├── ResultTooLargeError          a bounded result would exceed its bound
        ├── SessionLostError             the server no longer knows the session
        ├── SessionClosedError           the session was stopped here
        ├── OperationInterruptedError    the operation was interrupted
        └── OperationTimeoutError        the operation took longer than the session allows (also a TimeoutError)

Every error carries ``remedy``: what to do about it, in one sentence, or None. It is part of the message.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


class SolsticeError(Exception):
    """The root of the tree."""

    def __init__(self, message: str, *, remedy: str | None = None) -> None:
        super().__init__(message if remedy is None else f"{message} {remedy}")
        self.message = message
        self.remedy = remedy

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.args, self.__dict__))


def _rebuild(cls: type[SolsticeError], args: tuple[Any, ...], fields: dict[str, Any]) -> SolsticeError:
    """Unpickle an error whose constructor takes keywords: errors cross process borders in workers."""
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(fields)
    return error


class ConfigError(SolsticeError, ValueError):
    """An option, URL or environment variable is wrong; ``option`` and ``value`` name it."""

    def __init__(
        self, message: str, *, option: str | None = None, value: object = None, remedy: str | None = None
    ) -> None:
        super().__init__(message, remedy=remedy)
        self.option = option
        self.value = value


class UnknownOptionError(ConfigError):
    """An option nobody knows."""


class UnsupportedTypeError(ConfigError):
    """A data type that cannot cross between Spark and Arrow; ``column`` is the path to it, ``value`` is the type."""

    def __init__(
        self, message: str, *, column: str | None = None, value: object = None, remedy: str | None = None
    ) -> None:
        super().__init__(message, value=value, remedy=remedy)
        self.column = column


class MissingExtraError(ConfigError, ImportError):
    """A package of an optional extra is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"the package {package!r} is not installed.",
            option=extra,
            value=package,
            remedy=f"Run: pip install 'solstice-spark[{extra}]'",
        )
        self.package = package
        self.extra = extra


class MachineError(SolsticeError):
    """The machine lacks something that Solstice needs: Java, memory, space, a port."""


class NativeError(SolsticeError):
    """The native core failed in a way it never should; please report it."""


class PubSubError(SolsticeError):
    """Google Cloud Pub/Sub refused or failed; ``code`` is the gRPC status name where there was one."""

    def __init__(self, message: str, *, code: str | None = None, remedy: str | None = None) -> None:
        super().__init__(message, remedy=remedy)
        self.code = code


class NotFoundError(PubSubError):
    """No such topic or subscription."""


class AlreadyExistsError(PubSubError):
    """A topic or subscription of that name is there already."""


class PermissionDeniedError(PubSubError):
    """The caller lacks a role."""


class UnauthenticatedError(PubSubError):
    """No credentials, or bad ones."""


class InvalidRequestError(PubSubError):
    """The service refused the request as malformed."""


class UnavailableError(PubSubError):
    """The service could not be reached within the deadline."""


@dataclass(frozen=True)
class RowFailure:
    """Rows that were not published, as far as anybody knows, and the reason; part of :class:`PublishError`.

    ``rows`` counts from the first row that was given. ``column`` names the column at fault when the rows themselves
    are; ``code`` is the gRPC status name when the service answered.
    """

    rows: range
    reason: str
    column: str | None = None
    code: str | None = None


class PublishError(PubSubError):
    """Some rows were not published.

    Of the first ``taken`` rows that were given, ``failures`` says which were not and why, by row; ``published`` counts
    the others. The rows after them, if there are more, were not looked at.
    """

    def __init__(
        self,
        message: str,
        *,
        taken: int = 0,
        published: int = 0,
        failures: tuple[RowFailure, ...] = (),
        code: str | None = None,
        remedy: str | None = None,
    ) -> None:
        super().__init__(message, code=code, remedy=remedy)
        self.taken = taken
        self.published = published
        self.failures = failures


class AgentLostError(PubSubError):
    """The agent of a streaming query is gone. Nothing is lost: its messages come again after a restart."""


class PartUnavailableError(PubSubError):
    """A part of a batch could not be read whole; the task fails rather than read less."""


class LogError(PubSubError):
    """The log of ``delivery="log"`` is damaged, out of reach, or was taken over by another query."""


class AcknowledgeError(PubSubError):
    """Acknowledgements came too late and were refused for good; these messages come again.

    ``acked`` is how many were confirmed, ``refused`` has the others: from the row in the batch to (ack id, reason).
    """

    def __init__(
        self,
        message: str,
        *,
        acked: int = 0,
        refused: dict[int, tuple[str, str]] | None = None,
        remedy: str | None = None,
    ) -> None:
        super().__init__(message, remedy=remedy)
        self.acked = acked
        self.refused = refused or {}


class PullerClosedError(PubSubError):
    """A puller, or a batch of it, was used after its end; what it held was given back."""


class CorruptRowError(PubSubError):
    """A payload is malformed or does not fit its schema; raised in mode FAILFAST only."""


class UnsupportedTriggerError(PubSubError):
    """A trigger under which no message would ever be acknowledged."""


class PipelineError(SolsticeError):
    """Jobs, queues, payloads, workers."""


class QueueError(PipelineError):
    """The queue refused or failed."""


class LeaseLostError(QueueError):
    """A worker's split was given to another worker; the transaction was rolled back."""


class PayloadMissingError(PipelineError):
    """A message names a payload that is not in the store."""


class PayloadCorruptError(PipelineError):
    """A payload's checksum differs from the one in its message."""


class StoreError(PipelineError):
    """The payload store cannot be reached, or refuses; no payload is to blame."""


class OperatorError(PipelineError):
    """The user's function raised, or returned something that is not a table."""


class StreamResetError(PipelineError):
    """A checkpoint was reset under a stream that the queue knows already."""


class PlanChangedError(PipelineError):
    """A resumed job differs from the one that was started."""


class SinkError(PipelineError):
    """The committing sink found its files in a state that no crash can lead to."""


class JobRunningError(PipelineError):
    """The job is running already; only one run of it may go on at a time."""


class JobFailedError(PipelineError):
    """A job ended with splits that could not be processed."""


class ConnectError(SolsticeError):
    """The Spark Connect client."""


class TransportError(ConnectError):
    """The connection failed and could not be mended; ``code`` is the gRPC status name."""

    def __init__(self, message: str, *, code: str | None = None, remedy: str | None = None) -> None:
        super().__init__(message, remedy=remedy)
        self.code = code


class AuthenticationError(ConnectError):
    """The server refused the credentials; never retried."""


class RemoteError(ConnectError):
    """Spark reported an error; ``error_class``, ``sql_state``, ``parameters`` and ``contexts`` are Spark's own.

    ``contexts`` are the places in the query that the error is about, the first the narrowest. ``stack_trace`` is the
    server's own, with its causes, which no message shows; None if the server keeps it to itself.
    """

    def __init__(
        self,
        message: str,
        *,
        error_class: str | None = None,
        sql_state: str | None = None,
        parameters: dict[str, str] | None = None,
        contexts: Sequence[Any] = (),
        stack_trace: str | None = None,
        remedy: str | None = None,
    ) -> None:
        super().__init__(message, remedy=remedy)
        self.error_class = error_class
        self.sql_state = sql_state
        self.parameters = parameters or {}
        self.contexts = contexts
        self.stack_trace = stack_trace

    @property
    def fragment(self) -> str | None:
        """The piece of the query, or of the DataFrame code, that the error is about."""
        return next((text for context in self.contexts if (text := str(context.fragment()))), None)

    def getQueryContext(self) -> list[Any]:
        """``contexts``, as PySpark's exceptions give them."""
        return list(self.contexts)

    def getStackTrace(self) -> str | None:
        """``stack_trace``, as PySpark's exceptions give it."""
        return self.stack_trace

    def getCondition(self) -> str | None:
        """``error_class``, as PySpark's exceptions give it."""
        return self.error_class

    getErrorClass = getCondition

    def getSqlState(self) -> str | None:
        """``sql_state``, as PySpark's exceptions give it."""
        return self.sql_state

    def getMessageParameters(self) -> dict[str, str]:
        """``parameters``, as PySpark's exceptions give them."""
        return self.parameters

    def getMessage(self) -> str:
        """``message``, as PySpark's exceptions give it."""
        return self.message


class AnalysisError(RemoteError):
    """The query is wrong: no such table, column or function, or types that do not fit."""


class ParseError(AnalysisError):
    """The SQL cannot be read."""


class ViewExistsError(AnalysisError):
    """A temporary view of that name is there already."""


class IllegalArgumentError(RemoteError):
    """An argument that Spark refuses."""


class NumberFormatError(IllegalArgumentError):
    """Text that is not a number."""


class SparkArithmeticError(RemoteError):
    """An overflow, or a division by zero."""


class ArrayIndexError(RemoteError):
    """An element that an array does not have."""


class DateTimeError(RemoteError):
    """Text that is not a date or time."""


class NoSuchElementError(RemoteError):
    """A key or setting that does not exist."""


class PythonWorkerError(RemoteError):
    """A function of Python failed on the server."""


class QueryExecutionError(RemoteError):
    """A query failed while it ran."""


class SparkRuntimeError(RemoteError):
    """A value in the data that an operation refuses."""


class SparkUpgradeError(RemoteError):
    """Something that this version of Spark does in another way than an earlier one."""


class StreamingQueryError(RemoteError):
    """A streaming query failed."""


class UnsupportedOperationError(RemoteError):
    """An operation that Spark does not have."""


class InvalidPlanError(ConnectError, ValueError):
    """A plan, or an argument of one, that cannot be sent."""


class ArgumentTypeError(ConnectError, TypeError):
    """An argument, or a value in data to send, of a wrong type."""


class UnsupportedError(ConnectError):
    """This server does not know the operation."""


class ResultTooLargeError(ConnectError):
    """A bounded result would exceed its bound."""


class SessionLostError(ConnectError):
    """The server no longer knows the session."""


class SessionClosedError(ConnectError):
    """The session was stopped here."""


class OperationInterruptedError(ConnectError):
    """The operation was interrupted."""


class OperationTimeoutError(ConnectError, TimeoutError):
    """The operation took longer than the session's ``timeout_s`` allows, and was ended."""
