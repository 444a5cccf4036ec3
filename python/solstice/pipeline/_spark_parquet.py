"""``writer="parquet"``: Spark writes the payloads with its own writer, and they become visible when it has ended."""

import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from solstice._core.arrow import to_arrow_schema
from solstice._core.durable import fsync_directory, fsync_file, make_directories
from solstice.errors import ConfigError, PipelineError, UnsupportedTypeError
from solstice.pipeline._message import QueueMessage
from solstice.pipeline._paths import local_url
from solstice.pipeline._queue import Queue
from solstice.pipeline._spark_tasks import WriteTarget
from solstice.pipeline._split import source_split_id
from solstice.pipeline._split_writer import Heartbeat, SplitWriter
from solstice.pipeline._store import SplitPayloadStore, encode_schema, schema_fingerprint

if TYPE_CHECKING:
    import pyarrow as pa

# part-<task>-<id of the write>-c<file of the task>.<codec>.parquet, as Spark names them.
_PART = re.compile(r"part-(\d+)-.*-c(\d+)\b.*\.parquet")
_VARIANT = re.compile(r'"(type|elementType|valueType)":"variant"')
_ROW_OVERHEAD_BYTES = 8


def check_parquet(frame: Any, store: SplitPayloadStore) -> Path:
    """Refuse what Spark's parquet writer cannot do; returns where the payloads go."""
    if frame.isStreaming:
        raise ConfigError(
            'writer="parquet" cannot write a streaming DataFrame.',
            option="writer",
            value="parquet",
            remedy='Use writer="arrow".',
        )
    for column in frame.schema.fields:
        if _VARIANT.search(column.json()):
            raise UnsupportedTypeError(
                f"column {column.name!r}: Spark writes variants to parquet in a form that only Spark reads.",
                column=column.name,
                value="variant",
                remedy='Use writer="arrow".',
            )
    directory = store.directory()
    if directory is None:
        raise ConfigError(
            f'writer="parquet" cannot write to {store.url}: Spark writes with its own file systems.',
            option="writer",
            value="parquet",
            remedy='Use writer="arrow", or payloads in file:// or shm://.',
        )
    return directory


def write_parquet(
    frame: Any, target: WriteTarget, batch_id: str, queue: Queue, store: SplitPayloadStore, directory: Path
) -> None:
    """Write a frame whole, and make it visible in one transaction."""
    schema = _arrow_schema(frame)
    rows = target.target_split_bytes // (_row_bytes(frame) + _ROW_OVERHEAD_BYTES)
    with SplitWriter(
        queue,
        store,
        stage=target.stage,
        batch_id=batch_id,
        partition=0,
        attempt=1,
        target_split_bytes=target.target_split_bytes,
    ) as writer:
        folder = directory / target.stage / writer.writer
        with Heartbeat(target.queue, writer.writer):
            make_directories(folder)
            written = folder / "written"
            frame.write.option("maxRecordsPerFile", max(rows, 1)).parquet(local_url("file", written))
            for path in sorted(written.iterdir()):
                if (part := _PART.fullmatch(path.name)) is not None:
                    task, index = int(part[1]), int(part[2])
                    split_id = source_split_id(target.stage, batch_id, task, index)
                    final = folder / f"{split_id}.parquet"
                    os.rename(path, final)
                    if (message := _message(final, split_id, target, batch_id, task, schema)) is not None:
                        writer.messages.append(message)
            shutil.rmtree(written)
            fsync_directory(folder)
        if not writer.publish():
            raise PipelineError(f"stage {target.stage!r} is visible already: another run has written it.")


def _message(
    path: Path, split_id: str, target: WriteTarget, batch_id: str, task: int, schema: "pa.Schema"
) -> QueueMessage | None:
    """The message of a file that Spark wrote, which is durable then; None if it has no rows."""
    import pyarrow.parquet as pq

    records = pq.read_metadata(path).num_rows
    if records == 0:
        path.unlink()
        return None
    fsync_file(path)
    writer = path.parent.name
    return QueueMessage(
        message_id=f"{target.stage}_{writer}_{split_id}",
        split_id=split_id,
        payload_key=f"{target.stage}/{writer}/{path.name}",
        metadata={
            "source_stage": target.stage,
            "num_records": records,
            "uri": local_url("file", path),
            "bytes": path.stat().st_size,
            "schema_fingerprint": schema_fingerprint(schema),
            "checksum": "",  # to make one, the driver would have to read all that Spark has written
            "attempt": 1,
            "batch_id": batch_id,
            "partition": task,
            "arrow_schema": encode_schema(schema),
        },
    )


def _arrow_schema(frame: Any) -> "pa.Schema":
    """What the Arrow writer would give: parquet has no intervals, and everything in it may be null."""
    import pyarrow as pa

    zone = frame.sparkSession.conf.get("spark.sql.session.timeZone")
    return pa.schema([_with_zone(field, zone) for field in to_arrow_schema(frame.schema)])


def _with_zone(field: "pa.Field", zone: str) -> "pa.Field":
    """The same field with the session's time zone as the label of its timestamps, as Spark's Arrow has it."""
    import pyarrow as pa

    kind = field.type
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        kind = pa.timestamp(kind.unit, zone)
    elif pa.types.is_struct(kind):
        kind = pa.struct([_with_zone(inner, zone) for inner in kind])
    elif pa.types.is_list(kind):
        kind = pa.list_(_with_zone(kind.value_field, zone))
    elif pa.types.is_map(kind):
        kind = pa.map_(_with_zone(kind.key_field, zone), _with_zone(kind.item_field, zone))
    return field.with_type(kind)


def _row_bytes(frame: Any) -> int:
    """How large Spark expects a row to be, from the types alone."""
    return int(frame._jdf.schema().defaultSize())
