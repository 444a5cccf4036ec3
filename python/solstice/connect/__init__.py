"""A native, light Spark Connect client.

    import solstice.connect as sc

    with sc.local() as spark:                      # or sc.connect("sc://host:15002"), or sc.connect() -> SPARK_REMOTE
        spark.sql("select * from range(5)").to_polars()

The map, from the user to the wire:

- ``_opening`` is the way in. ``_session``, ``_async``, ``_builder``, ``_reader``, ``_conf``, ``_row``, ``types``,
  ``errors``: what a user holds; ``_session_methods`` is what both kinds of session can do, with ``_tags`` and
  ``_progress``; ``_bounds`` guards results.
- A DataFrame is built up, each part on the one before: ``_frame _fetch _select _combine _shape _statistics _analysis
  _keep _results``, then ``_dataframe`` or ``_async``; ``_group``, ``_window``, ``_column`` and ``functions`` go with
  it. ``_camel`` gives PySpark's spellings, ``_arguments`` tells which argument was wrong, ``_actions`` makes methods
  that block and methods to await of one code.
- ``_plan`` and ``_expressions`` are what a DataFrame is, ``_encode`` what the server gets; ``_sql`` tells queries from
  commands, ``_sql_arguments`` binds values to them.
- ``_create``, ``_infer``, ``_local_data``, ``_arrow_types``, ``_instants``, ``_upload``: this process's own data on its
  way there.
- ``_link`` is between DataFrames and the driver. ``_execution`` is a state machine without I/O that survives cut
  connections; ``_driver`` does what it says, over ``_transport`` (blocks) or ``_aio`` (is awaited). ``_interrupt``
  keeps Ctrl-C out of gRPC's own code.
- ``_requests``, ``_ids``, ``_status``, ``_errors``: what is asked, how it failed, what the user reads of it.
- ``_decode``, ``_pandas``, ``_arrow_utc``, ``_collector``, ``_times``, ``_types``: from Arrow and messages to Python.
- ``_protocol``, ``_descriptors``: the protocol's types, out of the installed pyspark, which is never imported.
- ``_url``, ``_local``, ``_local_supervisor``: where the server is, or starting one.

Importing this package imports neither grpc nor protobuf nor pyarrow: ``connect()`` and results do. What connecting
does not need is imported when it is first used, or while the server answers the first call.
"""

import importlib
from typing import TYPE_CHECKING, Any

from solstice.connect._opening import connect, local

if TYPE_CHECKING:
    from solstice.connect import errors, functions, types
    from solstice.connect._async import AsyncDataFrame, AsyncSession, connect_async
    from solstice.connect._column import Column
    from solstice.connect._dataframe import DataFrame
    from solstice.connect._group import GroupedData
    from solstice.connect._observation import Observation
    from solstice.connect._row import Row
    from solstice.connect._session import Session
    from solstice.connect._session import Session as SparkSession
    from solstice.connect._storage import StorageLevel
    from solstice.connect._window import Window, WindowSpec

# Imported when they are first used.
_LAZY = {
    "AsyncDataFrame": "_async",
    "AsyncSession": "_async",
    "Column": "_column",
    "DataFrame": "_dataframe",
    "GroupedData": "_group",
    "Observation": "_observation",
    "Row": "_row",
    "Session": "_session",
    "SparkSession": "_session",
    "StorageLevel": "_storage",
    "Window": "_window",
    "WindowSpec": "_window",
    "connect_async": "_async",
}
_LAZY_MODULES = frozenset({"errors", "functions", "types"})

__all__ = [
    "AsyncDataFrame",
    "AsyncSession",
    "Column",
    "DataFrame",
    "GroupedData",
    "Observation",
    "Row",
    "Session",
    "SparkSession",
    "StorageLevel",
    "Window",
    "WindowSpec",
    "connect",
    "connect_async",
    "errors",
    "functions",
    "local",
    "types",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY_MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
