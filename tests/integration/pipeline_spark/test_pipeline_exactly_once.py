"""A job whose processes are killed one after the other gives every row once; see also `make crash-pipeline`."""

import pytest

from pipeline_crash.harness import Crash
from solstice.testing import KafkaBroker

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(700)]  # many processes start within

ROWS = 200_000
KILLS = {"worker": 4, "executor": 1, "master": 2}


def check(crash: Crash) -> None:
    verdict = crash.run()
    assert verdict.complaints == []
    assert (verdict.lost, verdict.doubled, verdict.orphans, verdict.computed_again) == (0, 0, 0, 0)
    assert verdict.dead_found == verdict.dead_expected > 0
    assert verdict.runs > verdict.kills["master"] == KILLS["master"]


def test_every_row_arrives_once_whatever_is_killed(tmp_path):
    check(Crash(tmp_path, None, rows=ROWS, seed=1, kills=KILLS, deadline_s=600, say=print))


@pytest.mark.kafka
def test_every_row_arrives_once_on_kafka_whatever_is_killed(tmp_path):
    with KafkaBroker() as broker:
        kills = KILLS | {"broker": 1}
        crash = Crash(tmp_path, None, rows=ROWS, seed=2, kills=kills, broker=broker, deadline_s=600, say=print)
        check(crash)
