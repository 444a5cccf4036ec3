"""The line between the DataFrames of a session and its driver: queries, commands, questions and settings."""

import contextlib
import functools
import json
import warnings
import weakref
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import TYPE_CHECKING, Any

from solstice._core.retry import RetryPolicy
from solstice.connect import _plan as plan
from solstice.connect import types
from solstice.connect._bounds import Limits
from solstice.connect._encode import encode_command, encode_query
from solstice.connect._execution import RETRY_POLICY, SHORT_TIMEOUT_S, CommandResult, Item, Metrics, Progress
from solstice.connect._ids import new_id
from solstice.connect._tags import tags_of
from solstice.connect._types import decode_struct, decode_type

if TYPE_CHECKING:
    from solstice.connect._driver import Driver
    from solstice.connect._observation import Observation
    from solstice.connect._progress import ProgressHandler

ONE_TRY = RetryPolicy(max_attempts=1)


class Link:
    """What a session has for its DataFrames."""

    def __init__(self, driver: "Driver", limits: Limits) -> None:
        self.driver = driver
        self.limits = limits
        self.progress_handlers: list[ProgressHandler] = []
        self._forgotten: list[str] = []

    def query(
        self, relation: plan.Relation, observations: "Mapping[str, Observation] | None" = None
    ) -> AsyncGenerator[Item, None]:
        """Run a query; what comes of it. Closing the iterator ends it."""
        return self._execute(functools.partial(encode_query, relation), observations or {})

    async def command(
        self, command: plan.Command, observations: "Mapping[str, Observation] | None" = None
    ) -> dict[str, Any]:
        """Run a command; its results by the names that the protocol has for them."""
        execution = self._execute(functools.partial(encode_command, command), observations or {})
        async with contextlib.aclosing(execution) as items:
            return {item.kind: item.message async for item in items if isinstance(item, CommandResult)}

    async def _execute(
        self, fill: Callable[[Any], None], observations: "Mapping[str, Observation]"
    ) -> AsyncGenerator[Item, None]:
        operation_id = new_id()
        tags = tags_of(self.driver.endpoint.session_id)
        async with contextlib.aclosing(self.driver.execute(operation_id, fill, tags)) as items:
            with contextlib.ExitStack() as stack:
                report = None
                if self.progress_handlers:
                    from solstice.connect._progress import ProgressReport

                    report = ProgressReport(tuple(self.progress_handlers), operation_id)
                    stack.callback(report.finish)
                async for item in items:
                    if isinstance(item, Progress):
                        if report is not None:
                            report.update(item.message)
                        continue
                    if isinstance(item, Metrics) and item.message.name in observations:
                        observations[item.message.name]._finish(item.message)
                    yield item

    async def analyze(self, question: str, fill: Callable[[Any], None], **fields: Any) -> Any:
        """Ask about plans, which ``fill`` writes into the question; the answer of the same name."""
        request = self.driver.requests.analyze(**{question: fields})
        asked = getattr(request, question)
        asked.SetInParent()
        fill(asked)
        return getattr(await self.driver.unary("AnalyzePlan", request), question)

    async def schema_of(self, relation: plan.Relation, *, one_try: bool = False) -> types.StructType:
        """The schema of a relation."""
        request = self.driver.requests.analyze(schema={})
        encode_query(relation, request.schema.plan)
        policy, timeout_s = (ONE_TRY, SHORT_TIMEOUT_S) if one_try else (RETRY_POLICY, None)
        answer = await self.driver.unary("AnalyzePlan", request, policy=policy, timeout_s=timeout_s)
        return decode_struct(answer.schema.schema)

    async def parse_type(self, text: str) -> types.DataType:
        """The type that text or JSON stands for; the server reads text, so that all of SQL's spellings work."""
        if is_json(text):
            from solstice.connect._type_json import parse_type

            return parse_type(json.loads(text))
        return decode_type((await self.analyze("ddl_parse", lambda asked: None, ddl_string=text)).parsed)

    async def config(self, **operation: Any) -> dict[str, str | None]:
        """Read or change settings, by an operation of the protocol; the settings it names and their values."""
        answer = await self.driver.unary("Config", self.driver.requests.config(**operation))
        for warning in answer.warnings:
            warnings.warn(warning, stacklevel=2)
        return {pair.key: pair.value if pair.HasField("value") else None for pair in answer.pairs}

    async def forget_with(self, relation: plan.CachedRemoteRelation) -> None:
        """Let the server drop a relation that it keeps, once nothing here refers to it.

        That may be found out anywhere, by the garbage collector; the server is told at the next such occasion here.
        """
        while self._forgotten:
            try:
                relation_id = self._forgotten.pop()
            except IndexError:
                break  # another thread tells the server of it
            await self.command(plan.RemoveCachedRemoteRelation(plan.CachedRemoteRelation(relation_id)))
        weakref.finalize(relation, self._forgotten.append, relation.relation_id).atexit = False


def is_json(text: str) -> bool:
    """Whether a type is written as JSON, for which no server is needed."""
    return text.lstrip().startswith("{")
