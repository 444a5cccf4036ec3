"""Functions of users as operators: what they are given, and what they may return.

The annotation of the first parameter chooses: ``pa.Table`` (also without one), ``pl.DataFrame``, ``pd.DataFrame``, or
``dict`` for a function that is called row by row. A second parameter that is named ``ctx`` or annotated ``Split`` gets
the split. An ``async def`` is awaited; one of rows for ``concurrency`` rows at a time.
"""

import asyncio
import functools
import inspect
import typing
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from solstice._core.extras import require
from solstice.errors import ConfigError, OperatorError
from solstice.pipeline._operator import Operator
from solstice.pipeline._rows import rows_to_arrow, to_column
from solstice.pipeline._split import Split, SplitPayload

if TYPE_CHECKING:
    import pyarrow as pa

Kind = Literal["map", "flat_map", "filter", "sink"]
Form = Literal["arrow", "polars", "pandas", "rows"]

_ROW_TYPES = ("dict", "Mapping", "MutableMapping")
# What somebody may expect and never gets; other names may be anything, such as an alias of pa.Table.
_NEVER_GIVEN = ("LazyFrame", "Series", "RecordBatch", "ndarray", "list", "List", "Sequence", "Iterable", "Iterator")
_EXPECTED = {
    "map": "Return a pyarrow.Table, a Polars or pandas DataFrame (or, of a row, a dict), or None to drop it.",
    "flat_map": "Return an iterable of tables (or, of a row, of dicts).",
    "filter": "Return a boolean column as long as the table, a pyarrow Expression, or, of a row, True or False.",
}


class FunctionOperator(Operator):
    """A function of tables or rows. ``schema`` is what its result is made to be; else it is what comes first."""

    def __init__(
        self, kind: Kind, function: Callable[..., Any], *, schema: "pa.Schema | None" = None, concurrency: int = 16
    ) -> None:
        super().__init__()
        if not _is_function(function):
            raise ConfigError(
                f"{kind} got {function!r}.",
                option="function",
                value=function,
                remedy="Give it a function, or an instance of an Operator, such as Score(ScoreConfig(...)).",
            )
        if concurrency < 1:
            raise ConfigError(
                f"concurrency is {concurrency}.", option="concurrency", value=concurrency, remedy="Use 1 or more."
            )
        self.function = function
        self._kind = kind
        self._schema = schema
        self._concurrency = concurrency
        self._form, self._takes_split = _read_signature(function)
        self._asynchronous = _is(inspect.iscoroutinefunction, function)
        self._generates = _is(inspect.isasyncgenfunction, function)
        self._loop: asyncio.Runner | None = None

    @property
    def code(self) -> Any:
        """What has the source text of the function."""
        inner = _inner(self.function)
        return inner if inspect.isroutine(inner) else type(inner)

    def setup(self) -> None:
        """Start the event loop of an asynchronous function: one for all splits, as the clients that it uses expect."""
        if self._asynchronous or self._generates:
            self._loop = asyncio.Runner()

    def teardown(self) -> None:
        """End the event loop."""
        if self._loop is not None:
            self._loop.close()
            self._loop = None

    def process_split(self, split: Split, payload: SplitPayload) -> Iterable[SplitPayload]:
        """Call the function, and turn what it returns into Arrow."""
        table = payload.to_arrow()
        tables = self._on_rows(split, table) if self._form == "rows" else self._on_table(split, table)
        return [SplitPayload.from_arrow(self._with_schema(table, split), split.split_id) for table in tables]

    def _on_table(self, split: Split, table: "pa.Table") -> "list[pa.Table]":
        result = self._await(self._call, [(_to_form(self._form, table), split)])[0]
        if self._kind == "sink":
            return []
        if self._kind == "filter":
            return [self._filtered(table, result, split)]
        if self._kind == "map":
            return [] if result is None else [self._to_arrow(result, split, table.schema)]
        if isinstance(result, (str, bytes, Mapping)) or _is_table(result) or not isinstance(result, Iterable):
            raise self._wrong(result, split)
        return [self._to_arrow(part, split, table.schema) for part in result]

    def _on_rows(self, split: Split, table: "pa.Table") -> "list[pa.Table]":
        calls = [(row, replace(split, row=number)) for number, row in enumerate(table.to_pylist())]
        results = self._await(self._call, calls)
        if self._kind == "sink":
            return []
        if self._kind == "filter":
            for kept in results:
                if not isinstance(kept, bool):
                    raise self._wrong(kept, split)
            return [self._filtered(table, results, split)]
        rows: list[Any] = []
        for result in results:
            if self._kind == "map":
                rows += [] if result is None else [result]
            elif isinstance(result, (str, bytes, Mapping)) or not isinstance(result, Iterable):
                raise self._wrong(result, split)
            else:
                rows += result
        for row in rows:
            if not isinstance(row, Mapping):
                raise self._wrong(row, split)
        return [rows_to_arrow(rows, self._schema or table.schema, exact=self._schema is not None)] if rows else []

    def _call(self, value: Any, split: Split) -> Any:
        result = self.function(value, split) if self._takes_split else self.function(value)
        return _collect(result) if self._generates else result

    def _await(self, call: Callable[..., Any], arguments: list[tuple[Any, Split]]) -> list[Any]:
        if not (self._asynchronous or self._generates):
            return [call(*these) for these in arguments]
        if self._loop is None:
            self.setup()
        assert self._loop is not None
        return self._loop.run(_bounded(call, arguments, self._concurrency))

    def _filtered(self, table: "pa.Table", mask: Any, split: Split) -> "pa.Table":
        import pyarrow as pa
        import pyarrow.compute as pc

        if isinstance(mask, pc.Expression):
            return table.filter(mask)
        if type(mask).__module__.startswith("polars.") and hasattr(mask, "to_arrow"):
            mask = mask.to_arrow()
        elif not isinstance(mask, (pa.Array, pa.ChunkedArray)):
            if isinstance(mask, (str, bytes, Mapping)) or not hasattr(mask, "__len__"):
                raise self._wrong(mask, split)
            mask = pa.array(mask)
        if not pa.types.is_boolean(mask.type) or len(mask) != len(table):
            raise OperatorError(
                f"{_name(self.function)} returned {len(mask)} values of type {mask.type} for the {len(table)} rows of"
                f" split {split.split_id!r}.",
                remedy=_EXPECTED["filter"],
            )
        return table.filter(mask)

    def _to_arrow(self, result: Any, split: Split, known: "pa.Schema") -> "pa.Table":
        import pyarrow as pa

        if isinstance(result, pa.RecordBatch):
            return pa.Table.from_batches([result])
        if isinstance(result, pa.Table):
            return result
        module = type(result).__module__.partition(".")[0]
        if module == "polars" and _is_table(result):
            return (result.collect() if hasattr(result, "collect") else result).to_arrow()
        if module == "pandas" and _is_table(result):
            return _from_pandas(result, known)
        raise self._wrong(result, split)

    def _with_schema(self, table: "pa.Table", split: Split) -> "pa.Table":
        import pyarrow as pa

        if self._schema is None or table.schema.equals(self._schema):
            return table
        try:
            return table.select(self._schema.names).cast(self._schema)
        except (KeyError, ValueError, pa.ArrowException) as error:
            raise OperatorError(
                f"what {_name(self.function)} returned for split {split.split_id!r} does not fit the stage's schema:"
                f" {error}",
                remedy="Return those columns, or change schema=.",
            ) from error

    def _wrong(self, result: Any, split: Split) -> OperatorError:
        return OperatorError(
            f"{_name(self.function)} returned a {type(result).__name__} for split {split.split_id!r}.",
            remedy=_EXPECTED[self._kind],
        )


async def _bounded(
    call: Callable[..., Awaitable[Any]], arguments: list[tuple[Any, Split]], concurrency: int
) -> list[Any]:
    """Results in the order of the arguments; the first error cancels the calls that are under way."""
    results: list[Any] = [None] * len(arguments)
    left = iter(enumerate(arguments))

    async def work() -> None:
        for number, these in left:
            results[number] = await call(*these)

    tasks = [asyncio.create_task(work()) for _ in range(min(concurrency, len(arguments)))]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return results


async def _collect(generator: Any) -> list[Any]:
    return [item async for item in generator]


def _to_form(form: Form, table: "pa.Table") -> Any:
    if form == "polars":
        return require("polars", "polars").from_arrow(table)
    if form == "pandas":
        require("pandas", "pandas")
        return table.to_pandas()
    return table


def _from_pandas(frame: Any, known: "pa.Schema") -> "pa.Table":
    """Columns of Python objects keep the type that they had: decimals, maps and lists do not show theirs themselves."""
    import pyarrow as pa

    names = list(frame.columns)
    objects = [name for name in names if name in known.names and names.count(name) == 1 and frame[name].dtype == object]
    table = pa.Table.from_pandas(frame.drop(columns=objects), preserve_index=False)
    columns = dict(zip(table.column_names, table.columns, strict=True))
    for name in objects:
        values = frame[name].where(frame[name].notna(), None).tolist()
        columns[name] = to_column(name, values, known.field(name).type)
    return pa.table({str(name): columns[str(name)] for name in names})


def _is_table(value: Any) -> bool:
    return type(value).__name__ in ("Table", "RecordBatch", "DataFrame", "LazyFrame")


def _read_signature(function: Callable[..., Any]) -> tuple[Form, bool]:
    """What the function takes. Annotations are not evaluated: "pl.DataFrame" need not be importable here."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # some built-in callables have no signature
        return "arrow", False
    parameters = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    form = _form_of(parameters[0].annotation, function) if parameters else "arrow"
    second = parameters[1] if len(parameters) > 1 else None
    takes_split = second is not None and (
        second.name == "ctx" or second.annotation is Split or second.annotation == "Split"
    )
    return form, takes_split


def _form_of(annotation: Any, function: Callable[..., Any]) -> Form:
    if isinstance(annotation, str):
        prefix, _, name = annotation.partition("[")[0].strip().rpartition(".")
        scope = getattr(inspect.unwrap(_inner(function)), "__globals__", {})
        module = getattr(scope.get(prefix), "__name__", {"pl": "polars", "pd": "pandas"}.get(prefix, prefix))
    else:
        annotation = typing.get_origin(annotation) or annotation
        name, module = getattr(annotation, "__name__", ""), getattr(annotation, "__module__", "")
    if name in _NEVER_GIVEN:
        raise ConfigError(
            f"{_name(function)} wants a {name}, which no function gets.",
            option="function",
            value=name,
            remedy="Annotate its first parameter as pa.Table, pl.DataFrame, pd.DataFrame, or dict for a row at a time.",
        )
    if name in _ROW_TYPES:
        return "rows"
    top = module.partition(".")[0]
    if name == "DataFrame" and top in ("polars", "pandas"):
        return "polars" if top == "polars" else "pandas"
    return "arrow"


def _is(test: Callable[[Any], bool], function: Callable[..., Any]) -> bool:
    inner = _inner(function)
    return test(inner) or test(getattr(inner, "__call__", None))  # noqa: B004 - an object whose call is asynchronous


def _is_function(value: object) -> bool:
    return callable(value) and not (isinstance(value, type) and issubclass(value, Operator))


def _inner(function: Callable[..., Any]) -> Callable[..., Any]:
    return function.func if isinstance(function, functools.partial) else function


def _name(function: Callable[..., Any]) -> str:
    inner = _inner(function)
    return getattr(inner, "__qualname__", None) or type(inner).__name__
