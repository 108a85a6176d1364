"""The control port: which slots it admits, and what the master hears of each."""

import math
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from pipelines.channels.handshake import (
    HELLO_BYTES,
    PROTOCOL,
    HandshakeRefused,
    Tls,
    prove_token,
)
from pipelines.domain.errors import ProtocolError, Retryable
from pipelines.domain.ids import Attempt
from pipelines.domain.settings import Heartbeat
from pipelines.domain.settings.parsing import parse_settings
from pipelines.runtime.clocks import SystemClock
from pipelines.runtime.control import (
    MASTER_DECODER,
    MAX_FRAME_BYTES,
    Beat,
    Begin,
    ControlLink,
    Deployed,
    FromMaster,
    Hello,
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
from pipelines.runtime.master.slots.control_server import ControlServer
from pipelines.runtime.networking import SlotAddress, driver_networking
from tests.certificates import Authority
from tests.unit.runtime.fakes import ManualClock

CLOCK = SystemClock()
TIMEOUT_S = 60.0
PARALLELISM = 3
STALL_MS = 20_000
USUAL = Heartbeat()
HASTY = Heartbeat(interval_ms=1, timeout_ms=60_000)
HELLO = Hello(slot=1, pid=42, host="127.0.0.1", data_port=7)
ANOTHER = msgspec.json.encode(Hello(slot=2, pid=42, host="127.0.0.1", data_port=7))


def test_a_slot_with_the_token_exchanges_messages_with_the_master() -> None:
    with server() as (control, events):
        address = control.open_for(Attempt(1))
        with dialed(address) as connection:
            prove_token(connection, address.token, attempt=Attempt(1), slot=1)
            link = ControlLink[FromMaster](connection, MASTER_DECODER, CLOCK.monotonic_ms)

            link.send(HELLO)
            link.send(Deployed())
            arrived, spoke = (events.get(timeout=TIMEOUT_S) for _ in range(2))
            assert isinstance(arrived, SlotArrived)
            arrived.link.send(Begin())
            heard = link.receive()

    assert (arrived.attempt, arrived.hello) == (1, HELLO)
    assert spoke == SlotSpoke(Attempt(1), 1, Deployed())
    assert heard == Begin()


def test_a_driver_sends_heartbeats_while_its_loop_waits_for_a_disk() -> None:
    """The loop does not take the slot's messages from the queue either, but they count as heard."""
    clock = ManualClock()
    loop = ControlLoop(clock, STALL_MS)
    loop.on_turn()
    with server(heartbeat=HASTY, loop=loop) as (control, events):
        address = control.open_for(Attempt(1))
        with dialed(address) as connection:
            prove_token(connection, address.token, attempt=Attempt(1), slot=1)
            link = ControlLink[FromMaster](connection, MASTER_DECODER, CLOCK.monotonic_ms)
            link.send(HELLO)
            arrived = events.get(timeout=TIMEOUT_S)
            assert isinstance(arrived, SlotArrived)
            clock.now_ms += STALL_MS
            beats = [link.receive() for _ in range(3)]
            said_ms = CLOCK.monotonic_ms()
            link.send(Deployed())
            until(lambda: arrived.link.heard_ms >= said_ms)

    assert beats == [Beat()] * 3


def test_a_driver_with_a_hung_loop_sends_no_heartbeats() -> None:
    clock = ManualClock()
    loop = ControlLoop(clock, STALL_MS)
    loop.on_turn()
    with server(heartbeat=HASTY, loop=loop) as (control, events):
        address = control.open_for(Attempt(1))
        with dialed(address) as connection:
            prove_token(connection, address.token, attempt=Attempt(1), slot=1)
            link = ControlLink[FromMaster](connection, MASTER_DECODER, CLOCK.monotonic_ms)
            link.send(HELLO)
            arrived = events.get(timeout=TIMEOUT_S)
            assert isinstance(arrived, SlotArrived)
            clock.now_ms += STALL_MS + 1
            arrived.link.send(Begin())  # arrives after the heartbeats sent before
            while link.receive() != Begin():
                pass
            connection.settimeout(0.2)
            silence = link.receive()

    assert silence is None


def test_a_slot_that_goes_away_is_reported() -> None:
    with server() as (control, events):
        address = control.open_for(Attempt(1))
        with dialed(address) as connection:
            prove_token(connection, address.token, attempt=Attempt(1), slot=1)
            ControlLink[FromMaster](connection, MASTER_DECODER, CLOCK.monotonic_ms).send(HELLO)
            events.get(timeout=TIMEOUT_S)

        gone = events.get(timeout=TIMEOUT_S)

    assert gone == SlotGone(Attempt(1), 1, "its connection to the driver broke")


def test_a_stranger_without_the_token_is_reported_and_gets_nothing() -> None:
    with server() as (control, events):
        address = control.open_for(Attempt(1))
        with dialed(address) as connection:
            with pytest.raises(HandshakeRefused):
                prove_token(connection, "guessed", attempt=Attempt(1), slot=1)
            refused = events.get(timeout=TIMEOUT_S)
            left = rest_of(connection)

    assert isinstance(refused, StrangerRefused)
    assert "token" in refused.what
    assert address.token not in refused.what
    assert left == b""
    assert events.empty()


def test_a_client_that_skips_the_handshake_gets_nothing_but_the_challenge() -> None:
    with server() as (control, events):
        address = control.open_for(Attempt(1))
        with dialed(address) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
            connection.shutdown(socket.SHUT_WR)
            refused = events.get(timeout=TIMEOUT_S)
            said = rest_of(connection)

    assert isinstance(refused, StrangerRefused)
    assert said.startswith(PROTOCOL)
    assert len(said) == HELLO_BYTES
    assert events.empty()


def test_a_slot_of_an_older_attempt_is_refused_by_its_number() -> None:
    with server() as (control, events):
        older = control.open_for(Attempt(1))
        control.open_for(Attempt(2))
        with dialed(older) as connection, pytest.raises(HandshakeRefused):
            prove_token(connection, older.token, attempt=Attempt(1), slot=1)
        refused = events.get(timeout=TIMEOUT_S)

    assert isinstance(refused, StrangerRefused)
    assert refused.attempt == 1


def test_a_slot_connects_once_per_attempt_and_a_second_try_is_no_stranger(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A slot that the driver gave up may connect again before the next attempt begins."""
    with server() as (control, events):
        first = control.open_for(Attempt(1))
        with dialed(first) as one, dialed(first) as other:
            prove_token(one, first.token, attempt=Attempt(1), slot=1)
            with pytest.raises(HandshakeRefused, match="its slot has connected before"):
                prove_token(other, first.token, attempt=Attempt(1), slot=1)
            until(lambda: "its slot has connected before" in caplog.text)
            second = control.open_for(Attempt(2))
            with dialed(second) as again:
                prove_token(again, second.token, attempt=Attempt(2), slot=1)
        gone = [events.get(timeout=TIMEOUT_S) for _ in range(2)]

    assert all(isinstance(event, SlotGone) for event in gone)
    assert events.empty()


def test_each_attempt_has_its_own_secret() -> None:
    with server() as (control, _):
        tokens = {control.open_for(Attempt(attempt)).token for attempt in (1, 2, 3)}

    assert len(tokens) == 3


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        ((MAX_FRAME_BYTES + 1).to_bytes(4, "big"), "announces"),
        (b"\x00\x00\x00\x02{]", "not a message"),
        (b'\x00\x00\x00\x10{"type":"Begin"}', "not a message"),
        (b'\x00\x00\x00\x23{"type":"PeerLost","problem":"\xff\xff\xff"}', "not a message"),
    ],
)
def test_an_invalid_frame_ends_the_slot_with_the_reason(frame: bytes, said: str) -> None:
    with server() as (control, events):
        address = control.open_for(Attempt(1))
        with dialed(address) as connection:
            prove_token(connection, address.token, attempt=Attempt(1), slot=1)
            ControlLink[FromMaster](connection, MASTER_DECODER, CLOCK.monotonic_ms).send(HELLO)
            events.get(timeout=TIMEOUT_S)

            connection.sendall(frame)
            gone = events.get(timeout=TIMEOUT_S)

    assert isinstance(gone, SlotGone)
    assert said in gone.problem


@pytest.mark.parametrize(
    ("first", "said"),
    [
        (b"\x00\x00\x00\x02{]", "not a message"),
        (b'\x00\x00\x00\x13{"type":"Deployed"}', "did not say who it is"),
        (len(ANOTHER).to_bytes(4, "big") + ANOTHER, "did not say who it is"),
        (b"", "did not say who it is"),
    ],
)
def test_a_slot_that_does_not_identify_itself_is_reported_as_gone(first: bytes, said: str) -> None:
    with server() as (control, events):
        address = control.open_for(Attempt(1))
        with dialed(address) as connection:
            prove_token(connection, address.token, attempt=Attempt(1), slot=1)
            connection.sendall(first)
            connection.shutdown(socket.SHUT_WR)

            gone = events.get(timeout=TIMEOUT_S)

    assert isinstance(gone, SlotGone)
    assert (gone.attempt, gone.slot) == (1, 1)
    assert said in gone.problem


def test_pending_handshakes_are_bounded_and_leave_room_for_all_slots() -> None:
    with server() as (control, _):
        most = control._port._limits.max_pending_handshakes

    assert PARALLELISM < most <= PARALLELISM + 64


def test_a_broken_control_port_ends_the_driver() -> None:
    with server() as (control, events):
        control.open_for(Attempt(1))
        control._port._listener.shutdown(socket.SHUT_RDWR)

        failed = events.get(timeout=TIMEOUT_S)

    assert isinstance(failed, WorkFailed)
    assert isinstance(failed.error, Retryable)
    assert "No slot can connect any more: the control port is broken" in str(failed.error)


def test_with_tls_a_slot_of_the_same_authority_exchanges_messages(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "tls")
    with server(authority.tls()) as (control, events):
        address = control.open_for(Attempt(1))
        connection = authority.tls().connect(dialed(address), 20_000)
        prove_token(connection, address.token, attempt=Attempt(1), slot=1)
        link = ControlLink[FromMaster](connection, MASTER_DECODER, CLOCK.monotonic_ms)
        link.send(HELLO)
        arrived = events.get(timeout=TIMEOUT_S)
        assert isinstance(arrived, SlotArrived)
        arrived.link.send(Begin())

        assert link.receive() == Begin()
        arrived.link.close()
        assert link.receive() is None
        link.close()


def test_with_tls_the_token_alone_does_not_admit_a_slot(tmp_path: Path) -> None:
    with server(Authority(tmp_path / "ours").tls()) as (control, events):
        address = control.open_for(Attempt(1))
        with dialed(address) as plain:
            plain.sendall(b"ftdash/1, and no TLS")
            with pytest.raises((ProtocolError, OSError)):
                prove_token(plain, address.token, attempt=Attempt(1), slot=1)
        stranger = Authority(tmp_path / "theirs").tls()
        with pytest.raises(ProtocolError):
            stranger.connect(dialed(address), 20_000)
        refused = [events.get(timeout=TIMEOUT_S) for _ in range(2)]

    for event in refused:
        assert isinstance(event, StrangerRefused)
        assert "no certificate of this installation's authority" in event.what


def until(holds: Callable[[], bool]) -> None:
    waiting = threading.Event()
    for _ in range(int(TIMEOUT_S / 0.01)):
        if holds():
            return
        waiting.wait(0.01)
    pytest.fail("it does not come true")


@contextmanager
def server(
    tls: Tls | None = None, heartbeat: Heartbeat = USUAL, loop: ControlLoop | None = None
) -> Iterator[tuple[ControlServer, "queue.Queue[JobEvent]"]]:
    events: queue.Queue[JobEvent] = queue.Queue()
    networking = driver_networking(parse_settings({}))
    loop = loop or ControlLoop(CLOCK, math.inf)
    control = ControlServer(
        networking=networking,
        tls=tls,
        post=events.put,
        heartbeat=heartbeat,
        slot_count=PARALLELISM,
        loop=loop,
        now_ms=CLOCK.monotonic_ms,
    )
    try:
        yield control, events
    finally:
        control.close()


def dialed(address: SlotAddress) -> socket.socket:
    return socket.create_connection((address.host, address.port), TIMEOUT_S)


def rest_of(connection: socket.socket) -> bytes:
    """Reads until the other side closes or resets the connection."""
    received = b""
    try:
        while part := connection.recv(4096):
            received += part
    except ConnectionResetError:
        pass
    return received
