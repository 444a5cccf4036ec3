"""How the JVMs of tests are started: each lives for a minute or two, and most of that is its start.

`python tests/brief_jvm.py FILE` writes a class archive (AppCDS): what Spark loads in every session, to be mapped into
memory. With it, and with the quick compiler alone, a session costs a quarter of the processor time. A JVM that cannot
use the archive, because it is another Java's or Spark's, starts without it.
"""

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from solstice._core.java import spark_environment

ARCHIVE = Path(__file__).parent.parent / "target" / "spark.jsa"
_QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
BRIEF_JVM = f"{_QUICK} -XX:SharedArchiveFile={ARCHIVE} -Xshare:auto -Xlog:disable" if ARCHIVE.exists() else _QUICK

# spark-submit hands these to the JVM of whatever driver it starts.
VARIABLE = "SPARK_SUBMIT_OPTS"


def _write(archive: Path) -> None:
    """Use Spark in the ways the tests do, in a JVM that stores its classes when it ends."""
    from pyspark.sql import SparkSession

    unfinished = archive.with_name(f"{archive.name}.{os.getpid()}")
    os.environ.update(spark_environment())
    os.environ[VARIABLE] = f"{_QUICK} -XX:ArchiveClassesAtExit={unfinished} -Xlog:disable"
    archive.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        spark = (
            SparkSession.builder.master("local[2]")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.log.level", "ERROR")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.warehouse.dir", f"{folder}/warehouse")
            .config("spark.plugins", "org.apache.spark.sql.connect.SparkConnectPlugin")
            .config("spark.connect.grpc.binding.port", "0")
            .getOrCreate()
        )
        numbers = spark.range(1000).selectExpr("id", "id % 10 as k", "cast(id as string) as text")
        numbers.write.parquet(f"{folder}/numbers")
        spark.read.parquet(f"{folder}/numbers").groupBy("k").count().orderBy("k").toArrow()
        numbers.mapInArrow(_same, "id long, k long, text string").join(numbers, "id").count()
        stream = spark.readStream.format("rate").load().writeStream.format("parquet")
        query = stream.option("checkpointLocation", f"{folder}/checkpoint").start(f"{folder}/stream")
        query.processAllAvailable()
        query.stop()
        jvm = spark.sparkContext._gateway.proc
        spark.stop()
        jvm.stdin.close()  # it ends with its standard input, and writes the archive
        jvm.wait(120)
    unfinished.touch()  # a Java that cannot write one leaves none; an empty one is as good as none
    unfinished.replace(archive)


def _same(batches: Iterator[Any]) -> Iterator[Any]:
    return batches


if __name__ == "__main__":
    _write(Path(sys.argv[1]))
