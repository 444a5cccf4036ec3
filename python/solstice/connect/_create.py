"""DataFrames out of this process's own data: Arrow, Polars, pandas, numpy, or Python's rows."""

from collections.abc import Iterable, Sequence, Sized
from typing import TYPE_CHECKING, Any

from solstice._core.extras import require
from solstice.connect import _plan as plan
from solstice.connect import types
from solstice.connect._arrow_types import arrow_schema, arrow_type, struct_of
from solstice.connect._infer import infer_schema
from solstice.connect._instants import with_instants
from solstice.connect._local_data import python_table
from solstice.connect._upload import CONFIG, local_relation
from solstice.errors import ArgumentTypeError, InvalidPlanError

if TYPE_CHECKING:
    from solstice.connect._link import Link

_TIMESTAMP_TYPE, _TIME_ZONE = "spark.sql.timestampType", "spark.sql.session.timeZone"


async def create_relation(link: "Link", data: Any, schema: types.DataType | Sequence[str] | None) -> plan.Relation:
    """The relation of data. ``schema`` is a struct, the type of single values, or the columns' names."""
    struct, names = _struct_and_names(schema)
    of_arrow = hasattr(data, "__arrow_c_stream__")
    if isinstance(data, Sized) and len(data) == 0 and not (of_arrow and struct is None):
        if struct is None:
            raise InvalidPlanError("empty data has no schema.", remedy="Pass one, for example 'a INT, b STRING'.")
        return plan.LocalRelation(schema=struct.json())
    settings = await link.config(get_option={"keys": [_TIMESTAMP_TYPE, _TIME_ZONE, *CONFIG]})
    config = {key: value for key, value in settings.items() if value is not None}
    if _is_pandas(data):
        names = names or [str(name) for name in (struct.names if struct else data.columns)]
        table = _cast(_pandas_table(data), struct, config, within_ntz=True)  # as PySpark has it, of pandas only
    elif _is_numpy(data):
        table, names = _cast(_numpy_table(data, names), struct, config), None
    elif of_arrow:
        table = require("pyarrow", "spark").table(data)
        _check_names(table.column_names, struct)
        table = _cast(table, struct, config)
        names = names or (None if struct else list(table.column_names))
    else:
        rows = _rows(data)
        struct = struct or infer_schema(rows, names)
        table = python_table(rows, struct)
    if names is not None and len(names) < table.num_columns:
        names = [*names, *(f"_{i}" for i in range(len(names) + 1, table.num_columns + 1))]
    expected = names if names else None if struct is None else struct.names
    if expected is not None and len(expected) != table.num_columns:
        raise InvalidPlanError(
            f"the data has {table.num_columns} columns, the schema {len(expected)}.", remedy="Make them the same."
        )
    relation = await local_relation(link, table, None if struct is None else struct.json(), config)
    return plan.ToDF(relation, tuple(names)) if names else relation


def _struct_and_names(schema: Any) -> tuple[types.StructType | None, list[str] | None]:
    if isinstance(schema, types.StructType):
        return schema, None
    if isinstance(schema, types.DataType):
        return types.StructType([types.StructField("value", schema)]), None
    if schema is None:
        return None, None
    if isinstance(schema, Sequence) and all(isinstance(name, str) for name in schema):
        return None, list(schema)
    raise ArgumentTypeError(
        f"{schema!r} is not a schema; pass a type, text like 'a INT, b STRING', or the columns' names"
    )


def _check_names(found: list[str], struct: types.StructType | None) -> None:
    """Refuse a schema of other columns: taken by position, one would get the values of another."""
    if struct is not None and found != struct.names:
        raise InvalidPlanError(
            f"the data has the columns {', '.join(found)}, the schema {', '.join(struct.names)}.",
            remedy="Make them the same, in the same order, or pass names only.",
        )


def _rows(data: Iterable[Any]) -> list[Any]:
    if hasattr(data, "collect"):  # of Polars, or of another session
        raise InvalidPlanError(f"a {type(data).__name__} is not computed yet.", remedy="Pass what its collect() gives.")
    if not isinstance(data, Iterable):
        raise ArgumentTypeError(
            f"create_dataframe() takes rows, or a table of Polars, pandas, Arrow or numpy, not {data!r}"
        )
    rows = list(data)
    first = rows[0] if rows else None
    if not rows:
        raise InvalidPlanError("empty data has no schema.", remedy="Pass one, for example 'a INT, b STRING'.")
    if isinstance(first, tuple | list | dict) or hasattr(first, "__dict__"):
        return rows
    return [(value,) for value in rows]


def _cast(table: Any, struct: types.StructType | None, config: dict[str, str], *, within_ntz: bool = False) -> Any:
    """The table in types that Spark reads; a time without a zone is in the session's."""
    pa = require("pyarrow", "spark")
    prefer_ntz = config.get(_TIMESTAMP_TYPE) == "TIMESTAMP_NTZ"
    target = struct or struct_of(table.schema, prefer_ntz=prefer_ntz, within_ntz=within_ntz)
    if len(target) != table.num_columns:
        return table  # the caller reports it
    wanted = arrow_schema(target)
    columns = []
    for column, field, to in zip(table.columns, target, wanted, strict=True):
        if pa.types.is_dictionary(column.type):
            column = _decoded(column, arrow_type(field.data_type))
        try:
            chunks = [
                with_instants(chunk, field.data_type, config.get(_TIME_ZONE, "UTC")).cast(to.type)
                for chunk in column.chunks
            ]
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise ArgumentTypeError(
                f"the column {field.name!r} does not become {field.data_type.simple_string()}: {error}.",
                remedy="Pass another schema, or convert the column.",
            ) from None
        columns.append(pa.chunked_array(chunks, to.type))
    return pa.Table.from_arrays(columns, schema=wanted)


def _decoded(column: Any, target: Any) -> Any:
    """A column of categories as their values; Arrow's own cast does not know all kinds of text."""
    chunks = [chunk.dictionary.cast(target).take(chunk.indices) for chunk in column.chunks]
    return require("pyarrow", "spark").chunked_array(chunks, target)


def _is_pandas(data: Any) -> bool:
    return type(data).__module__.partition(".")[0] == "pandas" and hasattr(data, "columns")


def _pandas_table(data: Any) -> Any:
    pa = require("pyarrow", "pandas")
    return pa.Table.from_arrays(
        [pa.chunked_array([pa.Array.from_pandas(data.iloc[:, i])]) for i in range(len(data.columns))],
        names=[f"_{i}" for i in range(len(data.columns))],
    )


def _is_numpy(data: Any) -> bool:
    return type(data).__module__ == "numpy" and hasattr(data, "ndim")


def _numpy_table(data: Any, names: list[str] | None) -> Any:
    if data.ndim not in (1, 2):
        raise InvalidPlanError(f"an array of {data.ndim} dimensions is no table.", remedy="Pass one of 1 or 2.")
    pa = require("pyarrow", "spark")
    columns = [data] if data.ndim == 1 else [data[:, i] for i in range(data.shape[1])]
    names = names or (["value"] if len(columns) == 1 else [f"_{i}" for i in range(1, len(columns) + 1)])
    if len(names) != len(columns):
        raise InvalidPlanError(f"the array has {len(columns)} columns, not {len(names)}.", remedy="Pass as many names.")
    return pa.table([pa.array(column) for column in columns], names=names)
