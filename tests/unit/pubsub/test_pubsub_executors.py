"""What Spark pickles for its executors, unpickled where Solstice is and where it is not."""

import subprocess
import sys
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import types as st

import solstice
from solstice.pubsub._source import PubSubDataSource

SOURCE = {"subscriptionId": "projects/p/subscriptions/s", "emulatorHost": "127.0.0.1:1", "columns": "data"}
SINK = {"topicId": "projects/p/topics/t", "emulatorHost": "127.0.0.1:1"}
SCHEMA = st.StructType([st.StructField("data", st.BinaryType())])

# As a task of Spark does, on a host without Solstice.
WITHOUT = """
import sys
sys.modules["solstice"] = None
from pyspark import cloudpickle
cloudpickle.load(sys.stdin.buffer)
"""


def travelling() -> dict[str, Any]:
    """All that Spark sends to its tasks before they can say anything themselves."""
    source, sink = PubSubDataSource(SOURCE), PubSubDataSource(SINK)
    return {
        "source": source,
        "stream reader": source.streamReader(SCHEMA),
        "peek reader": source.reader(SCHEMA),
        "writer": sink.writer(SCHEMA, overwrite=False),
        "stream writer": sink.streamWriter(SCHEMA, overwrite=False),
    }


@pytest.mark.parametrize("what", travelling())
def test_it_arrives_as_it_was(what: str) -> None:
    sent = travelling()[what]
    arrived = cloudpickle.loads(cloudpickle.dumps(sent))
    assert type(arrived) is type(sent)
    assert arrived.__dict__.keys() == sent.__dict__.keys()


@pytest.mark.parametrize("what", travelling())
def test_an_executor_without_solstice_fails_with_the_command_that_installs_it(what: str) -> None:
    task = subprocess.run(
        [sys.executable, "-c", WITHOUT],
        input=cloudpickle.dumps(travelling()[what]),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert task.returncode != 0
    assert f"{sys.executable} -m pip install 'solstice-spark=={solstice.__version__}'" in task.stderr.decode()
