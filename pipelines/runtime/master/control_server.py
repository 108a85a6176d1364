"""Where slots dial in: one listener per driver, one token per attempt.

Turns connections into events of the job master's queue. Whoever cannot prove the current
attempt's token is refused before a single message of theirs is decoded, and is reported.
"""

import secrets
import socket
import threading
from collections.abc import Callable

from pipelines.channels.connection import Connection
from pipelines.channels.handshake import HANDSHAKE_TIMEOUT_MS, HandshakeRefused, verify_token
from pipelines.channels.tls import Tls
from pipelines.domain.errors import ProtocolError
from pipelines.domain.ids import Attempt
from pipelines.domain.network import DriverNetworking
from pipelines.domain.settings import Heartbeat
from pipelines.runtime.control import SLOT_DECODER, FromSlot, Hello
from pipelines.runtime.control_link import ControlLink, prepare
from pipelines.runtime.master.job_events import (
    JobEvent,
    SlotArrived,
    SlotGone,
    SlotSpoke,
    StrangerRefused,
)
from pipelines.runtime.networking import listen
from pipelines.runtime.slot_address import SlotAddress

TOKEN_BYTES = 32


class ControlServer:
    """Guarantee: `post` is given messages of slots only that have the attempt's token and, with
    TLS, a certificate of the same authority."""

    def __init__(
        self,
        networking: DriverNetworking,
        tls: Tls | None,
        post: Callable[[JobEvent], None],
        heartbeat: Heartbeat,
    ) -> None:
        self._networking = networking
        self._tls = tls
        self._post = post
        self._heartbeat = heartbeat
        self._listener = listen(networking)
        self._current: SlotAddress | None = None
        threading.Thread(target=self._accept, name="control-accept", daemon=True).start()

    def open_for(self, attempt: Attempt) -> SlotAddress:
        """A fresh secret; from now on only slots of this attempt are let in."""
        port = self._listener.getsockname()[1]
        token = secrets.token_hex(TOKEN_BYTES)
        networking = self._networking
        self._current = SlotAddress(
            networking.host, port, token, attempt, self._heartbeat, networking.slots
        )
        return self._current

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # closed
            threading.Thread(
                target=self._serve, args=(connection,), name="control", daemon=True
            ).start()

    def _serve(self, accepted: socket.socket) -> None:
        address = self._current
        if address is None:
            accepted.close()
            return
        connection: Connection = accepted
        try:
            prepare(accepted, self._heartbeat)
            if self._tls is not None:
                connection = self._tls.accept(accepted, HANDSHAKE_TIMEOUT_MS)
            verify_token(connection, address.token, attempt=address.attempt)
        except HandshakeRefused as refused:
            connection.close()
            self._post(StrangerRefused(refused.attempt, str(refused)))
            return
        connection.settimeout(None)
        self._read(address.attempt, ControlLink(connection, SLOT_DECODER))

    def _read(self, attempt: Attempt, link: ControlLink[FromSlot]) -> None:
        hello = link.receive()
        if not isinstance(hello, Hello):
            link.close()
            return
        self._post(SlotArrived(attempt, hello, link))
        problem = "its control connection ended"
        try:
            while (message := link.receive()) is not None:
                self._post(SlotSpoke(attempt, hello.slot, message))
        except ProtocolError as error:
            problem = str(error)
        self._post(SlotGone(attempt, hello.slot, problem))
