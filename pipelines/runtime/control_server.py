"""Where slots dial in: one listener per driver, one token per attempt.

Turns connections into events of the job master's queue. Whoever cannot prove the current
attempt's token is refused before a single message of theirs is decoded, and is reported.
"""

import secrets
import socket
import threading
from collections.abc import Callable

from pipelines.channels.handshake import HandshakeRefused, verify_token
from pipelines.domain.errors import ProtocolError
from pipelines.domain.ids import Attempt
from pipelines.domain.settings import Heartbeat
from pipelines.runtime.control import SLOT_DECODER, FromSlot, Hello
from pipelines.runtime.control_link import ControlLink
from pipelines.runtime.job_events import JobEvent, SlotArrived, SlotGone, SlotSpoke, StrangerRefused
from pipelines.runtime.slot import SlotAddress

TOKEN_BYTES = 32


class ControlServer:
    def __init__(self, host: str, post: Callable[[JobEvent], None], heartbeat: Heartbeat) -> None:
        self._post = post
        self._heartbeat = heartbeat
        self._listener = socket.create_server((host, 0), backlog=256)
        self._current: SlotAddress | None = None
        threading.Thread(target=self._accept, name="control-accept", daemon=True).start()

    def open_for(self, attempt: Attempt) -> SlotAddress:
        """A fresh secret; from now on only slots of this attempt are let in."""
        host, port = self._listener.getsockname()[:2]
        token = secrets.token_hex(TOKEN_BYTES)
        self._current = SlotAddress(host, port, token, attempt, self._heartbeat)
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

    def _serve(self, connection: socket.socket) -> None:
        address = self._current
        if address is None:
            connection.close()
            return
        try:
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
