"""A batch of Spark: what tells one from another, and running some of its partitions."""

import hashlib
import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote

from solstice.pipeline._spark_tasks import TaskOutput

# Objects that Java prints with a number that differs from run to run: a.package.Class@1f2e3d4c.
_HASH = re.compile(r"\b((?:[a-z]\w*\.){2,}[A-Z][\w$./]*)@[0-9a-f]{1,8}(?![\w.])")
_ALL = 2**31 - 1
_UNKNOWN_BYTES = 1 << 50  # what Spark knows nothing about, and the product that it takes for the size of a join


def fingerprint(frame: Any, *choices: str) -> str:
    """A name for what a batch reads and how it is written: the plan without what differs from run to run, the columns,
    the input files with their times and sizes, and ``choices``.
    """
    execution = frame._jdf.queryExecution()
    # What was asked for: in the canonical form, which has numbers of its own instead of Spark's running ones. How Spark
    # understands it has the values of such as current_date(), and the insides of a cache with running numbers; these
    # look like a part of a text may, so it alone would not tell all queries apart.
    asked = _text(execution.analyzed().canonicalized())
    understood = re.sub(r"#\d+L?|plan_id=\d+", "", _text(execution.optimizedPlan()))
    digest = hashlib.sha256("\n".join((*choices, asked, understood, frame.schema.json())).encode())
    for name, version in input_versions(frame.sparkSession, frame.inputFiles()).items():
        digest.update(f"{name} {version}\n".encode())
    return digest.hexdigest()[:16]


def _text(plan: Any) -> str:
    """A plan with all its columns, of which toString leaves out those beyond the 25th."""
    return _HASH.sub(r"\1", plan.treeString(True, False, _ALL, False, False))


def input_versions(session: Any, names: Iterable[str]) -> dict[str, str]:
    """What tells one content of each input file from another, by name, sorted. Names are URLs as Spark writes them.

    Asked of Hadoop, as Spark does: it knows every place that Spark can read from. A directory is one question.
    """
    folders: dict[str, list[str]] = {}
    for name in sorted(names):
        folders.setdefault(name.rpartition("/")[0], []).append(name)
    versions = {}
    for folder, inside in folders.items():
        found = _statuses(session, folder if len(inside) > 1 else inside[0])
        versions.update({name: found.get(unquote(name.rpartition("/")[2]), "absent") for name in inside})
    return dict(sorted(versions.items()))


def _statuses(session: Any, url: str) -> dict[str, str]:
    """Time and size of each file of a directory, or of one file, by its last name; empty if it is not there."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

    path = session._jvm.org.apache.hadoop.fs.Path(session._jvm.java.net.URI(url))
    try:
        statuses = path.getFileSystem(session._jsparkSession.sessionState().newHadoopConf()).listStatus(path)
    except Py4JJavaError as error:
        if error.java_exception.getClass().getName() == "java.io.FileNotFoundException":
            return {}
        raise
    return {status.getPath().getName(): f"{status.getModificationTime()} {status.getLen()}" for status in statuses}


def estimated_bytes(frame: Any) -> int:
    """How large Spark expects a result to be; 0 if it does not know."""
    size = int(frame._jdf.queryExecution().optimizedPlan().stats().sizeInBytes())
    return size if size < _UNKNOWN_BYTES else 0


def run_partitions(session: Any, outputs: Any, partitions: list[int]) -> list[TaskOutput]:
    """Compute some partitions of a frame of task outputs, and only what these need.

    As ``SparkContext.runJob``, but without the second Python worker per task that it would start to apply a function.
    """
    from pyspark.util import _load_from_socket

    context = session.sparkContext
    info = session._jvm.PythonRDD.runJob(context._jsc.sc(), outputs._jrdd, partitions)
    with _load_from_socket(info, outputs._jrdd_deserializer) as rows:
        return [TaskOutput.from_json(row.output) for row in rows]
