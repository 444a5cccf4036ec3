"""A Spark driver of its own with one query from Pub/Sub to parquet, where settings of the context are the point."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from brief_jvm import BRIEF_JVM
from solstice._core.java import spark_environment

_PROGRAM = """
import json, sys
from pyspark.sql import SparkSession
folder, master, options, settings = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), json.loads(sys.argv[4])
builder = SparkSession.builder.master(master)
for name, value in settings.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
frame = spark.readStream.format("pubsub").options(**options).load()
query = (frame.selectExpr("cast(data as string) as event").writeStream.format("parquet")
    .option("path", folder + "/out").option("checkpointLocation", folder + "/checkpoint").start())
sys.stdin.read()
query.stop()
spark.stop()
"""
LOOPBACK = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false"}
_SETTINGS = LOOPBACK | {
    "spark.sql.shuffle.partitions": "2",
    "spark.executor.extraJavaOptions": BRIEF_JVM,
}


@dataclass
class SparkDriver:
    """The driver's process; ``<folder>/out`` and ``<folder>/checkpoint`` are its query's."""

    process: subprocess.Popen[bytes]
    folder: Path

    def log(self) -> str:
        """What the driver has written to its standard error."""
        return (self.folder / "driver.log").read_text(errors="replace")

    def wait_until(self, condition: Callable[[], bool], seconds: float = 90.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, self.log()[-4_000:]
            assert time.monotonic() < deadline, f"the condition did not come true in time: {self.log()[-4_000:]}"
            time.sleep(0.1)


@contextmanager
def spark_driver(
    folder: Path, master: str, options: Mapping[str, str], settings: Mapping[str, str]
) -> Iterator[SparkDriver]:
    """A driver that stops its query in good order at the end of ``with``."""
    arguments = [str(folder), master, json.dumps(dict(options)), json.dumps(_SETTINGS | dict(settings))]
    with (folder / "driver.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=log,
            env=os.environ | spark_environment(),
        )
    try:
        yield SparkDriver(process, folder)
    finally:
        try:
            process.communicate(b"", timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
