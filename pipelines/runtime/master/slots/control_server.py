"""Lets slots dial in: one listener per driver, one token per attempt.

Turns connections into events of the job master's queue. It refuses and reports a peer that cannot
prove the current attempt's token, before it decodes a single message of that peer. It also refuses
a second connection of the same slot.
"""

import contextlib
import logging
import secrets
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from pipelines.channels.channel import NetworkLimits
from pipelines.channels.guarded_port import Guard, GuardedPort, OncePerSlot, RefusedConnection
from pipelines.channels.handshake import Claim, Connection, Refusal, Tls, verify_token
from pipelines.domain.errors import InvariantViolated, ProtocolError, Retryable
from pipelines.domain.ids import Attempt
from pipelines.domain.run import DriverNetworking
from pipelines.domain.settings import Heartbeat
from pipelines.runtime.control import (
    SLOT_DECODER,
    Beat,
    ControlLink,
    FromSlot,
    Hello,
    Pulse,
    prepare,
)
from pipelines.runtime.master.job_events import (
    JobEvent,
    SlotArrived,
    SlotGone,
    SlotSpoke,
    StrangerRefused,
    WorkFailed,
)
from pipelines.runtime.master.signs_of_life import ControlLoop
from pipelines.runtime.networking import SlotAddress, listen, load_tls

log = logging.getLogger(__name__)

TOKEN_BYTES = 32
STRANGERS_MAX = 64
"""The limit of unproven connections, on top of an attempt's slots, which may all dial at once. Each
takes a file and a thread of the driver, so the limit is far below the usual 1,024 files."""


@dataclass(frozen=True, slots=True)
class _Opening:
    """The address and the admission of one attempt."""

    address: SlotAddress
    admit: OncePerSlot = field(default_factory=OncePerSlot)


class ControlDoor(Protocol):
    """Lets slots in, and posts their messages to the master."""

    def open_for(self, attempt: Attempt) -> SlotAddress:
        """Lets in only slots of this attempt from now on. Raises CertificateRefused."""
        ...

    def close(self) -> None: ...


class ControlServer:
    """Implements `ControlDoor`.

    Guarantee: `post` gets messages only from slots that have the attempt's token and, with TLS,
    a certificate of the same authority; each slot of an attempt has one connection. No slot gets in
    before the first attempt.

    A separate thread also sends heartbeats to all slots as long as the control loop makes progress,
    so a loop that waits for its disk does not end them.
    """

    def __init__(
        self,
        *,
        networking: DriverNetworking,
        tls: Tls | None,
        post: Callable[[JobEvent], None],
        heartbeat: Heartbeat,
        slot_count: int,
        loop: ControlLoop,
        now_ms: Callable[[], float],  # monotonic
    ) -> None:
        self._networking = networking
        self._post = post
        self._heartbeat = heartbeat
        self._loop = loop
        self._now_ms = now_ms
        self._current: _Opening | None = None
        self._links: dict[int, ControlLink[FromSlot]] = {}  # by their identity
        self._pulse = Pulse(heartbeat, self._beat)
        guard = Guard(self._prepare, self._verify, self._serve, self._refused, self._broken)
        limits = NetworkLimits(max_pending_handshakes=slot_count + STRANGERS_MAX)
        self._port = GuardedPort(listen(networking), "control port", limits, tls, guard)

    def open_for(self, attempt: Attempt) -> SlotAddress:
        """Makes a fresh secret, and lets in only slots of this attempt from now on.

        Reads the certificate again, as slots do: it may have expired or been replaced.
        """
        if (tls := load_tls(self._networking.slots)) is not None:
            tls.check()
            self._port.secure_with(tls)
        networking, token = self._networking, secrets.token_hex(TOKEN_BYTES)
        address = SlotAddress(
            networking.host, self._port.port, token, attempt, self._heartbeat, networking.slots
        )
        if self._current is None:
            self._pulse.start()
        self._current = _Opening(address)
        self._port.start()
        return address

    def close(self) -> None:
        self._pulse.close()
        self._port.close()

    def _beat(self) -> None:
        if not self._loop.gets_on():
            return
        for link in list(self._links.values()):
            with contextlib.suppress(OSError):  # its reader notices
                link.send(Beat())

    def _prepare(self, accepted: socket.socket) -> None:
        prepare(accepted, self._heartbeat)

    def _verify(self, connection: Connection) -> Claim:
        opening = self._current
        if opening is None:
            raise InvariantViolated("the control port is opened for an attempt")
        token, attempt = opening.address.token, opening.address.attempt
        return verify_token(connection, token, attempt=attempt, admit=opening.admit)

    def _refused(self, refused: RefusedConnection) -> None:
        what = f"a control connection from {refused.address}: {refused.refusal}"
        if refused.refusal is Refusal.DUPLICATE:  # it has the token, so it is no stranger
            log.warning("Refused: %s.", what)
            return
        self._post(StrangerRefused(refused.attempt, what))

    def _broken(self, problem: str) -> None:
        """Ends the driver: its listener is dead, so no slot can connect any more. The next driver
        gets another port."""
        self._post(WorkFailed(Retryable(f"No slot can connect any more: {problem}.")))

    def _serve(self, connection: Connection, claim: Claim) -> None:
        """Reads one connection to its end; the token has proved the slot's attempt and number."""
        link = ControlLink(connection, SLOT_DECODER, self._now_ms)
        self._links[id(link)] = link
        try:
            problem = self._heard_out(claim, link)
        except ProtocolError as error:
            problem = str(error)
        finally:
            del self._links[id(link)]
        self._post(SlotGone(claim.attempt, claim.slot, problem))

    def _heard_out(self, claim: Claim, link: ControlLink[FromSlot]) -> str:
        """Passes on what the slot says; returns why that ended. Raises ProtocolError."""
        hello = link.receive()
        if not isinstance(hello, Hello) or hello.slot != claim.slot:
            link.close()
            return "it did not say who it is"
        self._post(SlotArrived(claim.attempt, hello, link))
        while (message := link.receive()) is not None:
            self._post(SlotSpoke(claim.attempt, claim.slot, message))
        return "its connection to the driver broke"
