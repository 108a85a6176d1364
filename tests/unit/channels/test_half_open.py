"""A connection whose peer has vanished from the network ends by itself in bounded time."""

import subprocess
import sys

import pytest

WITHIN_S = 6.0
PROGRAM = """
import ctypes, fcntl, os, socket, struct, sys, time
from pipelines.channels import dialing

def loopback(flags):
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh22x", b"lo", flags))  # SIOCSIFFLAGS

if ctypes.CDLL(None).unshare(0x40000000):  # CLONE_NEWNET: a network of our own
    sys.exit(77)
loopback(1)  # IFF_UP
dialing.KEEPALIVE_IDLE_S = dialing.KEEPALIVE_INTERVAL_S = dialing.KEEPALIVE_TRIES = 1
dialing.UNANSWERED_MS = 1_000
listener = socket.create_server(("127.0.0.1", 0))
near = socket.create_connection(listener.getsockname())
far, _ = listener.accept()
dialing.tune(near)
loopback(0)
began = time.monotonic()
try:
    if sys.argv[1] == "sending":
        near.sendall(b"x")
    near.recv(1)
except OSError as error:
    print(time.monotonic() - began, type(error).__name__)
"""


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
