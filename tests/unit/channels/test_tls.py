"""TLS: a peer without a certificate of the authority is refused, and no end waits for ever."""

import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from pipelines.channels.channel import NetworkLimits, PeerAddress
from pipelines.channels.guarded_port import Credentials, RefusedConnection, dial
from pipelines.channels.handshake import HandshakeRefused, Refusal, Tls, TlsConnection
from pipelines.channels.slot_network import SlotNetwork
from pipelines.domain.errors import CertificateRefused, ProtocolError, Rejected, Retryable
from pipelines.domain.ids import Attempt
from tests.certificates import Authority
from tests.polling import wait_until, wait_until_asleep_in

TIMEOUT_MS = 20_000
DEADLINE_S = 30.0
TOKEN = "0123456789abcdef"
LIMITS = NetworkLimits(handshake_timeout_ms=TIMEOUT_MS)
SHORT = NetworkLimits(handshake_timeout_ms=500)  # each end waits for the other to speak
LARGE = bytes(range(256)) * (4 << 12)  # 4 MiB, more than any buffer between the ends


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "theirs")


@pytest.fixture
def ends(ours: Authority) -> Iterator[tuple[TlsConnection, TlsConnection]]:
    """Yields the two ends of one connection."""
    accepting, connecting = secured(ours.tls(), ours.tls())
    assert isinstance(accepting, TlsConnection)
    assert isinstance(connecting, TlsConnection)
    yield accepting, connecting
    accepting.close()
    connecting.close()


def test_a_certificate_that_has_expired_is_refused_before_any_slot_is_started(
    ours: Authority,
) -> None:
    expired = ours.issued(until=datetime.now(UTC) - timedelta(minutes=1))

    ours.tls().check()
    with pytest.raises(CertificateRefused, match="pem is refused: certificate has expired"):
        Tls.load(expired).check()


def test_data_is_encrypted_on_the_wire(ours: Authority) -> None:
    left, right = socket.socketpair()
    listening, tapped = socket.socketpair()
    seen = bytearray()
    relays = [
        threading.Thread(target=relay, args=pair, daemon=True)
        for pair in ((right, tapped, seen), (tapped, right, seen))
    ]
    for thread in relays:
        thread.start()

    accepting, connecting = both(ours.tls(), listening, ours.tls(), left)
    connecting.sendall(b"a secret of the state")
    received = accepting.recv(100)

    assert received == b"a secret of the state"
    assert b"secret" not in bytes(seen)
    assert len(seen) > len(received)


def test_both_ends_can_send_more_than_fits_without_blocking_each_other(
    ends: tuple[TlsConnection, TlsConnection],
) -> None:
    with ThreadPoolExecutor(4) as threads:
        sending = [threads.submit(end.sendmsg, [memoryview(LARGE)] * 2) for end in ends]
        receiving = [threads.submit(read_exactly, end, 2 * len(LARGE)) for end in ends]

        assert [sent.result(DEADLINE_S) for sent in sending] == [2 * len(LARGE)] * 2
        assert [received.result(DEADLINE_S) for received in receiving] == [LARGE * 2] * 2


def test_a_reader_that_waits_does_not_hold_up_a_writer(
    ends: tuple[TlsConnection, TlsConnection],
) -> None:
    one, other = ends
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(one.recv, 100)
        wait_until_asleep_in(TlsConnection.recv)
        one.sendmsg([memoryview(b"to"), memoryview(b"gether")])
        assert read_exactly(other, 8) == b"together"
        other.sendall(b"back")

        assert waiting.result(DEADLINE_S) == b"back"


def test_data_sent_before_the_end_can_still_be_read_after_it(
    ends: tuple[TlsConnection, TlsConnection],
) -> None:
    one, other = ends
    other.sendall(b"credit")
    one.sendall(b"the last words")
    one.shutdown(socket.SHUT_WR)

    assert read_exactly(other, 14) == b"the last words"
    assert other.recv(1) == b""
    assert read_exactly(one, 6) == b"credit"


def test_a_reader_is_woken_by_the_end_of_the_connection(
    ends: tuple[TlsConnection, TlsConnection],
) -> None:
    one, _ = ends
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(one.recv, 1)
        wait_until_asleep_in(TlsConnection.recv)
        one.shutdown(socket.SHUT_RDWR)

        assert waiting.result(DEADLINE_S) == b""


def test_a_reader_with_a_deadline_does_not_wait_longer(
    ends: tuple[TlsConnection, TlsConnection],
) -> None:
    one, _ = ends
    one.settimeout(0.05)

    with pytest.raises(TimeoutError):
        one.recv(1)


def test_a_write_to_a_hanging_reader_ends_after_the_sockets_timeout(
    ours: Authority,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connecting = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
    connecting.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, 50_000))
    hanging, writing = both(ours.tls(), accepted, ours.tls(), connecting)

    with pytest.raises(TimeoutError):
        writing.sendall(LARGE * 16)

    hanging.close()
    writing.close()


def test_a_certificate_of_another_authority_is_refused_by_either_end(
    ours: Authority, theirs: Authority
) -> None:
    server, client = secured(ours.tls(), theirs.tls())

    assert isinstance(server, HandshakeRefused)
    assert server.refusal is Refusal.NOT_TRUSTED
    assert isinstance(client, ProtocolError)


def test_a_client_without_a_certificate_is_refused(ours: Authority) -> None:
    anybody = ssl.create_default_context(cafile=ours.file)
    anybody.check_hostname = False

    server, _ = secured(ours.tls(), Tls(anybody, anybody))

    assert isinstance(server, HandshakeRefused)


def test_a_client_refuses_a_server_whose_authority_it_does_not_trust(
    ours: Authority, theirs: Authority
) -> None:
    """The server would admit the client, but the client does not trust the server."""
    mixed = msgspec.structs.replace(ours.issued(), authority=theirs.file)

    _, client = secured(ours.tls(), Tls.load(mixed))

    assert isinstance(client, ProtocolError)
    assert "certificate verify failed" in str(client)


def test_a_client_without_tls_is_refused_and_reported(ours: Authority) -> None:
    refused: list[RefusedConnection] = []
    network = network_of(0, ours.tls(), refused)
    try:
        with pytest.raises((ProtocolError, Retryable)):
            dial(PeerAddress(0, *network.address), Credentials(1, Attempt(1), TOKEN), SHORT)
        wait_until(lambda: len(refused) == 1)
    finally:
        network.close()

    assert refused[0].refusal is Refusal.NOT_TRUSTED


def test_a_slot_that_expects_tls_does_not_talk_to_one_without(ours: Authority) -> None:
    network = network_of(0, None, [])
    try:
        with pytest.raises(ProtocolError, match="no TLS connection of the same authority"):
            dial(
                PeerAddress(0, *network.address),
                Credentials(1, Attempt(1), TOKEN),
                LIMITS,
                ours.tls(),
            )
    finally:
        network.close()


def test_a_certificate_does_not_stand_in_for_the_token(ours: Authority) -> None:
    refused: list[RefusedConnection] = []
    network = network_of(0, ours.tls(), refused)
    stranger = Credentials(1, Attempt(1), "another token, which is wrong")
    try:
        with pytest.raises(ProtocolError, match="token"):
            dial(PeerAddress(0, *network.address), stranger, LIMITS, ours.tls())
        wait_until(lambda: len(refused) == 1)
    finally:
        network.close()

    assert refused[0].refusal is Refusal.WRONG_TOKEN


@pytest.mark.parametrize(
    ("broken", "named"),
    [
        ("missing certificate", "certificate"),
        ("missing key", "key"),
        ("missing authority", "authority"),
        ("not PEM", "authority"),
        ("key of another", "key"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(
    ours: Authority, tmp_path: Path, broken: str, named: str
) -> None:
    files = ours.issued()
    (tmp_path / "text").write_text("no certificate")
    changed = {
        "missing certificate": {"certificate": "/nowhere/c.pem"},
        "missing key": {"key": "/nowhere/k.pem"},
        "missing authority": {"authority": "/nowhere/a.pem"},
        "not PEM": {"authority": str(tmp_path / "text")},
        "key of another": {"key": ours.issued().key},
    }[broken]
    files = msgspec.structs.replace(files, **changed)

    with pytest.raises(Rejected, match="cannot be used for TLS") as refusal:
        Tls.load(files)
    assert getattr(files, named) in str(refusal.value)


End = TlsConnection | ProtocolError


def secured(server: Tls, client: Tls) -> tuple[End, End]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connecting = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
    return both(server, accepted, client, connecting)


def both(
    server: Tls, accepted: socket.socket, client: Tls, connecting: socket.socket
) -> tuple[TlsConnection, TlsConnection]:
    """Returns what each end gets: a connection, or the reason why it has none."""

    def accept() -> End:
        try:
            return server.accept(accepted, TIMEOUT_MS)
        except HandshakeRefused as refused:
            return refused

    def connect() -> End:
        try:
            connection = client.connect(connecting, TIMEOUT_MS)
        except ProtocolError as error:
            return error
        return connection

    with ThreadPoolExecutor(2) as threads:
        accepting, connected = threads.submit(accept), threads.submit(connect)
        ends = accepting.result(DEADLINE_S), connected.result(DEADLINE_S)
    if isinstance(ends[0], HandshakeRefused) and isinstance(ends[1], TlsConnection):
        return ends[0], refusal_met_by(ends[1])  # type: ignore[return-value]
    return ends  # type: ignore[return-value]


def refusal_met_by(connection: TlsConnection) -> ProtocolError:
    """Returns the refusal, which a client in TLS 1.3 learns of only when it reads."""
    connection.settimeout(DEADLINE_S)
    try:
        received = connection.recv(1)
    except OSError as error:
        return ProtocolError(str(error))
    finally:
        connection.close()
    assert received == b""
    return ProtocolError("the connection ended")


def network_of(slot: int, tls: Tls | None, refused: list[RefusedConnection]) -> SlotNetwork:
    return SlotNetwork(
        slot,
        Attempt(1),
        TOKEN,
        on_failure=lambda _: None,
        on_refused=refused.append,
        tls=tls,
        limits=LIMITS,
    )


def read_exactly(connection: TlsConnection, count: int) -> bytes:
    received = bytearray(count)
    filled = 0
    while filled < count:
        got = connection.recv_into(memoryview(received)[filled:], 0, socket.MSG_WAITALL)
        assert got
        filled += got
    return bytes(received)


def relay(source: socket.socket, target: socket.socket, seen: bytearray) -> None:
    while part := source.recv(1 << 16):
        seen += part
        target.sendall(part)
