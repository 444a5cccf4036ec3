"""Times without a zone in Arrow data, as the instants that they are in the session's time zone, wherever they stand."""

from typing import Any

from solstice._core.extras import require
from solstice.connect import types


def with_instants(array: Any, data_type: types.DataType, zone: str) -> Any:
    """An array, not chunked, whose times have microseconds, and a zone where the type is ``timestamp``.

    Of an hour that comes twice it is the second one, as in PySpark; one that the clocks skip is Arrow's error.
    """
    pa, compute = require("pyarrow", "spark"), require("pyarrow.compute", "spark")
    kind = array.type
    if pa.types.is_timestamp(kind):
        times = array.cast(pa.timestamp("us", kind.tz), safe=False)  # Spark has no nanoseconds
        if kind.tz is not None or not isinstance(data_type, types.TimestampType):
            return times
        return compute.assume_timezone(times, zone, ambiguous="latest")
    if not _has_times(kind):
        return array
    match data_type:  # where it is another kind than the array, the cast that follows says so
        case types.StructType() if pa.types.is_struct(kind) and kind.num_fields == len(data_type):
            parts = [
                with_instants(part, field.data_type, zone)
                for part, field in zip(array.flatten(), data_type, strict=True)
            ]
            return pa.StructArray.from_arrays(parts, names=[field.name for field in kind], mask=array.is_null())
        case types.MapType() if pa.types.is_map(kind):
            entries = array.cast(pa.list_(pa.struct([kind.key_field, kind.item_field])))
            keys, items = entries.flatten().flatten()
            keys, items = (
                with_instants(keys, data_type.key_type, zone),
                with_instants(items, data_type.value_type, zone),
            )
            return pa.MapArray.from_arrays(_offsets(entries), keys, items)
        case types.ArrayType() if hasattr(kind, "value_field"):  # the several kinds of lists
            elements = with_instants(array.flatten(), data_type.element_type, zone)
            return pa.ListArray.from_arrays(_offsets(array), elements)
    return array


def _has_times(kind: Any) -> bool:
    is_timestamp = require("pyarrow.types", "spark").is_timestamp
    return is_timestamp(kind) or any(_has_times(kind.field(i).type) for i in range(kind.num_fields))


def _offsets(lists: Any) -> Any:
    """Where each list begins among the elements of all, and where the last one ends; null for one that is null."""
    pa, compute = require("pyarrow", "spark"), require("pyarrow.compute", "spark")
    lengths = compute.fill_null(compute.list_value_length(lists), 0)
    ends = compute.cumulative_sum(lengths)
    starts = compute.if_else(lists.is_valid(), compute.subtract(ends, lengths), None)
    total = compute.sum(lengths).as_py() or 0
    return pa.concat_arrays([starts.cast(pa.int32()), pa.array([total], pa.int32())])
