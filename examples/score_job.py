"""Rows from Spark through Python workers into parquet. Run: python examples/score_job.py"""

import tempfile

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from solstice.pipeline import Job, ParquetSink, SparkSourceV2Config


def score(clicks: pa.Table) -> pa.Table:
    """Stands for a model: runs in worker processes, on Arrow tables of some megabytes."""
    return clicks.append_column("score", pc.multiply(clicks["id"], 0.5))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        job = Job("clicks", state=f"{folder}/state")
        clicks = job.source(SparkSourceV2Config(dataframe_fn=lambda spark: spark.range(100_000)))
        clicks.map(score, workers=2, retries=3).sink(ParquetSink(f"{folder}/scored"))
        result = job.run()  # run it again after a crash: it goes on where it was
        print("scored", result.stage("score").settled_records, "rows,", result.dead, "splits given up")
        print("stored", pq.read_table(f"{folder}/scored").num_rows, "rows")
