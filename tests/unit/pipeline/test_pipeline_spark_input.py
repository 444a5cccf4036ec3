"""How a resumed batch notices that its input has changed."""

import os
from urllib.parse import quote

import pytest

from solstice.pipeline._spark_source import input_version


@pytest.mark.parametrize("name", ["plain", "a b", "ä%20#?c", "date=2024-01-01 00%3A00"])
@pytest.mark.parametrize("prefix", ["file://", "file:"])
def test_a_changed_file_has_another_version_whatever_its_name(tmp_path, name, prefix):
    path = tmp_path / name
    path.write_text("rows")
    url = f"{prefix}{quote(str(path))}"
    before = input_version(url)
    assert input_version(url) == before
    os.utime(path, (1, 1))
    changed = input_version(url)
    path.unlink()
    assert len({before, changed, input_version(url)}) == 3


def test_a_file_elsewhere_is_known_by_its_name_alone():
    assert input_version("s3a://bucket/a%20b") == ""
