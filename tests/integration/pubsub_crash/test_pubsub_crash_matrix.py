"""Every fault of the crash matrix once, with a fixed seed: nothing is lost, and nothing is acknowledged too early."""

from collections.abc import Iterator

import pytest

from pubsub_crash.points import GROUPS, Point, Stage, execute

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]  # a cluster of JVMs may start within

SEED = 1


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    stage = Stage()
    try:
        yield stage
        stage.stop_all()  # fails when a process or a file is left behind
    finally:
        stage.discard()


@pytest.mark.parametrize("points", GROUPS, ids=lambda points: "+".join(point.name for point in points))
def test_every_message_arrives_and_is_acked_only_then(points: list[Point], stage: Stage, tmp_path) -> None:
    verdicts = execute(points, tmp_path, SEED, stage, held=True)
    assert [complaint for verdict in verdicts for complaint in verdict.complaints] == []
