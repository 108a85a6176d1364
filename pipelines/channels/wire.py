"""The wire format between two slots: frames with a fixed header, batches as Arrow IPC.

Forward (writer to reader): OPEN names a channel and gives it a number. SCHEMA and RECORDS carry
Arrow IPC: the schema once per channel, then one message per batch. DICTIONARIES is a whole Arrow
stream of one batch, for schemas with dictionaries, because dictionaries are not part of a batch
message. ORIGIN gives the origin of the channel's next batch; origins only help to explain a
failure, so those that are too long are left out, never refused. BARRIER, CANCEL, WATERMARK, STATUS
(idle or active) and END are marks. Backward: GRANT opens a channel with its capacity and its first
credit, CREDIT returns bytes, CLOSED says that the channel has no reader any more. Decides which
frames are legal, not what they mean.
"""

import socket
import struct
from dataclasses import dataclass
from enum import IntEnum

import msgspec
import pyarrow as pa

from pipelines.channels.channel import NetworkLimits
from pipelines.channels.handshake import Connection
from pipelines.domain.elements import (
    Barrier,
    CancelCheckpoint,
    EndOfInput,
    Mark,
    Watermark,
    WatermarkStatus,
)
from pipelines.domain.errors import UNDECODABLE, ProtocolError, Rejected
from pipelines.domain.ids import ChannelId, CheckpointId
from pipelines.domain.origins import Origins

HEADER = struct.Struct("<BxxxII")  # kind, channel number, length of the body
BARRIER = struct.Struct("<qqqB")  # checkpoint, trigger, confirmed checkpoint, flags; then UTF-8
WATERMARK = struct.Struct("<q")
CANCEL = struct.Struct("<q")  # checkpoint
STATUS = struct.Struct("<?")
BYTES = struct.Struct("<Q")
GRANT = struct.Struct("<QQ")  # capacity, and how much of it may be sent now
IS_SAVEPOINT, IS_FINAL, IS_NATIVE, OVERTAKES = 1, 2, 4, 8
READ_AHEAD_BYTES = 128 << 10  # many small frames in one system call


class Kind(IntEnum):
    OPEN = 1
    SCHEMA = 2
    RECORDS = 3
    DICTIONARIES = 4
    BARRIER = 5
    WATERMARK = 6
    END = 7
    GRANT = 8
    CREDIT = 9
    CLOSED = 10
    ORIGIN = 11
    CANCEL = 12
    STATUS = 13


FIXED_LENGTHS = {
    Kind.WATERMARK: WATERMARK.size,
    Kind.CANCEL: CANCEL.size,
    Kind.STATUS: STATUS.size,
    Kind.END: 0,
    Kind.GRANT: GRANT.size,
    Kind.CREDIT: BYTES.size,
    Kind.CLOSED: 0,
}


BACKWARD = frozenset({Kind.GRANT, Kind.CREDIT, Kind.CLOSED})
FORWARD = frozenset(Kind) - BACKWARD


@dataclass(frozen=True, slots=True)
class Frame:
    kind: Kind
    number: int  # of the channel on its connection
    body: pa.Buffer


def frame(kind: Kind, number: int, body: bytes = b"") -> bytes:
    return HEADER.pack(kind, number, len(body)) + body


def bytes_frame(kind: Kind, number: int, count_bytes: int) -> bytes:
    return frame(kind, number, BYTES.pack(count_bytes))


def mark_frame(number: int, mark: Mark) -> bytes:
    match mark:
        case Barrier():
            flags = IS_SAVEPOINT * mark.is_savepoint | IS_FINAL * mark.is_final
            flags |= IS_NATIVE * mark.is_native
            flags |= OVERTAKES * mark.overtakes
            body = BARRIER.pack(mark.checkpoint_id, mark.trigger_ms, mark.confirmed_id, flags)
            return frame(Kind.BARRIER, number, body + mark.location.encode())
        case CancelCheckpoint():
            return frame(Kind.CANCEL, number, CANCEL.pack(mark.checkpoint_id))
        case Watermark():
            return frame(Kind.WATERMARK, number, WATERMARK.pack(mark.timestamp_ms))
        case WatermarkStatus():
            return frame(Kind.STATUS, number, STATUS.pack(mark.is_idle))
        case EndOfInput():
            return frame(Kind.END, number)


def mark_of(received: Frame) -> Mark:
    match received.kind:
        case Kind.BARRIER:
            return _barrier_of(received)
        case Kind.CANCEL:
            (checkpoint_id,) = CANCEL.unpack(received.body)
            return CancelCheckpoint(CheckpointId(checkpoint_id))
        case Kind.WATERMARK:
            return Watermark(*WATERMARK.unpack(received.body))
        case Kind.STATUS:
            return WatermarkStatus(*STATUS.unpack(received.body))
        case Kind.END:
            return EndOfInput()
        case _:
            raise ProtocolError(f"a {received.kind.name} frame is no mark")


def bytes_of(received: Frame) -> int:
    (count_bytes,) = BYTES.unpack(received.body)
    return int(count_bytes)


def grant_frame(number: int, capacity_bytes: int, granted_bytes: int) -> bytes:
    return frame(Kind.GRANT, number, GRANT.pack(capacity_bytes, granted_bytes))


def grant_of(received: Frame) -> tuple[int, int]:
    """Returns the capacity of the channel, and how much of it may be sent now."""
    capacity_bytes, granted_bytes = GRANT.unpack(received.body)
    if granted_bytes > capacity_bytes:
        raise ProtocolError(f"a grant of {granted_bytes} bytes in a channel of {capacity_bytes}")
    return int(capacity_bytes), int(granted_bytes)


def _barrier_of(received: Frame) -> Barrier:
    body = received.body.to_pybytes()
    if len(body) < BARRIER.size:
        raise ProtocolError(f"a BARRIER frame of {len(body)} bytes")
    checkpoint_id, trigger_ms, confirmed_id, flags = BARRIER.unpack_from(body)
    if flags & ~(IS_SAVEPOINT | IS_FINAL | IS_NATIVE | OVERTAKES):
        raise ProtocolError(f"a barrier carries unknown flags {flags:#x}")
    return Barrier(
        checkpoint_id=CheckpointId(checkpoint_id),
        trigger_ms=trigger_ms,
        is_savepoint=bool(flags & IS_SAVEPOINT),
        is_final=bool(flags & IS_FINAL),
        is_native=bool(flags & IS_NATIVE),
        confirmed_id=CheckpointId(confirmed_id),
        overtakes=bool(flags & OVERTAKES),
        location=_text_of(body[BARRIER.size :]),
    )


def _text_of(location: bytes) -> str:
    try:
        return location.decode()
    except UnicodeDecodeError:
        raise ProtocolError("a barrier carries a location that is not UTF-8") from None


class FrameReader:
    """Cuts the bytes of one blocking socket into frames.

    Guarantee: allocates nothing before the header has been found legal, so a body is never larger
    than its named limit. The body of a frame has a buffer of its own, aligned for Arrow.
    """

    def __init__(
        self, connection: Connection, expected: frozenset[Kind], limits: NetworkLimits
    ) -> None:
        self._connection = connection
        self._expected = expected
        self._longest = {
            Kind.OPEN: limits.max_channel_name_bytes,
            Kind.SCHEMA: limits.max_schema_bytes,
            Kind.RECORDS: limits.max_frame_bytes,
            Kind.DICTIONARIES: limits.max_frame_bytes,
            Kind.ORIGIN: limits.max_origin_bytes,
            Kind.BARRIER: BARRIER.size + limits.max_location_bytes,
        }
        self._ahead = memoryview(bytearray(READ_AHEAD_BYTES))
        self._start = self._end = 0  # the part of it that is read but not yet used
        self.received_bytes = 0

    def read(self) -> Frame | None:
        """Returns the next frame, or None if the peer has ended the stream between two frames.

        Raises ProtocolError for a torn or illegal frame, OSError when the connection breaks.
        """
        if not self._has_header():
            return None
        code, number, length = HEADER.unpack_from(self._ahead, self._start)
        self._start += HEADER.size
        kind = self._legal_kind(code, length)
        self.received_bytes += HEADER.size + length
        return Frame(kind, number, self._body(length))

    def _has_header(self) -> bool:
        while self._end - self._start < HEADER.size:
            self._move_to_front()
            received = self._connection.recv_into(self._ahead[self._end :])
            if not received and self._end:
                raise ProtocolError("the connection ended inside the header of a frame")
            if not received:
                return False
            self._end += received
        return True

    def _move_to_front(self) -> None:
        rest = self._end - self._start
        self._ahead[:rest] = self._ahead[self._start : self._end]
        self._start, self._end = 0, rest

    def _legal_kind(self, code: int, length: int) -> Kind:
        try:
            kind = Kind(code)
        except ValueError:
            raise ProtocolError(f"a frame of unknown kind {code}") from None
        if kind not in self._expected:
            raise ProtocolError(f"a {kind.name} frame came the wrong way")
        if kind in FIXED_LENGTHS and length != FIXED_LENGTHS[kind]:
            raise ProtocolError(f"a {kind.name} frame of {length} bytes")
        if kind in self._longest and length > self._longest[kind]:
            longest = self._longest[kind]
            raise ProtocolError(f"a {kind.name} frame of {length} bytes; {longest} are allowed")
        return kind

    def _body(self, length: int) -> pa.Buffer:
        body = pa.allocate_buffer(length)
        if length:
            self._fill(memoryview(body).cast("B"))
        return body

    def _fill(self, body: memoryview) -> None:
        filled = min(len(body), self._end - self._start)
        body[:filled] = self._ahead[self._start : self._start + filled]
        self._start += filled
        while filled < len(body):
            received = self._connection.recv_into(body[filled:], 0, socket.MSG_WAITALL)
            if not received:
                raise ProtocolError(
                    f"the connection ended after {filled} of the {len(body)} bytes of a frame"
                )
            filled += received


Parts = list[bytes | pa.Buffer]
UNREADABLE = (pa.ArrowException, OSError, EOFError, StopIteration)
"""The errors of Arrow's readers for malformed bytes."""


class RecordsEncoder:
    """The sending half of one channel. The batches of a channel may change their schema."""

    def __init__(self, channel: ChannelId, number: int, limits: NetworkLimits) -> None:
        self._channel = channel
        self._number = number
        self._limits = limits
        self._schema: pa.Schema | None = None
        self._has_dictionaries = False

    def encode(self, batch: pa.RecordBatch) -> tuple[Parts, int]:
        """Returns the parts of the frames, in order, and the cost of the batch in credit.

        Raises Rejected for a batch that no peer would accept.
        """
        preamble = self._schema_frame(batch.schema)
        body = _whole_stream(batch) if self._has_dictionaries else batch.serialize()
        if body.size > self._limits.max_frame_bytes:
            raise Rejected(
                f"a batch of {batch.num_rows} rows on channel {self._channel} takes {body.size} "
                f"bytes, more than max_frame_bytes = {self._limits.max_frame_bytes}; "
                "let the source read smaller batches"
            )
        kind = Kind.DICTIONARIES if self._has_dictionaries else Kind.RECORDS
        return [preamble + HEADER.pack(kind, self._number, body.size), body], body.size

    def _schema_frame(self, schema: pa.Schema) -> bytes:
        if self._schema is not None and schema.equals(self._schema, check_metadata=True):
            return b""
        self._schema = schema
        self._has_dictionaries = any(_holds_dictionary(field.type) for field in schema)
        if self._has_dictionaries:
            return b""
        serialized = schema.serialize().to_pybytes()
        if len(serialized) > self._limits.max_schema_bytes:
            raise Rejected(
                f"the schema on channel {self._channel} takes {len(serialized)} bytes, more than "
                f"max_schema_bytes = {self._limits.max_schema_bytes}"
            )
        return frame(Kind.SCHEMA, self._number, serialized)


class RecordsDecoder:
    """The receiving half: batches are views of the received buffer, not copies."""

    def __init__(self) -> None:
        self._schema: pa.Schema | None = None

    def on_schema(self, received: Frame) -> None:
        try:
            self._schema = pa.ipc.read_schema(received.body)
        except UNREADABLE as error:
            raise ProtocolError(f"a schema cannot be read: {error}") from error

    def decode(self, received: Frame) -> pa.RecordBatch:
        """Raises ProtocolError for bytes that are not a batch of the announced schema."""
        try:
            batch = self._read(received)
            batch.validate()
        except UNREADABLE as error:
            raise ProtocolError(f"a batch cannot be read: {error}") from error
        return batch

    def _read(self, received: Frame) -> pa.RecordBatch:
        if received.kind is Kind.DICTIONARIES:
            return pa.ipc.open_stream(received.body).read_next_batch()
        if self._schema is None:
            raise ProtocolError("records came before their schema")
        return pa.ipc.read_record_batch(received.body, self._schema)


def _whole_stream(batch: pa.RecordBatch) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def _holds_dictionary(data_type: pa.DataType) -> bool:
    if pa.types.is_dictionary(data_type):
        return True
    if isinstance(data_type, pa.BaseExtensionType):
        return _holds_dictionary(data_type.storage_type)
    return any(_holds_dictionary(data_type.field(i).type) for i in range(data_type.num_fields))


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Origins)


def origin_frame(number: int, origins: Origins, limits: NetworkLimits) -> bytes:
    """Returns no bytes if there is nothing to send."""
    body = _encoder.encode(origins) if origins else b""
    if not body or len(body) > limits.max_origin_bytes:
        return b""
    return frame(Kind.ORIGIN, number, body)


def origins_of(received: Frame) -> Origins:
    """Raises ProtocolError for bytes that are not origins."""
    try:
        return _decoder.decode(received.body)
    except UNDECODABLE as error:
        raise ProtocolError(f"the origins of a batch cannot be read: {error}") from error
