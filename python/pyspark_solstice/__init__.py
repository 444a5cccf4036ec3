"""Spark imports packages whose names start with ``pyspark_`` and registers their ``DefaultSource``."""

from solstice.pipeline._spark_format import SolsticeDataSource as DefaultSource

__all__ = ["DefaultSource"]
