"""The servers that tests start and stop."""

import socket
from pathlib import Path

import pytest

from ftdash.embedded.installation import LOOPBACK
from tests.brokers.redis_broker import redis_broker


def test_a_server_that_is_down_keeps_its_port_and_starts_again(tmp_path: Path) -> None:
    with redis_broker(tmp_path) as broker, socket.socket() as other:
        broker.server.kill()

        with pytest.raises(OSError, match="in use"):
            other.bind((LOOPBACK, broker.address.port))

        broker.server.start()
        assert broker.client().ping()
