"""The job that the crash test runs and kills: Pub/Sub through Spark and two workers into parquet."""

import sys
from pathlib import Path
from typing import Any

from solstice.cli._demo_job import score
from solstice.pipeline import Job, ParquetSink, SparkSourceV2Config


def main(address: str, subscription: str, folder: Path) -> None:
    def clicks(spark: Any) -> Any:
        options = {"subscriptionId": subscription, "emulatorHost": address, "ackDeadline": "10s"}
        return spark.readStream.format("pubsub").options(**options).load()

    job = Job("crash", state=folder / "state", lease_s=5.0)
    source = SparkSourceV2Config(dataframe_fn=clicks, spark_configs={"spark.log.level": "ERROR"})
    job.source(source).map(score, workers=2).sink(ParquetSink(str(folder / "out")))
    job.run()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
