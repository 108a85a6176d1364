"""Free ports."""

import socket

from ftdash.embedded.installation import LOOPBACK, free_port, free_port_near, is_free


def test_a_free_port_is_kept_and_a_taken_one_is_replaced() -> None:
    preferred = free_port()

    assert free_port_near(preferred) == preferred
    assert free_port_near(0) > 0
    with socket.create_server((LOOPBACK, preferred)):
        assert not is_free(preferred)
        assert free_port_near(preferred) != preferred
