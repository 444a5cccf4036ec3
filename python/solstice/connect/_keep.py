"""DataFrames that the server keeps: caches, checkpoints and views; and DataFrames within expressions."""

from typing import Any, Self

from solstice.connect import _plan as plan
from solstice.connect._actions import action, fluent, question
from solstice.connect._analysis import Analyzed
from solstice.connect._camel import camel_cased
from solstice.connect._column import Column, ColumnOrName, expressions_of, sort_order_of
from solstice.connect._encode import encode
from solstice.connect._expressions import Subquery, TableArgOptions
from solstice.connect._select import _flat
from solstice.connect._storage import StorageLevel
from solstice.errors import InvalidPlanError


class Kept(Analyzed):
    """Caches, checkpoints, views and subqueries."""

    __slots__ = ()

    # Caches.

    @fluent
    async def cache(self) -> Self:
        """Keep the result, once it is computed, in the servers' memory and on their disks."""
        return await self._persist(StorageLevel.MEMORY_AND_DISK_DESER)

    @fluent
    async def persist(self, storage_level: StorageLevel = StorageLevel.MEMORY_AND_DISK_DESER) -> Self:
        """Keep the result, once it is computed, where the level says."""
        return await self._persist(storage_level)

    async def _persist(self, storage_level: StorageLevel) -> Self:
        def fill(question: Any) -> None:
            encode(self._relation, question.relation)
            encode(storage_level, question.storage_level)

        await self._link.analyze("persist", fill)
        return self

    @fluent
    async def unpersist(self, blocking: bool = False) -> Self:
        """Keep the result no longer; ``blocking`` waits until it is gone."""
        await self._link.analyze("unpersist", lambda asked: encode(self._relation, asked.relation), blocking=blocking)
        return self

    @question
    async def storage_level(self) -> StorageLevel:
        """Where the result is kept."""
        return await self._storage_level()

    @question
    async def is_cached(self) -> bool:
        """Whether the result is kept."""
        return await self._storage_level() != StorageLevel.NONE

    async def _storage_level(self) -> StorageLevel:
        answer = await self._link.analyze("get_storage_level", lambda asked: encode(self._relation, asked.relation))
        return StorageLevel(*(getattr(answer.storage_level, name) for name in StorageLevel._fields))

    # Checkpoints.

    @fluent
    async def checkpoint(self, eager: bool = True) -> Self:
        """The result computed and kept in the server's checkpoint folder, as a DataFrame whose plan is short."""
        return await self._checkpointed(plan.Checkpoint(self._relation, False, eager))

    @fluent
    async def local_checkpoint(self, eager: bool = True, storage_level: StorageLevel | None = None) -> Self:
        """The result computed and kept by the executors, as a DataFrame whose plan is short."""
        return await self._checkpointed(plan.Checkpoint(self._relation, True, eager, storage_level))

    async def _checkpointed(self, command: plan.Checkpoint) -> Self:
        answer = (await self._link.command(command, self._observations))["checkpoint_command_result"]
        relation = plan.CachedRemoteRelation(answer.relation.relation_id)
        await self._link.forget_with(relation)
        return type(self)(self._session, relation, schema=self._schema)

    # Views.

    @action
    async def create_temp_view(self, name: str) -> None:
        """Give the DataFrame a name in this session; fails if there is one."""
        await self._create_view(name, is_global=False, replace=False)

    @action
    async def create_or_replace_temp_view(self, name: str) -> None:
        """Give the DataFrame a name in this session."""
        await self._create_view(name, is_global=False, replace=True)

    register_temp_table = create_or_replace_temp_view

    @action
    async def create_global_temp_view(self, name: str) -> None:
        """Give the DataFrame a name, ``global_temp.name``, in all sessions; fails if there is one."""
        await self._create_view(name, is_global=True, replace=False)

    @action
    async def create_or_replace_global_temp_view(self, name: str) -> None:
        """Give the DataFrame a name, ``global_temp.name``, in all sessions."""
        await self._create_view(name, is_global=True, replace=True)

    async def _create_view(self, name: str, *, is_global: bool, replace: bool) -> None:
        await self._link.command(plan.CreateView(self._relation, name, is_global, replace), self._observations)

    # Subqueries.

    def scalar(self) -> Column:
        """The one value of the DataFrame, within an expression."""
        return Column(Subquery(self._relation, "SUBQUERY_TYPE_SCALAR"))

    def exists(self) -> Column:
        """Whether the DataFrame has rows, within an expression."""
        return Column(Subquery(self._relation, "SUBQUERY_TYPE_EXISTS"))

    def as_table(self) -> "TableArg":
        """The DataFrame as an argument of a function that takes a table."""
        return TableArg(Subquery(self._relation, "SUBQUERY_TYPE_TABLE_ARG"))


@camel_cased()
class TableArg(Column):
    """A table as an argument of a function: partitioned or whole, then sorted."""

    __slots__ = ("_subquery",)

    def __init__(self, subquery: Subquery) -> None:
        super().__init__(subquery)
        self._subquery = subquery

    def partition_by(self, *cols: ColumnOrName | list[ColumnOrName]) -> "TableArg":
        """Rows that are equal in columns go to the same call."""
        return self._unpartitioned(partition_spec=expressions_of(_flat(cols)))

    def with_single_partition(self) -> "TableArg":
        """All rows go to one call."""
        return self._unpartitioned(with_single_partition=True)

    def order_by(self, *cols: ColumnOrName | list[ColumnOrName]) -> "TableArg":
        """The order of the rows of a call."""
        options = self._options()
        if not self._is_partitioned():
            raise InvalidPlanError("order_by() is within a partition.", remedy="Call partition_by() before.")
        order = (*options.order_spec, *map(sort_order_of, _flat(cols)))
        return self._with(TableArgOptions(options.partition_spec, order, options.with_single_partition))

    def _unpartitioned(self, **options: Any) -> "TableArg":
        if self._is_partitioned():
            raise InvalidPlanError("the table is partitioned already.", remedy="Partition it once.")
        return self._with(TableArgOptions(**options))

    def _is_partitioned(self) -> bool:
        options = self._options()
        return bool(options.partition_spec or options.with_single_partition)

    def _options(self) -> TableArgOptions:
        return self._subquery.table_arg_options or TableArgOptions()

    def _with(self, options: TableArgOptions) -> "TableArg":
        return TableArg(Subquery(self._subquery.relation, self._subquery.subquery_type, options))
