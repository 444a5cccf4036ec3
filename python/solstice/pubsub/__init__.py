"""Google Cloud Pub/Sub for Spark and for plain Python.

In Spark nothing is imported: ``spark.readStream.format("pubsub")`` finds the source by itself. A streaming query is
served by three kinds of processes:

- the planner (``_reader``): Spark's one Python process of the query; it asks the agent for batches;
- the agent (``_agent``, native): owns the connection to Pub/Sub, the leases and the rows that are not acknowledged yet;
- the workers (``_reader`` again, ``read``): each streams one part of a batch from the agent.
"""

from solstice.pubsub._publish import Publisher, PublishOptions, PublishResult, publish, publish_async
from solstice.pubsub._pull import AsyncPulledBatch, AsyncPuller, PulledBatch, Puller, PullOptions, pull, pull_async

__all__ = [
    "AsyncPulledBatch",
    "AsyncPuller",
    "PublishOptions",
    "PublishResult",
    "Publisher",
    "PullOptions",
    "PulledBatch",
    "Puller",
    "publish",
    "publish_async",
    "pull",
    "pull_async",
]
