"""Arrow tables whose instants have the zone UTC, wherever they stand; the server sends the session's."""

from typing import Any

from solstice._core.extras import require


def with_utc(table: Any) -> Any:
    """The table with other types; no value is touched: an instant is the same in all zones."""
    schema = table.schema
    wanted = require("pyarrow", "spark").schema([_field(field) for field in schema], schema.metadata)
    return table if wanted == schema else table.cast(wanted)


def _field(field: Any) -> Any:
    return field.with_type(_type(field.type))


def _type(kind: Any) -> Any:
    pa = require("pyarrow", "spark")
    is_ = pa.types
    if is_.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    if is_.is_struct(kind):
        return pa.struct([_field(field) for field in kind])
    if is_.is_map(kind):
        return pa.map_(_field(kind.key_field), _field(kind.item_field))
    if is_.is_list(kind):
        return pa.list_(_field(kind.value_field))
    if is_.is_large_list(kind):
        return pa.large_list(_field(kind.value_field))
    return kind
