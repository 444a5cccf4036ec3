"""One Spark Connect server for all tests of the client; sessions are cheap."""

import pytest

import solstice.connect as sc
from solstice.connect import _local


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    running = _local.start_server(
        {
            "spark.master": "local[2]",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.timeType.enabled": "true",
            "spark.checkpoint.dir": str(tmp_path_factory.mktemp("checkpoints")),
            "spark.connect.progress.reportInterval": "100ms",
            "spark.driver.memory": "3g",  # for a cell of 150 MB
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",  # starts faster; nothing here runs long
        }
    )
    yield running
    running.stop()


@pytest.fixture(scope="module")
def spark(server):
    with sc.connect(server.url) as session:
        yield session
