"""The members of a consumer group, and how one that is gone is made to give back its partitions at once.

Workers are static members, named as they are registered. A static member can be taken over by whoever joins under its
name: the broker then refuses the one before. Who has taken it over can leave, and the others get its partitions; nobody
waits for the end of a lease.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

from solstice.pipeline._kafka_cluster import (
    CALL_S,
    EMPTY_MS,
    HEARTBEAT_MS,
    RECOVERY_S,
    KafkaCluster,
    discard,
    introduce,
)

_POLL_S = 0.02
_ATTEMPT_S = 10.0  # then others are sent: a consumer may have lost its broker for good


def join(
    cluster: KafkaCluster,
    topic: str,
    group: str,
    worker: str,
    lease_s: float,
    on_error: Callable[[Any], None] = lambda error: None,
    **callbacks: Any,
) -> Any:
    """A consumer that has asked to become a member."""
    lease_ms = max(int(lease_s * 1000), 2 * HEARTBEAT_MS)
    consumer = cluster.consumer(
        cluster.group(topic, group),
        on_error,
        group_instance_id=worker,
        partition_assignment_strategy="cooperative-sticky",
        session_timeout_ms=lease_ms,
        max_poll_interval_ms=max(lease_ms, 300_000),
        heartbeat_interval_ms=HEARTBEAT_MS,
        fetch_wait_max_ms=EMPTY_MS,
    )
    introduce(cluster, consumer, (cluster.data(topic), cluster.retry(topic, group)))
    consumer.subscribe([cluster.data(topic)], **callbacks)
    return consumer


def members(cluster: KafkaCluster, topic: str, group: str) -> list[str]:
    """The workers that the group knows, dead ones included while their leases last."""
    name = cluster.group(topic, group)

    def ask() -> list[str]:
        admin = cluster.admin
        (answer,) = admin.describe_consumer_groups([name], request_timeout=RECOVERY_S).values()
        try:
            found = cluster.answer_of_coordinator(answer)
        except cluster.kafka.KafkaException as error:
            if error.args[0].code() == cluster.kafka.KafkaError.GROUP_ID_NOT_FOUND:
                return []
            raise
        return [member.group_instance_id for member in found.members if member.group_instance_id]

    return cluster.retrying(ask)


def evict(cluster: KafkaCluster, topic: str, group: str, workers: Sequence[str]) -> None:
    """Make workers leave their group. All at once: a group waits for those of its members that it believes alive."""
    left = list(workers)
    deadline_s = time.monotonic() + RECOVERY_S
    while left and time.monotonic() < deadline_s:
        _take_over_and_leave(cluster, topic, group, left)
        known = members(cluster, topic, group)
        left = [worker for worker in left if worker in known]


def _take_over_and_leave(cluster: KafkaCluster, topic: str, group: str, workers: Sequence[str]) -> None:
    taken: set[str] = set()
    stand_ins = {
        worker: join(
            cluster, topic, group, worker, CALL_S, on_assign=lambda consumer, places, name=worker: taken.add(name)
        )
        for worker in workers
    }
    deadline_s = time.monotonic() + _ATTEMPT_S
    while len(taken) < len(stand_ins) and time.monotonic() < deadline_s:
        for consumer in stand_ins.values():
            consumer.poll(_POLL_S)
    for consumer in stand_ins.values():
        consumer.unsubscribe()  # a static member that is merely closed stays a member until its lease ends
    while set(workers) & set(members(cluster, topic, group)) and time.monotonic() < deadline_s:
        for consumer in stand_ins.values():
            consumer.poll(_POLL_S)
    for consumer in stand_ins.values():
        discard(consumer)
