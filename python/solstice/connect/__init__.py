"""A native, light Spark Connect client.

    import solstice.connect as sc

    with sc.local() as spark:                      # or sc.connect("sc://host:15002"), or sc.connect() -> SPARK_REMOTE
        spark.sql("select * from range(5)").to_polars()

The map, from the user to the wire:

- ``_session``, ``_dataframe``, ``_row``, ``types``: what a user holds; ``_bounds`` guards results.
- ``_plan`` is what a DataFrame is, ``_encode`` what the server gets; ``_sql`` tells queries from commands.
- ``_execution`` is a state machine without I/O that survives cut connections; ``_driver`` runs it over gRPC.
- ``_requests``, ``_status``, ``_errors``: what is asked, how it failed, what the user reads of it.
- ``_decode``, ``_times``, ``_types``: from Arrow and messages to Python.
- ``_protocol``, ``_descriptors``: the protocol's types, out of the installed pyspark, which is never imported.
- ``_url``, ``_local``, ``_local_supervisor``: where the server is, or starting one.

Importing this package imports neither grpc nor protobuf nor pyarrow: ``connect()`` and results do.
"""

from solstice.connect import functions, types
from solstice.connect._column import Column
from solstice.connect._dataframe import DataFrame
from solstice.connect._group import GroupedData
from solstice.connect._observation import Observation
from solstice.connect._row import Row
from solstice.connect._session import Session, connect, local
from solstice.connect._storage import StorageLevel
from solstice.connect._window import Window, WindowSpec

__all__ = [
    "Column",
    "DataFrame",
    "GroupedData",
    "Observation",
    "Row",
    "Session",
    "StorageLevel",
    "Window",
    "WindowSpec",
    "connect",
    "functions",
    "local",
    "types",
]
