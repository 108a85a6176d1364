"""Frames: the reader cuts them from a byte stream and refuses bad ones before they cost memory."""

import contextlib
import random
import socket
import threading

import pyarrow as pa
import pytest

from pipelines.channels.channel import NetworkLimits
from pipelines.channels.wire import (
    BACKWARD,
    FORWARD,
    HEADER,
    Frame,
    FrameReader,
    Kind,
    RecordsDecoder,
    RecordsEncoder,
    bytes_frame,
    bytes_of,
    frame,
    grant_frame,
    grant_of,
    mark_frame,
    mark_of,
)
from pipelines.domain.elements import (
    Barrier,
    CancelCheckpoint,
    EndOfInput,
    Watermark,
    WatermarkStatus,
)
from pipelines.domain.errors import ProtocolError, Rejected
from pipelines.domain.event_time import MAX_WATERMARK_MS, MIN_WATERMARK_MS
from pipelines.domain.ids import ChannelId, CheckpointId

LIMITS = NetworkLimits(
    max_frame_bytes=1 << 20,
    max_schema_bytes=1_000,
    max_channel_name_bytes=50,
    max_location_bytes=64,
)
BATCH = pa.record_batch({"n": [1, 2, 3], "s": ["a", None, "c"]})


@pytest.mark.parametrize("seed", range(20))
def test_frames_are_cut_correctly_however_the_bytes_are_split(seed: int) -> None:
    rng = random.Random(seed)
    sizes = [rng.choice([0, 1, 12, 5_000, 200_000]) for _ in range(20)]
    bodies = [rng.randbytes(size) for size in sizes]
    stream = b"".join(frame(Kind.RECORDS, i, body) for i, body in enumerate(bodies))

    reader = reading_pieces(stream, rng)
    frames = [reader.read() for _ in bodies]

    assert [(f.number, f.body.to_pybytes()) for f in frames if f] == list(enumerate(bodies))
    assert reader.read() is None
    assert reader.received_bytes == len(stream)


@pytest.mark.parametrize(
    "mark",
    [
        Barrier(checkpoint_id=CheckpointId(2**40), trigger_ms=1_700_000_000_000),
        Barrier(checkpoint_id=CheckpointId(1), trigger_ms=0, is_savepoint=True),
        Barrier(checkpoint_id=CheckpointId(1), trigger_ms=0, is_savepoint=True, is_native=True),
        Barrier(checkpoint_id=CheckpointId(1), trigger_ms=0, is_final=True),
        Barrier(checkpoint_id=CheckpointId(1), trigger_ms=0, overtakes=True),
        Barrier(checkpoint_id=CheckpointId(1), trigger_ms=0, location="s3://ein-ort/ß/chk-1"),
        CancelCheckpoint(CheckpointId(7)),
        Barrier(checkpoint_id=CheckpointId(1), trigger_ms=0, is_savepoint=True, is_final=True),
        Watermark(MIN_WATERMARK_MS),
        Watermark(MAX_WATERMARK_MS),
        WatermarkStatus(is_idle=True),
        WatermarkStatus(is_idle=False),
        EndOfInput(),
    ],
)
def test_marks_survive_the_wire(mark: Barrier | Watermark | EndOfInput) -> None:
    received = reading(mark_frame(7, mark)).read()

    assert received is not None
    assert (received.number, mark_of(received)) == (7, mark)


def test_a_grant_survives_the_wire() -> None:
    received = reading(grant_frame(1, 2**40, 2**14), BACKWARD).read()

    assert received is not None
    assert grant_of(received) == (2**40, 2**14)


def test_counts_of_bytes_survive_the_wire() -> None:
    received = reading(bytes_frame(Kind.CREDIT, 1, 2**40), BACKWARD).read()

    assert received is not None
    assert bytes_of(received) == 2**40


@pytest.mark.parametrize(
    ("kind", "length", "claim"),
    [
        (0, 0, "a frame of unknown kind 0"),
        (255, 4_000_000_000, "a frame of unknown kind 255"),
        (Kind.RECORDS, 4_000_000_000, "1048576 are allowed"),
        (Kind.DICTIONARIES, (1 << 20) + 1, "1048576 are allowed"),
        (Kind.SCHEMA, 1_001, "1000 are allowed"),
        (Kind.OPEN, 51, "50 are allowed"),
        (Kind.BARRIER, 90, "a BARRIER frame of 90 bytes; 89 are allowed"),
        (Kind.WATERMARK, 1 << 31, "a WATERMARK frame of 2147483648 bytes"),
        (Kind.END, 1, "END frame of 1 bytes"),
        (Kind.CREDIT, 8, "a CREDIT frame came the wrong way"),
    ],
)
def test_an_absurd_header_is_refused_before_its_body(kind: int, length: int, claim: str) -> None:
    reader = reading(HEADER.pack(kind, 0, length))
    before = pa.total_allocated_bytes()

    with pytest.raises(ProtocolError, match=claim):
        reader.read()

    # The memory of other tests may be freed meanwhile, so the total may shrink.
    assert pa.total_allocated_bytes() <= before


@pytest.mark.parametrize("kept", [1, HEADER.size - 1, HEADER.size, HEADER.size + 99])
def test_a_torn_frame_is_not_an_end(kept: int) -> None:
    whole = frame(Kind.RECORDS, 0, bytes(100))
    reader = reading(frame(Kind.END, 0) + whole[:kept])
    reader.read()

    with pytest.raises(ProtocolError, match="the connection ended"):
        reader.read()


def test_unknown_flags_of_a_barrier_are_refused() -> None:
    received = Frame(Kind.BARRIER, 0, pa.py_buffer(bytes(24) + b"\x80"))

    with pytest.raises(ProtocolError, match="unknown flags"):
        mark_of(received)


@pytest.mark.parametrize(
    ("body", "claim"),
    [(bytes(24), "a BARRIER frame of 24 bytes"), (bytes(25) + b"\xff", "is not UTF-8")],
)
def test_a_barrier_that_is_cut_off_or_garbled_is_refused(body: bytes, claim: str) -> None:
    with pytest.raises(ProtocolError, match=claim):
        mark_of(Frame(Kind.BARRIER, 0, pa.py_buffer(body)))


def test_received_batches_are_views_of_the_received_bytes() -> None:
    batch = pa.record_batch({"n": range(100_000)})
    frames = sent_as(RecordsEncoder(ChannelId("a"), 0, LIMITS), batch)
    decoder = RecordsDecoder()
    decoder.on_schema(frames[0])
    before = pa.total_allocated_bytes()

    received = decoder.decode(frames[1])

    assert received.equals(batch)
    assert pa.total_allocated_bytes() == before


def test_the_schema_is_sent_once() -> None:
    encoder = RecordsEncoder(ChannelId("a"), 0, LIMITS)

    kinds = [[f.kind for f in sent_as(encoder, BATCH)] for _ in range(3)]

    assert kinds == [[Kind.SCHEMA, Kind.RECORDS], [Kind.RECORDS], [Kind.RECORDS]]


def test_records_before_their_schema_are_refused() -> None:
    frames = sent_as(RecordsEncoder(ChannelId("a"), 0, LIMITS), BATCH)

    with pytest.raises(ProtocolError, match="records came before their schema"):
        RecordsDecoder().decode(frames[1])


@pytest.mark.parametrize("seed", range(50))
def test_a_damaged_batch_is_refused_or_read_and_never_fatal(seed: int) -> None:
    rng = random.Random(seed)
    frames = sent_as(RecordsEncoder(ChannelId("a"), 0, LIMITS), BATCH)
    body = bytearray(frames[1].body.to_pybytes())
    for _ in range(rng.randint(1, 8)):
        body[rng.randrange(len(body))] = rng.randrange(256)
    decoder = RecordsDecoder()
    decoder.on_schema(frames[0])

    with contextlib.suppress(ProtocolError):
        batch = decoder.decode(Frame(Kind.RECORDS, 0, pa.py_buffer(bytes(body))))
        assert batch.schema == BATCH.schema


@pytest.mark.parametrize("kind", [Kind.RECORDS, Kind.DICTIONARIES])
@pytest.mark.parametrize("body", [b"", bytes(100), b"\xff" * 64], ids=["none", "zeros", "ones"])
def test_bytes_that_are_not_a_batch_are_refused(kind: Kind, body: bytes) -> None:
    decoder = RecordsDecoder()
    decoder.on_schema(sent_as(RecordsEncoder(ChannelId("a"), 0, LIMITS), BATCH)[0])

    with pytest.raises(ProtocolError, match="a batch cannot be read"):
        decoder.decode(Frame(kind, 0, pa.py_buffer(body)))


def test_bytes_that_are_not_a_schema_are_refused() -> None:
    with pytest.raises(ProtocolError, match="a schema cannot be read"):
        RecordsDecoder().on_schema(Frame(Kind.SCHEMA, 0, pa.py_buffer(bytes(64))))


def test_a_batch_above_the_frame_limit_is_refused_naming_the_setting() -> None:
    encoder = RecordsEncoder(ChannelId("a[0]>b.0[1]"), 0, LIMITS)
    batch = pa.record_batch({"n": range(1 << 17)})

    with pytest.raises(Rejected, match=r"131072 rows on channel a\[0\]>b.0\[1\].*max_frame_bytes"):
        encoder.encode(batch)


def sent_as(encoder: RecordsEncoder, batch: pa.RecordBatch) -> list[Frame]:
    parts, _ = encoder.encode(batch)
    reader = reading(b"".join(memoryview(part) for part in parts))
    frames = []
    while (received := reader.read()) is not None:
        frames.append(received)
    return frames


def reading(stream: bytes, expected: frozenset[Kind] = FORWARD) -> FrameReader:
    return reading_pieces(stream, random.Random(0), expected, longest=1 << 20)


def reading_pieces(
    stream: bytes,
    rng: random.Random,
    expected: frozenset[Kind] = FORWARD,
    longest: int = 300_000,
) -> FrameReader:
    """Returns a reader of a connection that carries the stream in pieces and then ends."""
    near, far = socket.socketpair()

    def send() -> None:
        position = 0
        with far:
            while position < len(stream):
                piece = stream[position : position + rng.randint(1, longest)]
                far.sendall(piece)
                position += len(piece)

    threading.Thread(target=send, daemon=True).start()
    return FrameReader(near, expected, LIMITS)
