"""Jobs of stages: Spark writes Arrow splits and announces them in a queue, Python workers process them.

    job = Job("clicks")
    clicks = job.source(SparkSourceV2Config(dataframe_fn=lambda spark: spark.read.parquet("events/")))
    clicks.map(score, workers=2).sink(ParquetSink("out/"))
    job.run()

The map of the package, from what a user writes to what runs where:

- ``_job``, ``_stage``, ``_operator``, ``_sink``: the description of a job;
- ``_run``, ``_stage_master``, ``_source_master``, ``_spark_source``: the process of ``job.run()``;
- ``_worker``, ``_worker_process``, ``_local_runner``: the processes of the workers;
- ``_spark_format``, ``_spark_tasks``, ``_split_writer``: Spark's Python workers;
- ``_queue`` (``_sqlite_*``), ``_store`` (``_file_store``), ``_message``, ``_split``: what they exchange;
- ``_committing``, ``_sweep``, ``_faults``: what makes crashes harmless, and what makes them happen in tests.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from solstice.pipeline._job import Job
    from solstice.pipeline._message import PayloadRef, QueueMessage
    from solstice.pipeline._operator import Operator, OperatorConfig
    from solstice.pipeline._progress import JobResult, StageProgress
    from solstice.pipeline._queue import DeadLetter
    from solstice.pipeline._sink import ParquetSink
    from solstice.pipeline._source_master import ExternalSource, SourceMaster
    from solstice.pipeline._spark_source import SparkSourceV2Config
    from solstice.pipeline._split import Split, SplitPayload
    from solstice.pipeline._stage import Stage
    from solstice.pipeline._stage_master import StageMaster
    from solstice.pipeline._store import SplitPayloadStore
    from solstice.pipeline._worker import StageWorker

__all__ = [
    "DeadLetter",
    "ExternalSource",
    "Job",
    "JobResult",
    "Operator",
    "OperatorConfig",
    "ParquetSink",
    "PayloadRef",
    "QueueMessage",
    "SourceMaster",
    "SparkSourceV2Config",
    "Split",
    "SplitPayload",
    "SplitPayloadStore",
    "Stage",
    "StageMaster",
    "StageProgress",
    "StageWorker",
]

_MODULES = {
    "DeadLetter": "_queue",
    "ExternalSource": "_source_master",
    "Job": "_job",
    "JobResult": "_progress",
    "Operator": "_operator",
    "OperatorConfig": "_operator",
    "ParquetSink": "_sink",
    "PayloadRef": "_message",
    "QueueMessage": "_message",
    "SourceMaster": "_source_master",
    "SparkSourceV2Config": "_spark_source",
    "Split": "_split",
    "SplitPayload": "_split",
    "SplitPayloadStore": "_store",
    "Stage": "_stage",
    "StageMaster": "_stage_master",
    "StageProgress": "_progress",
    "StageWorker": "_worker",
}


def __getattr__(name: str) -> Any:
    """Load on first use: a worker process needs none of the driver's modules."""
    if name not in _MODULES:
        raise AttributeError(f"module 'solstice.pipeline' has no attribute {name!r}")
    return getattr(importlib.import_module(f"solstice.pipeline.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
