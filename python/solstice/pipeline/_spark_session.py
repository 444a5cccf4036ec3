"""The Spark session of a source: the running one, or one that is built for it."""

import os
from typing import Any

from solstice._core.extras import require
from solstice._core.java import spark_environment


def running_session() -> Any | None:
    """The session of this thread, or else of this process, if there is one."""
    require("pyspark", "pipeline")
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is None:
        return None
    return SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()


def activate(session: Any) -> None:
    """Make a session the active one of this thread: without one, Spark finds no data source written in Python."""
    getattr(session._jvm, "org.apache.spark.sql.classic.SparkSession").setActiveSession(session._jsparkSession)


def build_session(app_name: str, settings: dict[str, str]) -> Any:
    """Start Spark with these settings; on this machine and loopback unless they say otherwise."""
    from pyspark.sql import SparkSession

    os.environ.update(spark_environment())
    builder = SparkSession.builder.appName(app_name)
    defaults = {}
    if settings["spark.master"].startswith("local"):
        defaults = {
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",  # the job has a display of its own
        }
    for name, value in (defaults | settings).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
