"""What Spark pickles for its executors, unpickled where Solstice is and where it is not."""

import pickle
import socket
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

# As tasks of Spark do, on a host without Solstice.
WITHOUT = """
import pickle, sys
sys.modules["solstice"] = None
from pyspark import cloudpickle
for pickled in pickle.load(sys.stdin.buffer):
    try:
        cloudpickle.loads(pickled)
    except ImportError as error:
        print(error)
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


def test_an_executor_without_solstice_fails_with_the_command_that_installs_it() -> None:
    sent = [cloudpickle.dumps(each) for each in travelling().values()]
    task = subprocess.run(
        [sys.executable, "-c", WITHOUT], input=pickle.dumps(sent), capture_output=True, timeout=60, check=True
    )
    said = task.stdout.decode().splitlines()
    assert len(said) == len(sent)
    for line in said:
        assert f"on {socket.gethostname()}" in line
        assert line.endswith(f"{sys.executable} -m pip install 'solstice-spark=={solstice.__version__}'")
