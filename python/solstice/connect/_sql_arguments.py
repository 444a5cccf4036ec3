"""The arguments of a query: values that are bound by the server, and DataFrames and Columns put into the text."""

import string
from collections.abc import Mapping, Sequence
from typing import Any

from solstice.connect import _plan as plan
from solstice.connect._column import Column
from solstice.connect._expressions import Attribute
from solstice.connect._frame import Frame
from solstice.connect._ids import new_id
from solstice.connect.functions._maker import lit
from solstice.errors import ArgumentTypeError, InvalidPlanError


def sql_relation(
    query: str, args: Mapping[str, Any] | Sequence[Any] | None, kwargs: Mapping[str, Any]
) -> plan.Relation:
    """The relation of a query with its arguments, together with the DataFrames it names."""
    if args is not None and (isinstance(args, str) or not isinstance(args, Mapping | Sequence)):
        raise ArgumentTypeError(f"the arguments of a query are a dict or a list, not {args!r}")
    views: list[plan.Relation] = []
    if kwargs:
        formatter = _Formatter()
        query = formatter.vformat(query, (), kwargs)
        views = [plan.SubqueryAlias(frame._relation, name) for frame, name in formatter.views]
    named = {name: lit(value)._expression for name, value in args.items()} if isinstance(args, Mapping) else None
    values = () if args is None or isinstance(args, Mapping) else tuple(lit(value)._expression for value in args)
    relation = plan.Sql(query, values, named)
    return plan.WithRelations(relation, tuple(views)) if views else relation


class _Formatter(string.Formatter):
    """Puts values in for ``{name}``: a DataFrame as a view of this query, a Column as its name, text in quotes."""

    def __init__(self) -> None:
        self.views: list[tuple[Frame, str]] = []

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> Any:
        value, first = super().get_field(field_name, args, kwargs)
        return self._text(value, field_name), first

    def _text(self, value: Any, field: str) -> Any:
        if isinstance(value, Frame):
            for frame, name in self.views:
                if frame is value:
                    return name
            self.views.append((value, f"_solstice_view_{new_id().replace('-', '')}"))
            return self.views[-1][1]
        if isinstance(value, Column):
            if not isinstance(value._expression, Attribute):
                raise InvalidPlanError(
                    f"{{{field}}} is {value!r}, which is not a plain column.", remedy="Pass a column or its name."
                )
            return value._expression.unparsed_identifier
        if isinstance(value, str):
            escaped = value.replace("\\", "\\\\").replace("'", "\\'")
            return f"'{escaped}'"
        return value
