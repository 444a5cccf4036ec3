"""Spark looks for data sources in packages named ``pyspark_*``: this one makes ``format("pubsub")`` known."""

from solstice.pubsub._source import PubSubDataSource as DefaultSource

__all__ = ["DefaultSource"]
