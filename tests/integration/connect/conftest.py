"""One Spark Connect server for all tests of the client; sessions are cheap.

``make test-matrix`` names another server than the installed pyspark's in the environment.
"""

import importlib.metadata
import os

import pytest

import solstice.connect as sc
from connect_matrix import servers
from solstice.connect import _local

MATRIX_SERVER = os.environ.get(servers.VARIABLE)


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    config = {
        "spark.master": "local[2]",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.timeType.enabled": "true",
        "spark.checkpoint.dir": str(tmp_path_factory.mktemp("checkpoints")),
        "spark.connect.progress.reportInterval": "100ms",
        "spark.driver.memory": "3g",  # for a cell of 150 MB
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # start faster
    }
    running = servers.MatrixServer(MATRIX_SERVER, config) if MATRIX_SERVER else _local.start_server(config)
    yield running
    running.stop()


@pytest.fixture(scope="session")
def spark_version():
    """What the version of the server begins with."""
    if MATRIX_SERVER is None:
        return importlib.metadata.version("pyspark")
    return MATRIX_SERVER.removeprefix("spark-") if MATRIX_SERVER.startswith("spark") else ""


@pytest.fixture(scope="module")
def spark(server):
    with sc.connect(server.url) as session:
        yield session


def pytest_collection_modifyitems(config, items):
    """In the matrix: only what asks the server, and what it cannot do has to fail."""
    if not MATRIX_SERVER:
        return
    asking = [item for item in items if "server" in item.fixturenames]
    config.hook.pytest_deselected(items=[item for item in items if item not in asking])
    items[:] = asking
    reasons = servers.unsupported(MATRIX_SERVER)
    for item in items:
        reason = reasons.get(f"{item.path.name}::{item.name}")
        if reason is not None and reason.startswith("not run"):
            item.add_marker(pytest.mark.skip(reason=reason))
        elif reason is not None:
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))
