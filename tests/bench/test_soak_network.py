"""The soak's lost packets: neither end notices, and sent data arrives later."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from bench.soak import network
from pipelines.domain.errors import Rejected

LOSES = """
import sys, time
from bench.soak import network
from pipelines.domain.errors import Rejected
with network.lossy([int(sys.argv[1]), *range(1, 20)]):
    print(flush=True)
    time.sleep(1000)
"""
SOON_S, LATER_S = 0.3, 60.0


@pytest.fixture(autouse=True)
def can_lose_packets() -> None:
    if why := network.why_not():
        pytest.skip(f"No packets can be lost on this machine: {why}")


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
        with client, accepted:
            yield client, accepted


@pytest.mark.parametrize("end", [0, 1])
def test_data_sent_during_packet_loss_arrives_afterwards(
    ends: tuple[socket.socket, socket.socket], end: int
) -> None:
    client, accepted = ends
    with network.lossy([ends[end].getsockname()[1]]):
        client.sendall(b"a")
        accepted.settimeout(SOON_S)
        with pytest.raises(TimeoutError):
            accepted.recv(1)

    accepted.settimeout(LATER_S)
    assert accepted.recv(1) == b"a"


def test_other_ports_lose_nothing(ends: tuple[socket.socket, socket.socket]) -> None:
    client, accepted = ends
    accepted.settimeout(LATER_S)

    with network.lossy([1]):
        client.sendall(b"a")
        assert accepted.recv(1) == b"a"


def test_packet_loss_without_any_port_is_refused() -> None:
    with pytest.raises(Rejected, match="nothing is cut off"), network.lossy(set()):
        pass


def test_ports_in_use_include_both_ends_of_open_connections(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    ports = network.ports_in_use(psutil.Process(os.getpid()))

    assert {end.getsockname()[1] for end in ends} <= ports


def test_rules_of_a_killed_soak_are_removed_and_those_of_a_live_one_stay(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    client, accepted = ends
    port = str(accepted.getsockname()[1])
    words = [sys.executable, "-c", LOSES, port]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as soak:
        assert soak.stdout is not None
        soak.stdout.readline()
        assert network.why_not() == ""
        client.sendall(b"a")
        accepted.settimeout(SOON_S)
        with pytest.raises(TimeoutError):
            accepted.recv(1)
        soak.kill()

    assert network.why_not() == ""

    accepted.settimeout(LATER_S)
    assert accepted.recv(1) == b"a"
