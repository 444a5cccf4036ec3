"""The folders of agents: private, found while their agent lives, swept away when it does not."""

import errno
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from pubsub_agents import START, SUBSCRIPTION, agent_process, cut, own_agents, read, reading, send, serving
from solstice.errors import MachineError
from solstice.pubsub._registry import AgentEntry, AgentFolder, living_agents
from solstice.testing import PubSubEmulator
from waiting import wait_until


@pytest.fixture
def emulator() -> Iterator[PubSubEmulator]:
    with serving() as emulator:
        yield emulator


@pytest.fixture(autouse=True)
def root() -> Iterator[Path]:
    """Where the test's own registry is."""
    with own_agents() as folder:
        yield folder / f"solstice-{os.getuid()}"


def test_an_agent_is_found_while_it_lives_in_a_folder_that_nobody_else_can_enter(emulator, root) -> None:
    assert living_agents() == []
    with reading(emulator) as reader:
        reader.latestOffset(START, ReadMaxRows(10))
        [agent] = living_agents()
        assert (agent.pid, agent.subscription) == (agent_process(reader).pid, SUBSCRIPTION)
        assert agent.token not in repr(agent)
        for path in (root, *root.rglob("*")):
            assert path.stat().st_mode & 0o077 == 0 or path.is_socket()
    assert living_agents() == []
    assert list(root.iterdir()) == []


def test_what_a_killed_agent_leaves_behind_is_swept_away_at_the_next_start(emulator, root) -> None:
    with reading(emulator) as reader:
        reader.latestOffset(START, ReadMaxRows(10))
        agent = agent_process(reader)
        left = next(root.iterdir())
        kept = reader._agent
        reader._agent = None  # the planner is killed as well: nobody cleans up
        os.kill(agent.pid, signal.SIGKILL)
        wait_until(lambda: agent.status() == psutil.STATUS_ZOMBIE)
    wait_until(lambda: living_agents() == [])  # its last thread may end after its first
    assert left.exists()
    with reading(emulator) as reader:
        reader.latestOffset(START, ReadMaxRows(10))
        [alive] = living_agents()
        assert list(root.iterdir()) == [Path(alive.socket).parent]
    kept.close()


def test_an_agent_that_lives_is_not_swept_away(emulator, root) -> None:
    with reading(emulator) as first, reading(emulator) as second:
        first.latestOffset(START, ReadMaxRows(10))
        second.latestOffset(START, ReadMaxRows(10))
        assert [agent.pid for agent in living_agents()] == [agent_process(first).pid, agent_process(second).pid]
        assert first.reportLatestOffset()["received"] == 0


def test_an_agent_that_cannot_be_announced_serves_its_query_all_the_same(emulator, monkeypatch, caplog) -> None:
    def full_disk(entry: AgentEntry) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(AgentEntry, "write", full_disk)
    with reading(emulator) as reader:
        sent = send(emulator, 0, 10)
        _, partitions = cut(reader, START, 10)
        assert set(read(reader, partitions)) == sent
    [warning] = [record.getMessage() for record in caplog.records if "status does not see" in record.getMessage()]
    assert "no space" in warning


def test_an_agent_whose_process_does_not_start_leaves_no_folder_and_no_lock(emulator, root, monkeypatch) -> None:
    def no_memory(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, "no memory")

    with reading(emulator) as reader:
        monkeypatch.setattr(subprocess, "Popen", no_memory)
        before = psutil.Process().num_fds()
        with pytest.raises(OSError, match="no memory"):
            reader.latestOffset(START, ReadMaxRows(10))
        assert psutil.Process().num_fds() == before
    assert list(root.iterdir()) == []


def test_a_pid_that_is_somebody_elses_by_now_does_not_keep_a_folder(root) -> None:
    folder = AgentFolder()
    (folder.path / "agent.json").write_text(json.dumps({"pid": os.getpid()}))
    folder.hand_over()
    AgentFolder().remove()
    assert not folder.path.exists()


def test_a_registry_that_others_could_be_in_is_refused(root) -> None:
    root.mkdir(mode=0o755)
    with pytest.raises(MachineError, match="only this user"):
        AgentFolder()
    root.rmdir()
    root.symlink_to("/tmp")
    with pytest.raises(MachineError, match="TMPDIR"):
        AgentFolder()
    root.unlink()


def test_a_temporary_folder_with_a_long_path_leaves_room_for_the_socket(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("long" * 30)))
    folder = AgentFolder()
    try:
        assert len(folder.socket) < 100
    finally:
        folder.hand_over()
        folder.remove()
