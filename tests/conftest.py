"""Fixtures shared by all tests: one Spark session for every module that asks for one."""

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from brief_jvm import BRIEF_JVM, VARIABLE
from solstice._core.java import spark_environment


def pytest_configure() -> None:
    """A shell starts its background jobs with Ctrl-C ignored, and tests press it. Their JVMs are to start soon."""
    os.environ.setdefault(VARIABLE, BRIEF_JVM)
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A real local Spark session on loopback, started once for the whole run."""
    from pyspark.sql import SparkSession

    os.environ.update(spark_environment())
    home = tmp_path_factory.mktemp("spark")
    session = (
        SparkSession.builder.master("local[2,4]")
        .appName("solstice-tests")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(home / "warehouse"))
        .config("spark.local.dir", str(home / "local"))
        .getOrCreate()
    )
    yield session
    for query in session.streams.active:
        query.stop()
    session.stop()


@pytest.fixture(scope="session")
def kafka_broker() -> Iterator[Any]:
    """A real Apache Kafka on loopback, started once for the whole run."""
    from solstice.testing import KafkaBroker

    with KafkaBroker() as broker:
        yield broker
