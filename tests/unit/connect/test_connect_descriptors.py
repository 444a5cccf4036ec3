import dataclasses
import os
import subprocess
import sys

import pytest

from solstice.connect import _descriptors
from solstice.connect._descriptors import find_pyspark, load_descriptors, read_descriptors
from solstice.connect._protocol import Protocol
from solstice.errors import ConfigError, MissingExtraError


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "solstice"


def only_file(folder):
    [file] = folder.iterdir()
    return file


def test_the_installed_pyspark_is_found_with_its_version():
    import importlib.metadata

    assert find_pyspark().version == importlib.metadata.version("pyspark")


def test_a_missing_pyspark_names_the_extra(monkeypatch):
    monkeypatch.setattr(_descriptors.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"solstice-spark\[spark\]"):
        find_pyspark()


def test_a_pyspark_without_the_protocol_is_refused(tmp_path):
    pyspark = dataclasses.replace(find_pyspark(), home=tmp_path)
    with pytest.raises(ConfigError, match="does not have the Spark Connect protocol"):
        read_descriptors(pyspark)


def test_the_cache_is_used_and_has_the_version_in_its_name(cache, monkeypatch):
    pyspark = find_pyspark()
    made = load_descriptors(pyspark)
    assert pyspark.version in only_file(cache).name
    monkeypatch.setattr(_descriptors, "read_descriptors", lambda pyspark: pytest.fail("the cache was not used"))
    assert load_descriptors(pyspark) == made


@pytest.mark.parametrize(
    "spoil",
    [lambda content: content[:-10], lambda content: b"", lambda content: content[:-1] + b"\x00", lambda _: b"x"],
)
def test_a_broken_cache_is_made_anew(cache, spoil):
    pyspark = find_pyspark()
    made = load_descriptors(pyspark)
    file = only_file(cache)
    content = file.read_bytes()
    file.write_bytes(spoil(content))
    assert load_descriptors(pyspark) == made
    assert only_file(cache).read_bytes() == content


def test_a_cache_that_cannot_be_written_does_no_harm(tmp_path, monkeypatch):
    blocker = tmp_path / "file"
    blocker.touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocker))
    assert load_descriptors(find_pyspark())


def test_a_changed_pyspark_of_the_same_version_gets_a_cache_of_its_own(cache, tmp_path):
    proto = tmp_path / "pyspark" / "sql" / "connect" / "proto"
    proto.mkdir(parents=True)
    for file in find_pyspark().proto_files:
        (proto / file.name).write_bytes(file.read_bytes())
    pyspark = dataclasses.replace(find_pyspark(), home=tmp_path / "pyspark")
    load_descriptors(pyspark)
    os.utime(proto / "base_pb2.py", ns=(1, 1))
    load_descriptors(pyspark)
    assert len(list(cache.iterdir())) == 2


def test_the_protocol_has_its_messages_and_methods(cache):
    protocol = Protocol(load_descriptors(find_pyspark()))
    assert protocol.methods["ExecutePlan"].streams_responses
    assert not protocol.methods["AnalyzePlan"].streams_responses
    assert protocol.Relation(limit={"limit": 3}).limit.limit == 3
    with pytest.raises(AttributeError, match="NoSuchMessage"):
        _ = protocol.NoSuchMessage


USE_OURS = """
from solstice.connect._protocol import load_protocol
ours = load_protocol().Plan(root={"sql": {"query": "select 1"}})
"""
# The package's own __init__ is left out: it refuses to load without packages that the protocol does not need.
USE_PYSPARK = """
import sys, types
import pyspark.sql
package = types.ModuleType("pyspark.sql.connect")
package.__path__ = [pyspark.sql.__path__[0] + "/connect"]
sys.modules[package.__name__] = package
from pyspark.sql.connect.proto import base_pb2
theirs = base_pb2.Plan()
theirs.root.sql.query = "select 1"
"""
COMPARE = "print(ours.SerializeToString() == theirs.SerializeToString(), type(ours) is type(theirs))"


@pytest.mark.parametrize(
    "parts", [(USE_OURS, USE_PYSPARK), (USE_PYSPARK, USE_OURS)], ids=["ours first", "pyspark first"]
)
def test_both_sets_of_types_live_in_one_process_in_either_order(parts):
    script = "".join([*parts, COMPARE])
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert result.stdout.strip() == "True False", result.stderr


def test_a_user_without_a_home_goes_without_the_cache(monkeypatch):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(_descriptors.Path, "home", no_home)
    assert load_descriptors(find_pyspark())


def test_a_cache_that_cannot_be_completed_leaves_no_file(cache, monkeypatch):
    def full(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(_descriptors.os, "replace", full)
    assert load_descriptors(find_pyspark())
    assert list(cache.iterdir()) == []
