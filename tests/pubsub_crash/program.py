"""The Spark driver of the matrix: a process with a JVM of its own. It is told what to do in lines of JSON on stdin."""

import json
import os
import sys
from pathlib import Path
from typing import Any

from pubsub_crash import sinks, task_faults

# More of them than Spark runs at a time: see without_shuffle_files.
SHUFFLE_PARTS = 9


class Program:
    """One Spark session and its queries."""

    def __init__(self, conf: dict[str, str]) -> None:
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.appName("pubsub-crash")
        for name, value in conf.items():
            builder = builder.config(name, value)
        self._spark = builder.getOrCreate()
        self._queries: dict[str, Any] = {}

    def hello(self) -> dict[str, Any]:
        """Who this is."""
        return {"jvm": self._spark._jvm.java.lang.ProcessHandle.current().pid()}

    def start(
        self,
        name: str,
        folder: str,
        life: int,
        options: dict[str, str],
        sink: str,
        fault: str,
        hold_batch: int | None,
        shuffle_batch: int | None,
    ) -> dict[str, Any]:
        """Start a query, or start it again from its checkpoint."""
        notes = Path(folder) / "notes"
        frame = self._spark.readStream.format("pubsub").options(**options).load().select("message_id", "data")
        frame = frame.mapInArrow(task_faults.faulty(notes, life, task_faults.from_json(fault)), frame.schema)
        if shuffle_batch is not None:
            files = self._spark.conf.get("spark.local.dir")
            frame = frame.repartition(SHUFFLE_PARTS, "message_id").mapInArrow(
                task_faults.without_shuffle_files(notes, life, shuffle_batch, files), frame.schema
            )
        self._queries[name] = sinks.start_query(frame, Path(folder), sink, hold_batch)
        return {}

    def state(self, name: str) -> dict[str, Any]:
        """Whether a query runs, and why it does not."""
        query = self._queries[name]
        error = query.exception()
        return {"active": query.isActive, "error": None if error is None else str(error)}

    def stop(self, name: str) -> dict[str, Any]:
        """Stop a query."""
        self._queries.pop(name).stop()
        return {}

    def close(self) -> None:
        """Stop Spark."""
        for query in self._queries.values():
            query.stop()
        self._spark.stop()


def main() -> None:
    """Answer each line of stdin with a line; the JVM's own stdout goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    program = Program(json.loads(sys.argv[1]))
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = getattr(program, command.pop("do"))(**command)
        except Exception as error:  # noqa: BLE001  the harness decides what a failure means
            answer = {"failed": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
    program.close()


if __name__ == "__main__":
    main()
