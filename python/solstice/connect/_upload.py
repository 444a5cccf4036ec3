"""Local data on its way to the server: within the plan while it is small, uploaded once and by its hash if not."""

import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from solstice._core.extras import require
from solstice.connect import _plan as plan
from solstice.connect._protocol import load_protocol
from solstice.errors import InvalidPlanError

if TYPE_CHECKING:
    from solstice.connect._link import Link

_PREFIX = "spark.sql.session.localRelation"
_THRESHOLD, _SIZE_LIMIT = f"{_PREFIX}CacheThreshold", f"{_PREFIX}SizeLimit"
_CHUNK_ROWS, _CHUNK_BYTES = f"{_PREFIX}ChunkSizeRows", f"{_PREFIX}ChunkSizeBytes"
# The settings that the relation depends on.
CONFIG = (_THRESHOLD, _SIZE_LIMIT, _CHUNK_ROWS, _CHUNK_BYTES)
_DEFAULT_THRESHOLD = 64 * 1024 * 1024
_ROWS_PER_STEP = 1024


async def local_relation(link: "Link", table: Any, schema: str | None, config: dict[str, str]) -> plan.Relation:
    """The relation of an Arrow table, uploaded if it is large."""
    if table.nbytes < int(config.get(_THRESHOLD, _DEFAULT_THRESHOLD)):
        return plan.LocalRelation(_stream(table.to_batches(), table.schema), schema)
    if not {_CHUNK_ROWS, _CHUNK_BYTES} <= config.keys():  # a server before Spark 4.1: one artifact, the whole relation
        message = load_protocol().LocalRelation(data=_stream(table.to_batches(), table.schema), schema=schema)
        return plan.CachedLocalRelation(await _cached(link, message.SerializeToString()))
    hashes, size, limit = [], 0, int(config.get(_SIZE_LIMIT, 2**62))
    schema_hash = None if schema is None else await _cached(link, schema.encode())
    for chunk in _chunks(table, int(config[_CHUNK_ROWS]), int(config[_CHUNK_BYTES])):
        size += len(chunk)
        if size > limit:
            raise InvalidPlanError(
                f"the data is larger than {limit:,} bytes, the server's limit ({_SIZE_LIMIT}).",
                remedy="Write it to files and read those, or raise the limit.",
            )
        hashes.append(await _cached(link, chunk))
    return plan.ChunkedCachedLocalRelation(tuple(hashes), schema_hash)


def _chunks(table: Any, max_rows: int, max_bytes: int) -> Iterator[bytes]:
    """Arrow streams of at most so many rows and about so many bytes each."""
    batches: list[Any] = []
    rows = size = 0
    for batch in table.to_batches(max_chunksize=min(_ROWS_PER_STEP, max_rows)):
        if batches and (size + batch.nbytes > max_bytes or rows + batch.num_rows > max_rows):
            yield _stream(batches, table.schema)
            batches, rows, size = [], 0, 0
        batches.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
    yield _stream(batches, table.schema)


def _stream(batches: list[Any], schema: Any) -> bytes:
    pa = require("pyarrow", "spark")
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_table(pa.Table.from_batches(batches, schema))
    data: bytes = sink.getvalue().to_pybytes()
    return data


async def _cached(link: "Link", data: bytes) -> str:
    """Upload data unless the session has it already; its hash."""
    name = hashlib.sha256(data).hexdigest()
    await link.driver.upload(f"cache/{name}", data)
    return name
