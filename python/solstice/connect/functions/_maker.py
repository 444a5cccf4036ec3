"""Makes functions that are one call by name out of their signatures, which are Python's:

    "lpad(col, len: Column | int, pad: Column | str)"          a parameter without a type is a Column or a column's name
    "negate(col) -> negative"                                  under another name in SQL
    "count_distinct(col, *cols) -> distinct(count)"            only of distinct values
    "months_between(date1, date2, roundOff: bool = True)"      a default is passed on
    "bround(col, scale: Column | int = None)"                  without a value, the argument is left out
    "mask(col, upperChar=lit('X'))"                            without a value, the argument is that expression

Types tell how an argument becomes an expression: one that may be a name (``ColumnOrName | int``), a schema, options,
a lambda function; every other is a constant, or a Column as it is.
"""

import ast
import inspect
import itertools
import random
import sys
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any

from solstice.connect import types
from solstice.connect._column import Column, ColumnOrName, column_of, expression_of
from solstice.connect._expressions import Expression, Function, Lambda, LambdaVariable
from solstice.errors import ArgumentTypeError, InvalidPlanError

_LAMBDA_NAMES = ("x", "y", "z")
_NUMPY_TYPES: dict[str, types.DataType] = {
    "bool": types.BooleanType(),
    "int8": types.ByteType(),
    "int16": types.ShortType(),
    "int32": types.IntegerType(),
    "int64": types.LongType(),
    "float32": types.FloatType(),
    "float64": types.DoubleType(),
    "str": types.StringType(),
}
_next_variable = itertools.count().__next__


def lit(col: Any) -> Column:
    """A constant as a column; a Column as it is. A list becomes an array."""
    if isinstance(col, Column):
        return col
    if isinstance(col, list | tuple):
        return call("array", *[lit(element)._expression for element in col])
    if type(col).__module__ == "numpy" and getattr(col, "ndim", 0) == 1:
        kind = call("array", *[lit(element)._expression for element in col])
        return kind.cast(types.ArrayType(_numpy_type(col.dtype.name)))
    return Column(expression_of(col))


def call(name: str, *arguments: Expression | None, distinct: bool = False) -> Column:
    """A call of a function by its name. An argument that is None is left out."""
    return Column(Function(name, tuple(a for a in arguments if a is not None), distinct))


def column(value: ColumnOrName) -> Expression:
    """The expression of a Column or a column's name."""
    return column_of(value)._expression


def value(constant: Any) -> Expression:
    """The expression of a constant or a Column."""
    return lit(constant)._expression


def either(given: Any) -> Expression:
    """The expression of a Column, a column's name, or a constant that is not text."""
    return column(given) if isinstance(given, str | Column) else value(given)


def columns(given: tuple[Any, ...]) -> Iterable[Expression]:
    """The expressions of Columns and names, which may be in one list."""
    if len(given) == 1 and isinstance(given[0], list | tuple | set):
        given = tuple(given[0])
    return map(column, given)


def options(given: Mapping[str, Any]) -> Expression:
    """A map of options, as text."""
    pairs = [value(str(part)) for pair in given.items() for part in pair]
    return Function("map", tuple(pairs))


def schema(given: Any) -> Expression:
    """A schema: a type, its text or JSON, or a Column."""
    if isinstance(given, types.DataType):
        return value(given.json())
    if isinstance(given, str | Column):
        return value(given)
    raise ArgumentTypeError(f"{given!r} is not a schema; pass a type, its text ('a INT, b STRING'), or a Column")


def function(given: Callable[..., Column]) -> Lambda:
    """A lambda function of one to three Columns."""
    parameters = inspect.signature(given).parameters.values()
    if not 1 <= len(parameters) <= 3 or any(
        p.kind not in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters
    ):
        raise InvalidPlanError(
            f"{given!r} cannot be applied to columns.", remedy="Pass a function of one to three positional arguments."
        )
    variables = tuple(LambdaVariable((f"{name}_{_next_variable()}",)) for name in _LAMBDA_NAMES[: len(parameters)])
    result = given(*map(Column, variables))
    if not isinstance(result, Column):
        raise InvalidPlanError(f"{given!r} returned {result!r}.", remedy="Return a Column; a constant is lit(...).")
    return Lambda(result._expression, variables)


def random_seed() -> Column:
    """A random number, for functions that were not given one."""
    return lit(random.randint(0, sys.maxsize))


def _numpy_type(name: str) -> types.DataType:
    data_type = _NUMPY_TYPES.get("str" if name.startswith("str") else name)
    if data_type is None:
        raise InvalidPlanError(f"an array of {name} cannot be a literal.", remedy="Convert it to a list.")
    return data_type


# What generated functions use; the underscores keep clear of the names of their parameters.
_NAMESPACE: dict[str, Any] = {
    "_call": call,
    "_column": column,
    "_columns": columns,
    "_either": either,
    "_function": function,
    "_options": options,
    "_schema": schema,
    "_value": value,
    "Decimal": Decimal,
    "lit": lit,
    "random_seed": random_seed,
}


class Signature:
    """A function's signature, out of its text."""

    def __init__(self, text: str) -> None:
        [definition] = ast.parse(f"def {text}: pass").body
        if not isinstance(definition, ast.FunctionDef):
            raise TypeError(f"{text!r} is not a signature")
        self.name = definition.name
        self.distinct = isinstance(definition.returns, ast.Call)
        self.sql_name = _sql_name(definition)
        arguments = definition.args
        self.parameters = [
            (argument.arg, _annotation(argument), default)
            for argument, default in zip(
                arguments.args,
                [None] * (len(arguments.args) - len(arguments.defaults)) + list(arguments.defaults),
                strict=True,
            )
        ]
        rest = arguments.vararg
        self.rest = None if rest is None else (rest.arg, _annotation(rest))

    def source(self) -> str:
        """The function in Python."""
        head = [
            name if default is None else f"{name}={'None' if isinstance(default, ast.Call) else ast.unparse(default)}"
            for name, _, default in self.parameters
        ]
        body = [repr(self.sql_name)]
        for name, annotation, default in self.parameters:
            expression = f"_{_converter(annotation)}({name})"
            if isinstance(default, ast.Call):
                expression = f"{ast.unparse(default)}._expression if {name} is None else {expression}"
            elif isinstance(default, ast.Constant) and default.value is None:
                expression = f"None if {name} is None else {expression}"
            body.append(expression)
        if self.rest:
            name, annotation = self.rest
            head.append(f"*{name}")
            kind = _converter(annotation)
            body.append(f"*_{kind}({name})" if kind == "columns" else f"*map(_{kind}, {name})")
        if self.distinct:
            body.append("distinct=True")
        return f"def {self.name}({', '.join(head)}):\n    return _call({', '.join(body)})\n"


def make(text: str, doc: str) -> Callable[..., Column]:
    """The function that a signature stands for."""
    signature = Signature(text)
    namespace: dict[str, Any] = {}
    exec(signature.source(), _NAMESPACE, namespace)
    made: Callable[..., Column] = namespace[signature.name]
    made.__doc__, made.__module__ = doc, __package__
    return made


def _annotation(argument: ast.arg) -> str | None:
    return None if argument.annotation is None else ast.unparse(argument.annotation)


def _sql_name(definition: ast.FunctionDef) -> str:
    match definition.returns:
        case None:
            return definition.name
        case ast.Call(args=[ast.Name(id=name)]) | ast.Name(id=name) | ast.Constant(value=name):
            return str(name)
    raise TypeError(f"{definition.name}: the name in SQL is not clear")


def _converter(annotation: str | None) -> str:
    if annotation is None:
        return "column"
    for part, converter in (
        ("Sequence[ColumnOrName]", "columns"),
        ("ColumnOrName", "either"),
        ("Callable", "function"),
        ("Mapping", "options"),
        ("Type", "schema"),
    ):
        if part in annotation:
            return converter
    return "value"
