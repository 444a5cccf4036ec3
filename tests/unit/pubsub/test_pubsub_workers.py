"""Workers that come from other hosts: by TCP, with the token; and strangers, who get nothing and hold nobody up."""

import contextlib
import os
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import replace

import psutil
import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from pubsub_agents import START, agent_process, cut, read, reading, send, serving
from solstice import _native
from solstice.errors import ConfigError, PartUnavailableError
from solstice.pubsub._cluster import Driver
from solstice.pubsub._reader import PubSubStreamReader
from solstice.testing import PubSubEmulator


@pytest.fixture
def emulator() -> Iterator[PubSubEmulator]:
    with serving() as emulator:
        yield emulator


def listening(reader: PubSubStreamReader) -> list[tuple[str, int]]:
    connections = agent_process(reader).net_connections(kind="tcp")
    return [(c.laddr.ip, c.laddr.port) for c in connections if c.status == psutil.CONN_LISTEN]


def test_local_mode_opens_no_tcp_port(emulator) -> None:
    with reading(emulator) as reader:
        reader.latestOffset(START, ReadMaxRows(10))
        assert listening(reader) == []


def test_a_cluster_has_the_agent_listen_where_the_driver_does(emulator) -> None:
    with reading(emulator) as reader:
        reader._cluster = Driver(is_local=False, cores=2, address="127.0.0.3")
        reader.latestOffset(START, ReadMaxRows(10))
        assert listening(reader) == [("127.0.0.3", reader._agent.port)]


def test_a_worker_that_does_not_see_the_socket_reads_over_tcp(emulator) -> None:
    with reading(emulator, agentHost="127.0.0.2") as reader:
        sent = send(emulator, 0, 20_000)
        _, partitions = cut(reader, START, 20_000)
        assert listening(reader) == [("127.0.0.2", partitions[0].port)]
        os.unlink(partitions[0].socket)
        assert set(read(reader, partitions)) == sent
        with pytest.raises(PartUnavailableError, match="token"):
            read(reader, [replace(partitions[0], token="guess")])


def test_an_agent_out_of_reach_is_named_with_the_options_that_help(emulator) -> None:
    with reading(emulator, agentHost="127.0.0.2") as reader:
        send(emulator, 0, 10)
        _, [partition] = cut(reader, START, 10)
        with socket.create_server(("127.0.0.1", 0)) as server:
            closed = server.getsockname()[1]
        elsewhere = replace(partition, socket="/nowhere/agent.sock", host="127.0.0.1", port=closed)
        with pytest.raises(PartUnavailableError, match=rf"127\.0\.0\.1:{closed}.*agentHost.*agentPort"):
            read(reader, [elsewhere])
        with pytest.raises(PartUnavailableError, match=r"/nowhere/agent\.sock.*agentHost"):
            read(reader, [replace(elsewhere, port=None)])


def test_an_address_or_port_that_cannot_be_had_is_named(emulator) -> None:
    with (
        reading(emulator, agentHost="192.0.2.1") as reader,
        pytest.raises(ConfigError, match=r"192\.0\.2\.1.*agentHost"),
    ):
        reader.latestOffset(START, ReadMaxRows(10))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with (
            reading(emulator, agentHost="127.0.0.1", agentPort=port) as reader,
            pytest.raises(ConfigError, match=f"127.0.0.1:{port}.*agentPort"),
        ):
            reader.latestOffset(START, ReadMaxRows(10))


def test_strangers_get_nothing_are_sent_away_and_hold_nobody_up(emulator) -> None:
    with reading(emulator, agentHost="127.0.0.1") as reader:
        sent = send(emulator, 0, 100)
        _, [partition] = cut(reader, START, 100)
        memory = agent_process(reader).memory_info().rss
        silent = [socket.create_connection(("127.0.0.1", partition.port)) for _ in range(100)]
        huge = [socket.create_connection(("127.0.0.1", partition.port)) for _ in range(50)]
        for stranger in huge:
            stranger.sendall(struct.pack(">I", 15 << 20) + b"{")
        slow = socket.create_connection(("127.0.0.1", partition.port))
        slow.sendall(b"\0")
        os.unlink(partition.socket)
        began = time.monotonic()
        assert set(read(reader, [partition])) == sent
        assert time.monotonic() - began < 4.5  # sooner than the strangers are sent away
        assert agent_process(reader).memory_info().rss - memory < 50 << 20
        assert agent_process(reader).num_threads() < 40
        for stranger in (*huge, *silent, slow):
            stranger.settimeout(10)
            with contextlib.suppress(ConnectionResetError):
                assert stranger.recv(100) == b""
            stranger.close()


def test_parts_are_as_many_as_the_cores_of_the_executors_that_read(emulator) -> None:
    with reading(emulator) as reader:
        reader._cluster = Driver(is_local=False, cores=1, address="127.0.0.1")
        send(emulator, 0, 20_000)
        end, [partition] = cut(reader, START, 20_000)
        for executor in (("0", 2), ("1", 1), ("0", 2)):
            _native.read_part(
                partition.socket,
                None,
                token=partition.token,
                epoch=partition.epoch,
                seq=partition.seq,
                index=0,
                rows=partition.rows,
                executor=executor,
            )
        send(emulator, 20_000, 20_000)
        _, partitions = cut(reader, end, 40_000)
        assert len(partitions) == 3
        assert reader.reportLatestOffset()["executor_cores"] == 3


def test_a_number_of_partitions_that_is_given_stays(emulator) -> None:
    with reading(emulator, numPartitions="2") as reader:
        reader._cluster = Driver(is_local=False, cores=7, address="127.0.0.1")
        send(emulator, 0, 20_000)
        _, partitions = cut(reader, START, 20_000)
        assert len(partitions) == 2
