"""The control connection between a slot and the job master: length-prefixed JSON messages.

The unions `FromSlot` and `FromMaster` list the messages that each side sends. Sending is
thread-safe. The connection belongs to one attempt. When it ends, the slot's attempt ends on both
sides.
"""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from pipelines.channels.guarded_port import tune
from pipelines.channels.handshake import Connection
from pipelines.domain.checkpoint_failures import CheckpointFailureReason, SubtaskPhases
from pipelines.domain.errors import UNDECODABLE, FailureKind, ProtocolError, Rejected
from pipelines.domain.events import RestoreProgress, SubtaskSample
from pipelines.domain.faults import Fault
from pipelines.domain.ids import NO_CHECKPOINT, Attempt, CheckpointId, RunId, Uid
from pipelines.domain.log_lines import LogLine
from pipelines.domain.poison import Isolation
from pipelines.domain.run import ShippedCode
from pipelines.domain.settings import (
    AS_SENT,
    AckingOptions,
    BarrierOptions,
    Heartbeat,
    InputOptions,
    StateOptions,
)
from pipelines.domain.snapshots import Manifest, SubtaskSnapshot
from pipelines.domain.status import KillMoment, SavepointFormat
from pipelines.protocol.commit import CommitPermit
from pipelines.protocol.repeated_failures import OperatorError


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    pass


class Hello(Message, frozen=True, kw_only=True):
    """The first message of a slot: its number and process, and where its data port listens."""

    slot: int
    pid: int
    host: str
    data_port: int


class Restoring(Message, frozen=True, kw_only=True):
    """The deployment has progressed since the slot's last report."""

    progress: RestoreProgress


class Deployed(Message, frozen=True, kw_only=True):
    """Gates are registered and state is restored: peers may connect."""


class Running(Message, frozen=True, kw_only=True):
    """All channels are connected and all subtasks of the slot have begun."""


class Acknowledged(Message, frozen=True, kw_only=True):
    checkpoint_id: CheckpointId
    snapshot: SubtaskSnapshot
    phases: SubtaskPhases
    source_records: int
    watermark_ms: int | None


class Declined(Message, frozen=True, kw_only=True):
    checkpoint_id: CheckpointId
    vertex: Uid
    subtask: int
    reason: CheckpointFailureReason
    message: str


class SourcesEnded(Message, frozen=True, kw_only=True):
    """One source subtask has read everything; it still answers barriers."""

    vertex: Uid
    subtask: int


class ReservationWanted(Message, frozen=True, kw_only=True):
    """At most once: a source has read ahead as far as it may, and waits for the next checkpoint."""

    vertex: Uid
    subtask: int


class Committed(Message, frozen=True, kw_only=True):
    checkpoint_id: CheckpointId
    vertex: Uid
    subtask: int


class Failed(Message, frozen=True, kw_only=True):
    vertex: Uid | None
    subtask: int | None
    cause: str
    detail: str
    is_fatal: bool  # a restart cannot help: the cause is bad input or a setting, not an outage
    lost_output_of: CheckpointId | None = None  # this checkpoint needs output that is gone: fatal
    damaged_file: str | None = None  # of the point that the attempt starts from: fatal for it
    is_damage: bool = False  # also True if it is not known which file is damaged
    author_trace: str = ""  # the frames of the author's code; empty if there are none
    record: str = ""  # as `pipeline.failures.show-records` allows
    error: OperatorError | None = None  # None if no operator raised it
    kind: FailureKind = FailureKind.UNKNOWN


class PeerLost(Message, frozen=True, kw_only=True):
    """A data connection ended, usually because the peer died. The master notices that itself."""

    problem: str


class StrangerTurnedAway(Message, frozen=True, kw_only=True):
    """A peer without the attempt's token, or of an older attempt, connected to the data port."""

    attempt: Attempt  # the attempt that it claimed, or 0 if it claimed none
    what: str


class Ended(Message, frozen=True, kw_only=True):
    """Every subtask of the slot has ended after the final checkpoint."""


class Beat(Message, frozen=True, kw_only=True):
    """A heartbeat, in either direction: the sender is alive."""


class Sampled(Message, frozen=True, kw_only=True):
    subtasks: list[SubtaskSample]
    source_records: int
    resident_bytes: int
    counters: dict[str, int]


class Logged(Message, frozen=True, kw_only=True):
    """Log lines of the slot, its subtasks and the author's code since the last such message."""

    lines: list[LogLine]
    dropped: int  # how many lines before these were dropped, because there were too many


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    slot: int
    host: str
    port: int


class Deploy(Message, frozen=True, kw_only=True):
    """Everything that a slot needs. It finds the code by the flow's name (in `code` if the code was
    shipped), and the state at `restore_location`."""

    run_id: RunId
    pipeline: str
    parameters: dict[str, str]
    parallelism: int
    max_parallelism: int
    peers: list[Peer]
    storage_roots: list[str]
    max_memory_state_bytes: int
    compresses_snapshots: bool
    digests_output: bool
    restore_location: str | None
    restore_manifest: Manifest | None  # used instead of the stored one, which may be out of reach
    faults: list[Fault] = []  # on purpose
    barriers: BarrierOptions
    acking: AckingOptions | None = None  # None in every mode except ACKED
    inputs: InputOptions = AS_SENT
    state: StateOptions
    forgets_state: bool = False  # at most once, after a failure: see RestorePoint
    dropped_states: list[tuple[Uid, str]] = []  # in the point, but the slot does not restore them
    quarantine: str = ""  # the directory of the quarantines of all sources
    isolation: Isolation = Isolation()
    replayed_sources: list[Uid] = []  # sources whose quarantine the run reads again
    renamed_uids: dict[Uid, Uid] = {}  # of operators that have other names in the point
    shows_failed_records: bool = False  # a failure may tell the master the record's values
    beginning: bytes = b""  # of the run, see `Beginning` in `connectors.positions`
    code: ShippedCode | None = None  # the host has put the wheel on this machine


class Begin(Message, frozen=True, kw_only=True):
    """All slots are deployed: connect and run."""


class Inject(Message, frozen=True, kw_only=True):
    checkpoint_id: CheckpointId
    trigger_ms: int
    location: str
    savepoint_format: SavepointFormat | None  # None for a checkpoint
    is_final: bool
    drains: bool = False
    confirmed_id: CheckpointId = NO_CHECKPOINT  # the oldest checkpoint that increments may build on


class Completed(Message, frozen=True, kw_only=True):
    """Sinks commit when they get this message, so it carries the proof that they may."""

    permit: CommitPermit


class Aborted(Message, frozen=True, kw_only=True):
    checkpoint_id: CheckpointId


class Die(Message, frozen=True, kw_only=True):
    """The slot kills its own process with SIGKILL: a fault on purpose.

    The slot stops waiting for the moment `within_s` after it has got this message.
    """

    moment: KillMoment
    within_s: float


class SlowUploads(Message, frozen=True, kw_only=True):
    """Each upload that begins within `for_ms` takes `delay_ms` longer: a fault on purpose."""

    delay_ms: int
    for_ms: int


FromSlot = (
    Hello
    | Restoring
    | Deployed
    | Running
    | Acknowledged
    | Declined
    | SourcesEnded
    | ReservationWanted
    | Committed
    | Failed
    | PeerLost
    | StrangerTurnedAway
    | Ended
    | Sampled
    | Logged
    | Beat
)
FromMaster = Deploy | Begin | Inject | Completed | Aborted | Die | SlowUploads | Beat

SLOT_DECODER: msgspec.json.Decoder[FromSlot] = msgspec.json.Decoder(FromSlot)
MASTER_DECODER: msgspec.json.Decoder[FromMaster] = msgspec.json.Decoder(FromMaster)


_LENGTH = struct.Struct("!I")
MAX_FRAME_BYTES = 64 << 20
"""An acknowledgement lists files and committables; this limit is far above any legitimate one."""

SEND_TIMEOUT = struct.pack("ll", 5, 0)
"""Seconds and microseconds: a peer that hangs must not hang the sender."""

T = TypeVar("T")


def prepare(connection: socket.socket, heartbeat: Heartbeat) -> None:
    """Prepares a socket to become a control link, before it is encrypted or used."""
    tune(connection, heartbeat.timeout_ms)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, SEND_TIMEOUT)


class MessageTooLong(Rejected):
    """The message exceeds the limit, so sending it again cannot help."""


class ControlLink(Generic[T]):
    """One end of a control connection. `decoder` knows the messages that the other side may send.

    Needs a prepared connection.
    """

    def __init__(
        self,
        connection: Connection,
        decoder: msgspec.json.Decoder[T],
        now_ms: Callable[[], float],  # monotonic
    ) -> None:
        self._connection = connection
        self._now_ms = now_ms
        self._heard_ms = now_ms()
        self._encoder = msgspec.json.Encoder()
        self._decoder = decoder
        self._sending = threading.Lock()

    @property
    def heard_ms(self) -> float:
        """Monotonic time of the last message received, whether or not it was handled yet."""
        return self._heard_ms

    def send(self, message: Message) -> None:
        """Raises MessageTooLong before it sends anything.

        Raises OSError if the connection is gone or the other side no longer reads. Then it closes
        the connection, because half a frame may have been sent.
        """
        payload = self._encoder.encode(message)
        if len(payload) > MAX_FRAME_BYTES:
            raise MessageTooLong(
                f"A message of kind {type(message).__name__} takes {len(payload):,} bytes; at most"
                f" {MAX_FRAME_BYTES:,} can be sent."
            )
        with self._sending:
            try:
                self._connection.sendall(_LENGTH.pack(len(payload)) + payload)
            except OSError:
                self.close()
                raise

    def receive(self) -> T | None:
        """Returns the next message, or None at the end of the connection. Only one thread may call
        this; it closes the socket when nothing more comes.

        Raises:
            ProtocolError: a frame is too long or is not a message of the other side.
        """
        try:
            message = self._receive()
        except ProtocolError:
            self._release()
            raise
        if message is None:
            self._release()
        else:
            self._heard_ms = self._now_ms()
        return message

    def close(self) -> None:
        """Wakes threads that are blocked in `receive`, on both sides. You may call it repeatedly.

        The thread that receives keeps the descriptor. If it were freed too early, another
        connection would soon get it, and the thread would read that connection's bytes.
        """
        with contextlib.suppress(OSError):  # the other side may have closed it first
            self._connection.shutdown(socket.SHUT_RDWR)

    def _receive(self) -> T | None:
        header = self._read_exactly(_LENGTH.size)
        if header is None:
            return None
        (length,) = _LENGTH.unpack(header)
        if length > MAX_FRAME_BYTES:
            raise ProtocolError(f"A control frame announces {length} bytes.")
        payload = self._read_exactly(length)
        if payload is None:
            return None
        try:
            return self._decoder.decode(payload)
        except UNDECODABLE as error:
            raise ProtocolError(f"A control frame is not a message: {error}.") from error

    def _release(self) -> None:
        self.close()
        with self._sending:
            self._connection.close()

    def _read_exactly(self, length: int) -> bytes | None:
        parts = bytearray()
        while len(parts) < length:
            try:
                part = self._connection.recv(min(length - len(parts), 1 << 20))
            except OSError:
                return None
            if not part:
                return None
            parts += part
        return bytes(parts)


class Pulse(threading.Thread):
    """Reports at every interval that this side is alive, even when it has nothing else to say."""

    def __init__(self, heartbeat: Heartbeat, beat: Callable[[], None]) -> None:
        super().__init__(name="pulse", daemon=True)
        self._interval_s = heartbeat.interval_ms / 1000.0
        self._beat = beat
        self._closed = threading.Event()

    def run(self) -> None:
        while not self._closed.wait(self._interval_s):
            self._beat()

    def close(self) -> None:
        self._closed.set()
