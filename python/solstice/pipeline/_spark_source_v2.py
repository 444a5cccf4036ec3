"""Spark as the source of a job: its tasks write splits themselves, so that workers start while Spark still runs."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from solstice.errors import ConfigError, StreamResetError
from solstice.pipeline._budget import warn_of_a_full_disk
from solstice.pipeline._queue import Queue
from solstice.pipeline._source_master import BATCH_ID, SourceContext
from solstice.pipeline._spark_batch import estimated_bytes, fingerprint
from solstice.pipeline._spark_master import SparkConfig, SparkMaster
from solstice.pipeline._spark_parquet import check_parquet, write_parquet
from solstice.pipeline._spark_tasks import Visibility
from solstice.pipeline._store import open_store

_STREAM_ID = "main"  # a job of ours has one stream
_POLL_S = 0.2
_CHOICES = {"visibility": ("task", "job"), "writer": ("arrow", "parquet")}


@dataclass
class SparkSourceV2Config(SparkConfig):
    """A DataFrame, batch or streaming, as a source.

    ``dataframe_fn`` gets the session: the running one if there is one, else one that is built from ``app_name``,
    ``spark_configs`` and the executor fields, and stopped at the end. ``parallelism`` repartitions. ``trigger`` is for
    streams: an interval such as ``"1 second"``, or the keywords of ``DataStreamWriter.trigger``.

    ``visibility="task"`` lets workers see the splits of a batch as soon as a task is done; if the query gives other
    rows when it runs again, use ``"job"``, at which all become visible together. ``writer="parquet"`` is Spark's own:
    it writes less, but everything becomes visible at the end, and after a crash everything is computed again.
    """

    app_name: str = "solstice-spark-v2"
    trigger: str | Mapping[str, Any] | None = None
    visibility: Visibility = "task"
    writer: Literal["arrow", "parquet"] = "arrow"

    def master(self, context: SourceContext) -> "SparkSourceV2Master":
        """The master that runs this source."""
        for option, known in _CHOICES.items():
            if (value := getattr(self, option)) not in known:
                raise ConfigError(
                    f"{option} is {value!r}.", option=option, value=value, remedy=f"Use {' or '.join(known)}."
                )
        return SparkSourceV2Master(context, self)


class SparkSourceV2Master(SparkMaster):
    """Runs the Spark job of a source. No row passes through here, and no split unless all become visible at once."""

    def __init__(self, context: SourceContext, config: SparkSourceV2Config) -> None:
        super().__init__(context, config)
        self._v2 = config

    def _write(self, frame: Any) -> None:
        if self._v2.writer == "parquet":
            self._write_parquet(frame)
        elif frame.isStreaming:
            self._write_stream(frame)
        else:
            self._write_batch(frame, self._v2.visibility)

    def _write_parquet(self, frame: Any) -> None:
        store = open_store(self.context.payloads)
        directory = check_parquet(frame, store)
        self._begin_batch(frame)
        warn_of_a_full_disk(self.context.stage, estimated_bytes(frame), store)

        def compute(queue: Queue, missing: list[int]) -> None:
            write_parquet(frame, self._target, BATCH_ID, queue, store, directory)

        # To Spark's writer a batch is a whole, so it is one partition here.
        self._resume_batch(fingerprint(frame, "parquet"), 1, compute)

    def _write_stream(self, frame: Any) -> None:
        checkpoint = self.context.state / "checkpoint" / self.context.stage
        writer = (
            frame.writeStream.format("solstice")
            .option("job", self.context.job)
            .option("stage", self.context.stage)
            .option("queue", self.context.queue)
            .option("payloads", self.context.payloads)
            .option("streamId", _STREAM_ID)
            .option("targetSplitBytes", str(self._config.target_split_bytes))
            .option("checkpointLocation", str(checkpoint))
            .queryName(f"{self.context.job}-{self.context.stage}")
        )
        if self.context.payload_budget is not None:
            writer = writer.option("payloadBudget", str(self.context.payload_budget))
        trigger = self._v2.trigger
        if trigger is not None:
            writer = writer.trigger(**({"processingTime": trigger} if isinstance(trigger, str) else dict(trigger)))
        query = writer.start()
        try:
            while query.isActive and not self._stop.wait(_POLL_S):
                pass
        finally:
            query.stop()
        if (error := query.exception()) is not None and not self._stop.is_set():
            raise _translated(error)


def _translated(error: Exception) -> Exception:
    """Spark wraps what a writer raised into its own error as text; give ours its class back."""
    match = re.search(r"solstice\.errors\.StreamResetError: (.*)", str(error))
    return StreamResetError(match[1]) if match else error
