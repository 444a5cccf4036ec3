"""What the server says of a DataFrame without running it: schema, plan, and whether two are the same."""

import sys
from typing import Any

from solstice.connect import types
from solstice.connect._actions import action, question
from solstice.connect._encode import encode_query
from solstice.connect._statistics import Statistics
from solstice.errors import InvalidPlanError

_EXPLAIN_MODES = ("simple", "extended", "codegen", "cost", "formatted")


class Analyzed(Statistics):
    """Questions that need no query."""

    __slots__ = ()

    @question
    async def schema(self) -> types.StructType:
        """Names and types of the columns. The server analyzes the plan, once, and does not run it."""
        return types.StructType(await self._analyzed_schema())  # a copy: it can be added to

    @question
    async def columns(self) -> list[str]:
        """The names of the columns."""
        return (await self._analyzed_schema()).names

    @question
    async def dtypes(self) -> list[tuple[str, str]]:
        """The names of the columns and their types, as SQL spells them."""
        return [(field.name, field.data_type.simple_string()) for field in await self._analyzed_schema()]

    @action
    async def print_schema(self, level: int | None = None) -> None:
        """Print the schema as an indented list, down to a level."""
        sys.stdout.write((await self._analyzed_schema()).tree_string(level or 0) + "\n")

    @action
    async def explain(self, extended: bool | str | None = None, mode: str | None = None) -> None:
        """Print the plans: ``simple extended codegen cost formatted``."""
        sys.stdout.write(await self._explained(extended, mode) + "\n")

    async def _explained(self, extended: bool | str | None, mode: str | None) -> str:
        if extended is not None and mode is not None:
            raise InvalidPlanError("explain() takes extended or mode, not both.", remedy="Pass the mode.")
        if mode is None:
            mode = extended if isinstance(extended, str) else "extended" if extended else "simple"
        if mode.lower() not in _EXPLAIN_MODES:
            raise InvalidPlanError(
                f"explain(mode={mode!r}) is not possible.", remedy=f"Pass one of: {', '.join(_EXPLAIN_MODES)}."
            )
        text: str = (await self._ask("explain", explain_mode=f"EXPLAIN_MODE_{mode.upper()}")).explain_string
        return text

    @action
    async def is_local(self) -> bool:
        """Whether a result is at hand without any computation."""
        answer: bool = (await self._ask("is_local")).is_local
        return answer

    @question
    async def is_streaming(self) -> bool:
        """Whether it is a stream."""
        answer: bool = (await self._ask("is_streaming")).is_streaming
        return answer

    @action
    async def input_files(self) -> list[str]:
        """The files that are read, as far as the server knows."""
        return list((await self._ask("input_files")).files)

    @action
    async def same_semantics(self, other: "Analyzed") -> bool:
        """Whether another DataFrame has the same result, as far as the plans show."""
        self._check_same_session(other, "same_semantics")

        def fill(question: Any) -> None:
            encode_query(self._relation, question.target_plan)
            encode_query(other._relation, question.other_plan)

        answer: bool = (await self._link.analyze("same_semantics", fill)).result
        return answer

    @action
    async def semantic_hash(self) -> int:
        """A number that DataFrames with the same result share."""
        answer: int = (await self._ask("semantic_hash")).result
        return answer

    async def _ask(self, question: str, **fields: Any) -> Any:
        """The answer to a question about the plan."""
        return await self._link.analyze(question, lambda asked: encode_query(self._relation, asked.plan), **fields)

    async def _analyzed_schema(self, *, one_try: bool = False) -> types.StructType:
        if self._schema is None:
            self._schema = await self._link.schema_of(self._relation, one_try=one_try)
        return self._schema
