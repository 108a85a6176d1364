"""The network of a slot when things go wrong: strangers, torn connections, killed peers."""

import contextlib
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import psutil
import pyarrow as pa
import pytest

from pipelines.channels.channel import ChannelClosed, NetworkLimits, PeerAddress
from pipelines.channels.connection import _send_all
from pipelines.channels.gate import Gate
from pipelines.channels.guarded_port import audience_of
from pipelines.channels.handshake import Refusal, prove_token, verify_token
from pipelines.channels.slot_network import SlotNetwork
from pipelines.channels.wire import GRANT, HEADER, Kind, bytes_frame, frame, grant_frame
from pipelines.domain.elements import EndOfInput, Records, Watermark
from pipelines.domain.errors import ProtocolError, Rejected, Retryable
from pipelines.domain.ids import Attempt, ChannelId
from tests.polling import wait_until

if TYPE_CHECKING:
    from pipelines.channels.guarded_port import RefusedConnection

DEADLINE_S = 20.0
A = ChannelId("a[0]>c.0[0]")
TOKEN = secrets.token_hex(16)
LIMITS = NetworkLimits(handshake_timeout_ms=20_000, max_pending_handshakes=2)
PATIENT = NetworkLimits(handshake_timeout_ms=20_000, close_timeout_ms=20_000)


@pytest.mark.parametrize(
    ("token", "attempt", "refusal"),
    [
        ("f" * 32, 2, Refusal.WRONG_TOKEN),
        (TOKEN, 1, Refusal.OLDER_ATTEMPT),
        (TOKEN, 3, Refusal.NEWER_ATTEMPT),
    ],
    ids=["wrong token", "older attempt", "newer attempt"],
)
def test_a_slot_of_another_attempt_is_refused_counted_and_reported(
    slots: "Slots", token: str, attempt: int, refusal: Refusal
) -> None:
    ours, stranger = slots.start(0), slots.start(1, token=token, attempt=attempt)

    with pytest.raises(ProtocolError, match=str(refusal)):
        stranger.connect([slots.address(0)])
    wait_until(lambda: len(slots.refused) == 1)

    assert slots.refused[0].refusal is refusal
    assert ours.statistics().refused_connections == 1
    assert slots.failures == [], "who was never let in cannot fail us"


def test_a_slot_may_bind_another_address_than_it_announces() -> None:
    network = SlotNetwork(
        0,
        Attempt(1),
        TOKEN,
        on_failure=lambda _: None,
        host="slot-0.behind.a.gateway.example",
        bind_host="127.0.0.1",
    )
    try:
        host, port = network.address
        socket.create_connection(("127.0.0.1", port), 5).close()
    finally:
        network.close()

    assert host == "slot-0.behind.a.gateway.example"


def test_a_slot_connects_only_once_per_attempt(slots: "Slots") -> None:
    slots.start(0)
    slots.dial_as_peer(1)

    with pytest.raises(ProtocolError, match="its slot has connected before"):
        slots.dial_as_peer(1)


def test_the_number_of_silent_callers_is_bounded(slots: "Slots") -> None:
    network = slots.start(0)
    silent = [socket.create_connection(network.address) for _ in range(3)]

    wait_until(lambda: len(slots.refused) == 1)

    assert slots.refused[0].refusal is Refusal.TOO_MANY
    for connection in silent:
        connection.close()
    wait_until(lambda: len(slots.refused) == 3)
    assert [r.refusal for r in slots.refused[1:]] == [Refusal.MALFORMED] * 2
    wait_until(lambda: is_let_in(slots))


def test_a_silent_caller_is_refused_after_the_timeout(slots: "Slots") -> None:
    network = slots.start(0, limits=NetworkLimits(handshake_timeout_ms=200))
    with socket.create_connection(network.address) as silent:
        silent.settimeout(DEADLINE_S)
        while silent.recv(1 << 10):  # the challenge, then the end
            pass

    wait_until(lambda: len(slots.refused) == 1)
    assert slots.refused[0].refusal is Refusal.MALFORMED


def test_an_unreachable_peer_is_named(slots: "Slots") -> None:
    network = slots.start(0)
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]

    with pytest.raises(Retryable, match=f"slot 1 at 127.0.0.1:{port} cannot be reached"):
        network.connect([PeerAddress(1, "127.0.0.1", port)])


def test_a_connection_may_close_after_the_end_of_all_input(slots: "Slots") -> None:
    gate = slots.gate_in(slots.start(0))
    peer = slots.dial_as_peer(1)
    open_channel(peer)

    peer.sendall(frame(Kind.END, 0))
    peer.close()

    wait_until(lambda: gate.poll() == (A, EndOfInput()))
    wait_until(lambda: slots.networks[0].statistics().open_connections == 0)
    assert slots.failures == []


def test_a_connection_lost_before_the_end_of_input_is_a_failure_not_an_end(slots: "Slots") -> None:
    gate = slots.gate_in(slots.start(0))
    peer = slots.dial_as_peer(1)
    open_channel(peer)

    peer.close()
    wait_until(lambda: len(slots.failures) == 1)

    assert slots.failures[0].startswith("the connection with slot 1 is lost: ")
    assert A in slots.failures[0]
    assert gate.poll() is None


@pytest.mark.parametrize(
    ("said", "claim"),
    [
        (HEADER.pack(Kind.RECORDS, 0, 1 << 20) + bytes(1000), "ended after 1000 of the 1048576"),
        (HEADER.pack(Kind.RECORDS, 0, 1 << 31), "a RECORDS frame of 2147483648 bytes"),
        (b"\xee" * HEADER.size, "a frame of unknown kind 238"),
        (frame(Kind.END, 9), "channel number 9, never opened"),
        (frame(Kind.OPEN, 0, A.encode()), "channel number 0 was opened twice"),
        (frame(Kind.OPEN, 1, A.encode()), "already has a writer"),
        (
            frame(Kind.OPEN, 1, b"x") + frame(Kind.OPEN, 2, b"x"),
            "channel x has two writers",
        ),
        (frame(Kind.OPEN, 1, b"x") + frame(Kind.END, 1), "sends before it is granted credit"),
        (frame(Kind.RECORDS, 0, bytes(8)), "records came before their schema"),
        (bytes_frame(Kind.CREDIT, 0, 1), "a CREDIT frame came the wrong way"),
    ],
)
def test_a_peer_that_breaks_the_rules_is_cut_off_and_reported(
    slots: "Slots", said: bytes, claim: str
) -> None:
    slots.gate_in(slots.start(0))
    peer = slots.dial_as_peer(1)
    open_channel(peer)

    peer.sendall(said)
    peer.shutdown(socket.SHUT_WR)
    wait_until(lambda: len(slots.failures) == 1)

    assert claim in slots.failures[0]
    peer.settimeout(DEADLINE_S)
    with contextlib.suppress(ConnectionResetError):
        assert peer.recv(1) == b"", "the connection is closed"


def test_a_peer_that_overruns_its_credit_is_cut_off(slots: "Slots") -> None:
    slots.gate_in(slots.start(0), capacity_bytes=1)
    peer = slots.dial_as_peer(1)
    open_channel(peer)
    batch = pa.record_batch({"n": [1]})
    records = frame(Kind.RECORDS, 0, batch.serialize().to_pybytes())

    peer.sendall(frame(Kind.SCHEMA, 0, batch.schema.serialize().to_pybytes()) + records)
    peer.sendall(records)
    wait_until(lambda: len(slots.failures) == 1)

    assert "the writer has overrun its credit" in slots.failures[0]


@pytest.mark.parametrize(
    ("said", "claim"),
    [
        (bytes_frame(Kind.CREDIT, 0, 1), "an illegal CREDIT frame"),
        (grant_frame(0, 5, 5) * 2, "an illegal GRANT frame"),
        (grant_frame(0, 5, 6), "a grant of 6 bytes in a channel of 5"),
        (frame(Kind.CLOSED, 4), "channel number 4, never opened"),
        (frame(Kind.END, 0), "END frame came the wrong way"),
        (b"", "ended while channels were open"),
    ],
)
def test_a_reader_that_breaks_the_rules_ends_its_writers(
    slots: "Slots", said: bytes, claim: str
) -> None:
    network = slots.start(0)
    output = network.output(A, 1)
    reader = slots.listen_as_peer(network)

    reader.sendall(said)
    reader.shutdown(socket.SHUT_WR)
    wait_until(lambda: len(slots.failures) == 1)

    assert claim in slots.failures[0]
    with pytest.raises(ChannelClosed):
        output.send(Watermark(1))


def test_a_writer_blocked_in_the_kernel_ends_when_the_network_closes(slots: "Slots") -> None:
    """The timeout for a silent peer is too long to be the reason here."""
    network = slots.start(0, limits=NetworkLimits(unanswered_ms=3 * int(DEADLINE_S) * 1_000))
    output = network.output(A, 1)
    reader = slots.listen_as_peer(network)
    reader.sendall(grant_frame(0, 1 << 40, 1 << 40))
    wait_until(output.flush)
    large = Records(pa.record_batch({"n": range(1 << 20)}))
    ended = threading.Event()

    def write() -> None:
        with contextlib.suppress(ChannelClosed):
            while True:
                output.send(large)
        ended.set()

    threading.Thread(target=write, daemon=True).start()
    reader.recv(1, socket.MSG_PEEK)  # the first batch is on its way, and larger than all buffers
    closing = threading.Thread(target=network.close, daemon=True)
    closing.start()

    assert ended.wait(DEADLINE_S)
    closing.join(DEADLINE_S)


def test_sent_records_arrive_even_if_the_writer_closes_at_once(slots: "Slots") -> None:
    reading, writing = slots.start(0), slots.start(1, limits=PATIENT)
    gate = slots.gate_in(reading, capacity_bytes=64 << 20)
    writing.connect([slots.address(0)])
    output = writing.output(A, 0)
    batch = Records(pa.record_batch({"n": range(1 << 16)}))
    wait_until(output.flush)

    for _ in range(40):
        output.send(batch)
    output.send(EndOfInput())
    writing.close()

    elements = [poll_one(gate)[1] for _ in range(41)]
    assert elements == [batch] * 40 + [EndOfInput()]
    assert slots.failures == []


def test_credit_that_arrives_during_close_does_not_lose_the_last_bytes(slots: "Slots") -> None:
    network = slots.start(0, limits=PATIENT)
    output = network.output(A, 1)
    reader = slots.listen_as_peer(network)
    reader.sendall(grant_frame(0, 1 << 40, 1 << 40))
    wait_until(output.flush)
    output.send(Records(pa.record_batch({"n": range(1 << 17)})))
    output.send(EndOfInput())

    closing = threading.Thread(target=network.close)
    closing.start()
    wait_until(lambda: nothing_more_is_sent_to(reader))
    reader.sendall(bytes_frame(Kind.CREDIT, 0, 1))
    read = len(A) + HEADER.size
    while part := reader.recv(1 << 20):
        read += len(part)
    reader.close()
    closing.join(DEADLINE_S)

    assert read == network.statistics().sent_bytes


@pytest.mark.parametrize("accepted", [0, 1, 11, 12, 13, 500, 512])
def test_bytes_that_the_kernel_does_not_take_at_once_are_sent_later(accepted: int) -> None:
    connection = ReluctantConnection(accepted)
    parts = [bytes(range(12)), pa.py_buffer(b"x" * 500)]

    sent = _send_all(connection, parts)  # type: ignore[arg-type]

    assert connection.taken == b"".join(memoryview(part) for part in parts)
    assert sent == 512


def test_a_slot_can_be_deployed_before_anyone_is_connected(slots: "Slots") -> None:
    networks = [slots.start(0), slots.start(1)]
    outputs = [networks[1].output(A, 0), networks[0].output(ChannelId("b"), 0)]
    gate = Gate([A, ChannelId("b")])

    for network in networks:
        network.connect([slots.address(0), slots.address(1)])
    networks[0].register_gate(gate)
    for output in outputs:
        wait_until(output.flush)
        output.send(EndOfInput())

    assert {poll_one(gate) for _ in outputs} == {(A, EndOfInput()), ("b", EndOfInput())}


def test_a_closed_network_gives_no_channels(slots: "Slots") -> None:
    network = slots.start(0)
    never_connected = network.output(A, 1)
    network.close()

    with pytest.raises(ChannelClosed):
        never_connected.send(Watermark(1))
    with pytest.raises(ChannelClosed):
        network.output(A, 1)
    with pytest.raises(ChannelClosed):
        network.output(ChannelId("b"), 0).send(Watermark(1))


def test_a_channel_name_too_long_for_the_peer_is_refused(slots: "Slots") -> None:
    with pytest.raises(Rejected, match="shorten the uids"):
        slots.start(0).output(ChannelId("x" * 5_000), 1)


def test_closing_leaves_no_thread_and_no_port(slots: "Slots") -> None:
    before = set(threading.enumerate())
    networks = [slots.start(0), slots.start(1)]
    for network in networks:
        network.connect([slots.address(0), slots.address(1)])
    address = networks[0].address

    for network in networks:
        network.close()

    wait_until(lambda: set(threading.enumerate()) <= before)
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(address)


@pytest.mark.slow
def test_a_peer_killed_in_the_middle_of_a_frame_is_a_failure(slots: "Slots") -> None:
    network = slots.start(0)
    gate = slots.gate_in(network)
    host, port = network.address
    script = KILLED_PEER.format(host=host, port=port, token=TOKEN, channel=A)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as peer:
        assert peer.stdout is not None
        assert peer.stdout.readline() == b"in the middle\n"
        assert poll_one(gate)[1] == Records(pa.record_batch({"n": [1]}))

        peer.send_signal(signal.SIGKILL)
        wait_until(lambda: len(slots.failures) == 1)

    assert "the connection ended after 1000 of the 100000 bytes" in slots.failures[0]
    assert gate.poll() is None, "neither the torn batch nor an end of input"


KILLED_PEER = """
import signal, socket
import pyarrow as pa
from pipelines.channels.guarded_port import audience_of
from pipelines.channels.handshake import prove_token
from pipelines.channels.wire import GRANT, HEADER, Kind, frame

peer = socket.create_connection(("{host}", {port}))
prove_token(peer, "{token}", attempt=2, slot=1, audience=audience_of(0))
peer.sendall(frame(Kind.OPEN, 0, b"{channel}"))
peer.recv(HEADER.size + GRANT.size, socket.MSG_WAITALL)
batch = pa.record_batch({{"n": [1]}})
peer.sendall(frame(Kind.SCHEMA, 0, batch.schema.serialize().to_pybytes()))
peer.sendall(frame(Kind.RECORDS, 0, batch.serialize().to_pybytes()))
peer.sendall(HEADER.pack(Kind.RECORDS, 0, 100_000) + bytes(1000))
print("in the middle", flush=True)
signal.pause()
"""


class ReluctantConnection:
    """Takes only some bytes of the first call, as a kernel may when a signal interrupts it."""

    def __init__(self, accepted: int) -> None:
        self._accepted = accepted
        self.taken = b""

    def sendmsg(self, parts: list[memoryview]) -> int:
        self.taken = b"".join(parts)[: self._accepted]
        return len(self.taken)

    def sendall(self, part: memoryview) -> None:
        self.taken += part


class Slots:
    """Networks of one attempt, what they report, and peers that are bare sockets."""

    def __init__(self) -> None:
        self.networks: list[SlotNetwork] = []
        self.failures: list[str] = []
        self.refused: list[RefusedConnection] = []
        self._sockets: list[socket.socket] = []

    def start(
        self,
        slot: int,
        token: str = TOKEN,
        attempt: int = 2,
        limits: NetworkLimits = LIMITS,
    ) -> SlotNetwork:
        network = SlotNetwork(
            slot,
            Attempt(attempt),
            token,
            on_failure=self.failures.append,
            on_refused=self.refused.append,
            limits=limits,
        )
        self.networks.append(network)
        return network

    def address(self, slot: int) -> PeerAddress:
        return PeerAddress(slot, *self.networks[slot].address)

    def gate_in(self, network: SlotNetwork, capacity_bytes: int = 1 << 20) -> Gate:
        gate = Gate([A], capacity_bytes)
        network.register_gate(gate)
        return gate

    def dial_as_peer(self, slot: int) -> socket.socket:
        """Returns a connection to slot 0 that has proved its token."""
        connection = socket.create_connection(self.networks[0].address)
        self._sockets.append(connection)
        audience = audience_of(0)
        prove_token(connection, TOKEN, attempt=Attempt(2), slot=slot, audience=audience)
        return connection

    def listen_as_peer(self, network: SlotNetwork) -> socket.socket:
        """Returns slot 1 as a bare socket; `network` has connected to it and opened channel 0."""
        accepted: list[socket.socket] = []
        listener = socket.create_server(("127.0.0.1", 0))
        address = listener.getsockname()
        accepting = threading.Thread(target=lambda: accepted.append(self._accept(listener)))
        accepting.start()
        network.connect([PeerAddress(1, *address)])
        accepting.join(DEADLINE_S)
        listener.close()
        accepted[0].recv(HEADER.size + len(A), socket.MSG_WAITALL)
        return accepted[0]

    def close(self) -> None:
        for connection in self._sockets:
            connection.close()
        for network in self.networks:
            network.close()

    def _accept(self, listener: socket.socket) -> socket.socket:
        connection, _ = listener.accept()
        self._sockets.append(connection)
        verify_token(connection, TOKEN, attempt=Attempt(2), audience=audience_of(1))
        return connection


@pytest.fixture
def slots() -> Iterator[Slots]:
    slots = Slots()
    yield slots
    slots.close()


def open_channel(peer: socket.socket) -> None:
    """Opens channel 0 and waits for its credit."""
    peer.sendall(frame(Kind.OPEN, 0, A.encode()))
    granted = peer.recv(HEADER.size + GRANT.size, socket.MSG_WAITALL)
    assert granted[0] == Kind.GRANT


def is_let_in(slots: Slots) -> bool:
    try:
        slots.dial_as_peer(1)
    except (ProtocolError, OSError):  # earlier callers have not left yet
        return False
    return True


def nothing_more_is_sent_to(reader: socket.socket) -> bool:
    """Returns True if the writer's end, also in this process, has sent its FIN."""
    ends = psutil.Process().net_connections("tcp")
    states = [end.status for end in ends if end.laddr == reader.getpeername()]
    return states in ([psutil.CONN_FIN_WAIT1], [psutil.CONN_FIN_WAIT2])


def poll_one(gate: Gate) -> tuple[ChannelId, object]:
    polled: list[tuple[ChannelId, object]] = []

    def has_polled() -> bool:
        one = gate.poll()
        if one is not None:
            polled.append(one)
        return one is not None

    wait_until(has_polled)
    return polled[0]
