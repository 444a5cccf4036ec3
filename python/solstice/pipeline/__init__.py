"""Jobs of stages: Spark writes Arrow splits and announces them in a queue, Python workers process them.

    job = Job("clicks")
    clicks = job.source(SparkSourceV2Config(dataframe_fn=lambda spark: spark.read.parquet("events/")))
    clicks.map(score, workers=2).sink(ParquetSink("out/"))
    job.run()

The map of the package, from what a user writes to what runs where:

- ``_job``, ``_stage``, ``_settings``, ``_operator``, ``_function``, ``_sink``, ``_file_sink``: what a job is;
- ``_run``, ``_stage_master``, ``_autoscale``, ``_source_master``, ``_spark_master`` (``_spark_source``,
  ``_spark_source_v2``, ``_spark_batch``, ``_spark_parquet``), ``_iterable_source``, ``_file_source``,
  ``_pubsub_source``: the process of ``job.run()``;
- ``_worker``, ``_intake``, ``_watchdog``, ``_rate_limit``, ``_schema_guard``: a worker;
- ``_runner`` (``_local_runner`` with ``_worker_process``, ``_inprocess_runner``, ``_ray_runner``): where workers run;
- ``_spark_format``, ``_spark_tasks``, ``_split_writer``: Spark's Python workers;
- ``_queue`` (``_sqlite_*``, ``_kafka_*``), ``_store`` (``_file_store``, ``_object_store``, ``_ray_store``),
  ``_message``, ``_split``: what they exchange;
- ``_budget``: how writers wait when workers are behind;
- ``_events``, ``_progress``, ``_display``, ``_state``: what others see of a job;
- ``_committing``, ``_object_output``, ``_sweep``, ``_faults``: what makes crashes harmless, and happen in tests.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from solstice.pipeline._file_sink import ArrowSink, JsonSink, ParquetSink
    from solstice.pipeline._file_source import FileSource
    from solstice.pipeline._iterable_source import IterableSource
    from solstice.pipeline._job import Job
    from solstice.pipeline._message import PayloadRef, QueueMessage
    from solstice.pipeline._object_output import committed_files
    from solstice.pipeline._operator import Operator, OperatorConfig
    from solstice.pipeline._progress import JobResult, StageProgress
    from solstice.pipeline._pubsub_sink import PubSubSink
    from solstice.pipeline._pubsub_source import PubSubSource
    from solstice.pipeline._queue import DeadLetter
    from solstice.pipeline._settings import StageOptions
    from solstice.pipeline._sink import FunctionSink, PrintSink, Sink
    from solstice.pipeline._source_master import ExternalSource, Source, SourceConfig, SourceMaster
    from solstice.pipeline._spark_source import SparkSource, SparkSourceConfig, SparkSourceMaster
    from solstice.pipeline._spark_source_v2 import SparkSourceV2Config, SparkSourceV2Master
    from solstice.pipeline._split import Split, SplitPayload
    from solstice.pipeline._stage import Stage
    from solstice.pipeline._stage_master import StageMaster
    from solstice.pipeline._store import SplitPayloadStore
    from solstice.pipeline._worker import StageWorker

__all__ = [
    "ArrowSink",
    "DeadLetter",
    "ExternalSource",
    "FileSource",
    "FunctionSink",
    "IterableSource",
    "Job",
    "JobResult",
    "JsonSink",
    "Operator",
    "OperatorConfig",
    "ParquetSink",
    "PayloadRef",
    "PrintSink",
    "PubSubSink",
    "PubSubSource",
    "QueueMessage",
    "Sink",
    "Source",
    "SourceConfig",
    "SourceMaster",
    "SparkSource",
    "SparkSourceConfig",
    "SparkSourceMaster",
    "SparkSourceV2Config",
    "SparkSourceV2Master",
    "Split",
    "SplitPayload",
    "SplitPayloadStore",
    "Stage",
    "StageMaster",
    "StageOptions",
    "StageProgress",
    "StageWorker",
    "committed_files",
]

_MODULES = {
    "ArrowSink": "_file_sink",
    "DeadLetter": "_queue",
    "ExternalSource": "_source_master",
    "FileSource": "_file_source",
    "FunctionSink": "_sink",
    "IterableSource": "_iterable_source",
    "Job": "_job",
    "JobResult": "_progress",
    "JsonSink": "_file_sink",
    "Operator": "_operator",
    "OperatorConfig": "_operator",
    "ParquetSink": "_file_sink",
    "PayloadRef": "_message",
    "PrintSink": "_sink",
    "PubSubSink": "_pubsub_sink",
    "PubSubSource": "_pubsub_source",
    "QueueMessage": "_message",
    "Sink": "_sink",
    "Source": "_source_master",
    "SourceConfig": "_source_master",
    "SourceMaster": "_source_master",
    "SparkSource": "_spark_source",
    "SparkSourceConfig": "_spark_source",
    "SparkSourceMaster": "_spark_source",
    "SparkSourceV2Config": "_spark_source_v2",
    "SparkSourceV2Master": "_spark_source_v2",
    "Split": "_split",
    "SplitPayload": "_split",
    "SplitPayloadStore": "_store",
    "Stage": "_stage",
    "StageMaster": "_stage_master",
    "StageOptions": "_settings",
    "StageProgress": "_progress",
    "StageWorker": "_worker",
    "committed_files": "_object_output",
}


def __getattr__(name: str) -> Any:
    """Load on first use: a worker process needs none of the driver's modules."""
    if name not in _MODULES:
        raise AttributeError(f"module 'solstice.pipeline' has no attribute {name!r}")
    return getattr(importlib.import_module(f"solstice.pipeline.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
