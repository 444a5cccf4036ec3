"""Arrow data as the pandas DataFrame that PySpark would give: naive times in the session's time zone, maps as dicts."""

import datetime
from collections.abc import Callable
from typing import Any

from solstice._core.extras import require


def pandas_frame(table: Any) -> Any:
    """A pandas DataFrame of an Arrow table. Before pandas 3, times and durations are of nanoseconds."""
    pd = require("pandas", "pandas")
    before_3 = int(pd.__version__.partition(".")[0]) < 3
    frame = table.to_pandas(coerce_temporal_nanoseconds=before_3)
    for place, field in enumerate(table.schema):  # by place: two columns may have one name
        kind, column = field.type, frame.iloc[:, place]
        if isinstance(column.dtype, pd.DatetimeTZDtype):
            frame.isetitem(place, column.dt.tz_localize(None))  # Spark sends the session's time zone with the type
        elif (convert := _converter(kind)) is not None and column.dtype == object:
            frame.isetitem(place, column.apply(_unless_none(convert)))
    return frame


def _converter(kind: Any) -> Callable[[Any], Any] | None:
    """What makes of a value inside of another, as pyarrow gives it, the one of PySpark; None if they are the same."""
    is_ = require("pyarrow.types", "spark")
    if is_.is_timestamp(kind):
        return _times(kind.tz)
    if is_.is_map(kind):
        key, item = _unless_none(_converter(kind.key_type)), _unless_none(_converter(kind.item_type))
        return lambda pairs: {key(name): item(value) for name, value in pairs}
    if is_.is_struct(kind):
        fields = {field.name: _unless_none(_converter(field.type)) for field in kind}
        return lambda values: {name: convert(values[name]) for name, convert in fields.items()}
    if (is_.is_list(kind) or is_.is_large_list(kind)) and (element := _converter(kind.value_type)) is not None:
        array, convert = require("numpy", "pandas").array, _unless_none(element)
        return lambda values: array([convert(value) for value in values])
    return None


def _times(zone: str | None) -> Callable[[Any], Any]:
    timestamp = require("pandas", "pandas").Timestamp
    if zone is None:
        return lambda value: timestamp(value)

    def local(value: Any) -> Any:
        instant = timestamp(value)
        if instant.tzinfo is None:  # in an array, as numpy holds it
            instant = instant.tz_localize(datetime.UTC)
        return instant.tz_convert(zone).tz_localize(None)

    return local


def _unless_none(convert: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
    if convert is None:
        return lambda value: value
    return lambda value: None if value is None else convert(value)
