"""The Spark session of a source: the running one, or one that is built for it."""

import os
import threading
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


class SessionPool:
    """The sessions of the sources of this process. Spark has one context a process: one that was built for a source is
    stopped when the last source is through with it, and one that was there is left alone.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0  # of a context that was built here

    def take(self, running: Any | None, app_name: str, settings: dict[str, str]) -> Any:
        """A session: the running one, unless it was stopped in the meantime, or one that is built from the settings."""
        with self._lock:
            session = running if running is not None and running.sparkContext._jsc is not None else running_session()
            if session is None:
                session = _build(app_name, settings)
                self._users = 1
            elif self._users:
                self._users += 1
            return session

    def give_back(self, session: Any) -> None:
        """What was taken is needed no more."""
        with self._lock:
            if self._users:
                self._users -= 1
                if self._users == 0:
                    session.stop()


POOL = SessionPool()


def _build(app_name: str, settings: dict[str, str]) -> Any:
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
