"""The errors of Spark under PySpark's names, for scripts that import them from ``pyspark.errors``."""

from solstice.connect._query_context import QueryContext, QueryContextType
from solstice.errors import AnalysisError as AnalysisException
from solstice.errors import ArrayIndexError as ArrayIndexOutOfBoundsException
from solstice.errors import ConnectError as PySparkException
from solstice.errors import DateTimeError as DateTimeException
from solstice.errors import IllegalArgumentError as IllegalArgumentException
from solstice.errors import InvalidPlanError as SessionNotSameException
from solstice.errors import NoSuchElementError as SparkNoSuchElementException
from solstice.errors import NumberFormatError as NumberFormatException
from solstice.errors import ParseError as ParseException
from solstice.errors import PythonWorkerError as PythonException
from solstice.errors import QueryExecutionError as QueryExecutionException
from solstice.errors import RemoteError as UnknownException
from solstice.errors import SparkArithmeticError as ArithmeticException
from solstice.errors import SparkRuntimeError as SparkRuntimeException
from solstice.errors import SparkUpgradeError as SparkUpgradeException
from solstice.errors import StreamingQueryError as StreamingQueryException
from solstice.errors import UnsupportedOperationError as UnsupportedOperationException
from solstice.errors import ViewExistsError as TempTableAlreadyExistsException

# What the client itself refuses raises Python's own errors, of which PySpark's are subclasses. An argument of a wrong
# type or value is also a PySparkException.
PySparkAssertionError = AssertionError
PySparkAttributeError = AttributeError
PySparkImportError = ImportError
PySparkIndexError = IndexError
PySparkKeyError = KeyError
PySparkNotImplementedError = NotImplementedError
PySparkRuntimeError = RuntimeError
PySparkTypeError = TypeError
PySparkValueError = ValueError

__all__ = [
    "AnalysisException",
    "ArithmeticException",
    "ArrayIndexOutOfBoundsException",
    "DateTimeException",
    "IllegalArgumentException",
    "NumberFormatException",
    "ParseException",
    "PySparkAssertionError",
    "PySparkAttributeError",
    "PySparkException",
    "PySparkImportError",
    "PySparkIndexError",
    "PySparkKeyError",
    "PySparkNotImplementedError",
    "PySparkRuntimeError",
    "PySparkTypeError",
    "PySparkValueError",
    "PythonException",
    "QueryContext",
    "QueryContextType",
    "QueryExecutionException",
    "SessionNotSameException",
    "SparkNoSuchElementException",
    "SparkRuntimeException",
    "SparkUpgradeException",
    "StreamingQueryException",
    "TempTableAlreadyExistsException",
    "UnknownException",
    "UnsupportedOperationException",
]
