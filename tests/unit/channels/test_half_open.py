"""A connection whose peer has vanished from the network ends in bounded time."""

import queue
import secrets
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from pipelines.channels.channel import NetworkLimits, PeerAddress
from pipelines.channels.connection import DataServer
from pipelines.channels.guarded_port import LEAST_UNANSWERED_MS, Credentials, dial, tune
from pipelines.domain.ids import Attempt
from pipelines.domain.settings import Heartbeat
from pipelines.runtime.control import prepare

if TYPE_CHECKING:
    from pipelines.channels.handshake import Connection

TOKEN = secrets.token_hex(16)
WITHIN_S = 60.0  # the kernel itself would take a quarter of an hour or more
PROGRAM = """
import ctypes, fcntl, os, socket, struct, sys, time
from pipelines.channels import guarded_port

def loopback(flags):
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh22x", b"lo", flags))  # SIOCSIFFLAGS

if ctypes.CDLL(None).unshare(0x40000000):  # CLONE_NEWNET: a network of our own
    sys.exit(77)
loopback(1)  # IFF_UP
listener = socket.create_server(("127.0.0.1", 0))
near = socket.create_connection(listener.getsockname())
far, _ = listener.accept()
guarded_port.tune(near, unanswered_ms=1_000)
loopback(0)
began = time.monotonic()
try:
    if sys.argv[1] == "sending":
        near.sendall(b"x")
    near.recv(1)
except OSError as error:
    print(time.monotonic() - began, type(error).__name__)
"""


def test_both_ends_of_a_data_connection_are_watched_for_the_given_time() -> None:
    limits = NetworkLimits(unanswered_ms=5_000)
    ends: queue.Queue[Connection] = queue.Queue()
    server = DataServer(
        Credentials(1, Attempt(1), TOKEN),
        "127.0.0.1",
        limits,
        None,
        serve=lambda connection, claim: ends.put(connection),
        on_refused=lambda refused: None,
        on_broken=lambda problem: None,
    )
    try:
        peer = PeerAddress(1, "127.0.0.1", server.port)
        ends.put(dial(peer, Credentials(0, Attempt(1), TOKEN), limits))
        for end in (ends.get(timeout=WITHIN_S), ends.get(timeout=WITHIN_S)):
            assert isinstance(end, socket.socket)
            assert_watched(end, unanswered_ms=5_000)
            end.close()
    finally:
        server.close()


def test_a_control_connection_is_watched_for_the_heartbeat_timeout() -> None:
    with socket.socket() as connection:
        prepare(connection, Heartbeat(interval_ms=100, timeout_ms=3_000))

        assert_watched(connection, unanswered_ms=3_000)


def test_a_connection_is_never_given_up_before_the_minimum_time() -> None:
    with socket.socket() as connection:
        tune(connection, unanswered_ms=100)

        assert_watched(connection, unanswered_ms=LEAST_UNANSWERED_MS)


def assert_watched(connection: socket.socket, unanswered_ms: int) -> None:
    tcp = socket.IPPROTO_TCP
    assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert connection.getsockopt(tcp, socket.TCP_USER_TIMEOUT) == unanswered_ms
    assert connection.getsockopt(tcp, socket.TCP_KEEPIDLE) * 1_000 <= unanswered_ms
    assert connection.getsockopt(tcp, socket.TCP_KEEPINTVL) * 1_000 <= unanswered_ms


@pytest.mark.slow
@pytest.mark.parametrize("while_", ["sending", "idle"])
def test_a_half_open_connection_is_noticed_in_bounded_time(while_: str) -> None:
    try:
        ran = subprocess.run(
            [sys.executable, "-c", PROGRAM, while_],
            capture_output=True,
            text=True,
            timeout=WITHIN_S + 20,
        )
    except subprocess.TimeoutExpired:
        pytest.fail("the connection stayed open")
    if ran.returncode == 77:
        pytest.skip("this user may not have a network of its own")

    took_s, error = ran.stdout.split()
    assert float(took_s) < WITHIN_S
    assert error == "TimeoutError"
