"""Removing topics and groups, by their names: a job's prefix may be that of somebody else's topics too."""

import contextlib
from collections.abc import Sequence

from solstice.pipeline._kafka_cluster import CALL_S, KafkaCluster


def delete_topics(cluster: KafkaCluster, topics: set[str]) -> None:
    """Delete topics, and wait until they are gone; they need not be there."""
    cluster.retrying(lambda: _delete(cluster, topics))


def _delete(cluster: KafkaCluster, topics: set[str]) -> None:
    codes = cluster.kafka.KafkaError
    admin = cluster.admin
    # All are listed: asking for one by its name may create it.
    there = topics & set(admin.list_topics(timeout=CALL_S).topics)
    if not there:
        return
    for future in admin.delete_topics(sorted(there), operation_timeout=CALL_S).values():
        try:
            cluster.answer(future, 2 * CALL_S)
        except cluster.kafka.KafkaException as error:
            cause = error.args[0]
            if cause.code() == codes.UNKNOWN_TOPIC_OR_PART:
                continue
            if cause.code() < 0 or cause.retriable():
                raise
            raise cluster.failed(error) from error
    raise cluster.kafka.KafkaException(codes(codes._TIMED_OUT, "the topics are not gone yet"))  # look again


def delete_groups(cluster: KafkaCluster, groups: Sequence[str]) -> None:
    """Delete groups; they may never have had a member."""
    admin = cluster.admin
    for future in admin.delete_consumer_groups(groups).values() if groups else ():
        with contextlib.suppress(cluster.kafka.KafkaException):
            cluster.answer(future, 2 * CALL_S)
