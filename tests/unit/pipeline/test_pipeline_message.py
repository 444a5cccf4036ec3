import json
from pathlib import Path

import pytest

from solstice.errors import QueueError
from solstice.pipeline import PayloadRef, QueueMessage

GOLDEN = Path(__file__).parent / "golden" / "queue_message.json"

# The format as its first writers produced it; it must go on to be read and written.
FIRST_FORMAT = {
    "message_id": "spark_stage_0",
    "split_id": "spark_p0_b0",
    "payload_key": "spark_stage_spark_p0_b0",
    "metadata": {"source_stage": "spark_stage", "num_records": 1000},
    "timestamp": 1702234567.123,
}


def message() -> QueueMessage:
    return QueueMessage(
        message_id="source_1f2e3d4c5b6a7988_0",
        split_id="source-b0-p3-s0",
        payload_key="source/1f2e3d4c5b6a7988/source-b0-p3-s0",
        metadata={
            "source_stage": "source",
            "num_records": 1000,
            "uri": "file:///data/payloads/source/1f2e3d4c5b6a7988/source-b0-p3-s0.arrow",
            "bytes": 16520,
            "schema_fingerprint": "a5f3c2e1d0b49687",
            "checksum": "crc32:5d3f2a10",
            "attempt": 1,
            "batch_id": "0",
            "partition": 3,
        },
        timestamp=1702234567.123,
    )


def test_a_message_is_written_exactly_as_the_golden_file():
    assert message().to_json() + "\n" == GOLDEN.read_text()


def test_the_golden_file_is_read_as_it_was_written():
    assert QueueMessage.from_json(GOLDEN.read_text()) == message()


def test_the_first_format_is_read_and_written_unchanged():
    text = json.dumps(FIRST_FORMAT, separators=(",", ":"))
    assert QueueMessage.from_json(text).to_json() == text


def test_a_message_says_where_its_payload_is():
    assert message().ref == PayloadRef(
        "source/1f2e3d4c5b6a7988/source-b0-p3-s0",
        "file:///data/payloads/source/1f2e3d4c5b6a7988/source-b0-p3-s0.arrow",
        16520,
        "crc32:5d3f2a10",
    )
    assert message().payload_bytes == 16520
    assert message().num_records == 1000


def test_a_source_message_has_no_payload():
    assert QueueMessage("m", "s", "", {}).ref is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"message_id": "m"}', b"\xff"])
def test_what_is_not_a_message_is_refused(text):
    with pytest.raises(QueueError, match="not a queue message"):
        QueueMessage.from_json(text)
