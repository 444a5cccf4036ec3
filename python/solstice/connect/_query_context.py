"""Where in a query an error is, as PySpark's exceptions tell it."""

import enum
from typing import Any


class QueryContextType(enum.Enum):
    """What the query was written in."""

    SQL = 0
    DataFrame = 1


class QueryContext:
    """One place in a query: a piece of SQL with its position, or a call of a DataFrame method."""

    def __init__(self, message: Any) -> None:
        self._message = message  # a QueryContext of the protocol

    def contextType(self) -> QueryContextType:
        """What the query was written in."""
        return QueryContextType(self._message.context_type)

    def objectType(self) -> str:
        """``"VIEW"`` and the like, if the place is in the text of one; empty for the query itself."""
        return str(self._message.object_type)

    def objectName(self) -> str:
        """The name of that object."""
        return str(self._message.object_name)

    def startIndex(self) -> int:
        """Where the place begins in the text, from 0."""
        return int(self._message.start_index)

    def stopIndex(self) -> int:
        """Where it ends, inclusive."""
        return int(self._message.stop_index)

    def fragment(self) -> str:
        """The text itself, or the name of the method."""
        return str(self._message.fragment)

    def callSite(self) -> str:
        """The line of the program that called the method, if Spark knows it."""
        return str(self._message.call_site)

    def summary(self) -> str:
        """All of it, to be read."""
        return str(self._message.summary)
