"""Parsers of input from outside the process give a value or the error that callers handle.

They do so for any bytes, and raise no other error. `tests/fuzzing.py` draws both plain bytes and
valid content with a few bytes or values changed.
"""

import socket
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from pipelines.bus.announce import announce_nothing
from pipelines.bus.inbox import Inbox, submit
from pipelines.bus.journal import (
    JournalCutShort,
    JournalWriter,
    UndecodableEvent,
    every_envelope,
    newest_event,
)
from pipelines.bus.lease import Lease, newest_sign, owner_of
from pipelines.channels.channel import NetworkLimits
from pipelines.channels.handshake import (
    ANSWER_BYTES,
    HandshakeRefused,
    prove_token,
    verify_token,
)
from pipelines.channels.wire import (
    BACKWARD,
    FORWARD,
    FrameReader,
    Kind,
    RecordsDecoder,
    RecordsEncoder,
    bytes_frame,
    bytes_of,
    grant_frame,
    grant_of,
    mark_frame,
    mark_of,
    origins_of,
)
from pipelines.domain.commands import Cancel
from pipelines.domain.elements import Barrier, Watermark
from pipelines.domain.errors import CorruptSnapshot, ProtocolError
from pipelines.domain.events import RunEnded
from pipelines.domain.ids import Attempt, ChannelId, CheckpointId, RequestId, RunId, Uid
from pipelines.domain.run import DriverSign, RunDirectory
from pipelines.domain.snapshots import (
    FORMAT_VERSION,
    CheckpointKind,
    Manifest,
    OperatorSnapshot,
    SubtaskSnapshot,
)
from pipelines.domain.status import JobStatus
from pipelines.runtime.clocks import SystemClock
from pipelines.runtime.control import MASTER_DECODER, SLOT_DECODER, Beat, ControlLink, Inject
from pipelines.storage.manifests import seal, unseal
from pipelines.structured import formats
from pipelines.structured.formats import Damaged
from tests.fuzzing import anything_like, drawn, fuzz, only_raising

TOKEN = "token"
LIMITS = NetworkLimits(max_frame_bytes=1 << 16)
ATTEMPT = Attempt(1)
RUN = RunId("run-1")


def sent(content: bytes, receive: Callable[[socket.socket], Any]) -> Any:
    """Returns the result of `receive` for content that the peer sends before it hangs up."""
    near, far = socket.socketpair()

    def talk() -> None:
        with suppress(OSError):
            far.sendall(content)
        with suppress(OSError):
            far.shutdown(socket.SHUT_WR)
            while far.recv(1 << 16):
                pass

    thread = threading.Thread(target=talk)
    thread.start()
    try:
        return receive(near)
    finally:
        near.close()
        thread.join()
        far.close()


def an_answer() -> bytes:
    """Returns the answer of a client that knows the token, to another challenge."""
    near, far = socket.socketpair()
    with closing(near), closing(far):
        near.sendall(b"ftdash/1" + bytes(32))
        near.shutdown(socket.SHUT_WR)
        with suppress(ProtocolError):
            prove_token(far, TOKEN, attempt=ATTEMPT, slot=0)
        return near.recv(ANSWER_BYTES)


@drawn("server handshake", anything_like(an_answer()))
def test_a_server_rejects_a_client_that_sends_arbitrary_bytes(content: bytes) -> None:
    with pytest.raises(HandshakeRefused):
        sent(content, lambda near: verify_token(near, TOKEN, attempt=ATTEMPT, timeout_ms=2_000))


@drawn("client handshake", anything_like(b"ftdash/1" + bytes(32) + bytes([0]) + bytes(32)))
def test_a_client_rejects_a_server_that_sends_arbitrary_bytes(content: bytes) -> None:
    with pytest.raises((ProtocolError, OSError)):
        sent(
            content,
            lambda near: prove_token(near, TOKEN, attempt=ATTEMPT, slot=0, timeout_ms=2_000),
        )


def a_forward_stream() -> bytes:
    batch = pa.record_batch({"n": [1, 2, 3], "s": ["a", None, "c"]})
    encoder = RecordsEncoder(ChannelId("words to counts"), 1, LIMITS)
    parts, _ = encoder.encode(batch)
    barrier = Barrier(checkpoint_id=CheckpointId(3), trigger_ms=5, location="file:///points/3")
    return b"".join(map(bytes, parts)) + mark_frame(1, Watermark(7)) + mark_frame(1, barrier)


def frames_of(near: socket.socket, expected: frozenset[Kind]) -> int:
    """Reads frames and their contents as a peer does, and returns how many frames it read."""
    reader, decoder, count = FrameReader(near, expected, LIMITS), RecordsDecoder(), 0
    while (frame := reader.read()) is not None:
        count += 1
        match frame.kind:
            case Kind.OPEN:
                pass
            case Kind.SCHEMA:
                decoder.on_schema(frame)
            case Kind.RECORDS | Kind.DICTIONARIES:
                decoder.decode(frame)
            case Kind.ORIGIN:
                origins_of(frame)
            case Kind.GRANT:
                grant_of(frame)
            case Kind.CREDIT:
                bytes_of(frame)
            case Kind.CLOSED:
                pass
            case _:
                mark_of(frame)
    return count


@drawn("forward frames", anything_like(a_forward_stream()))
def test_a_receiver_reads_frames_or_raises_a_protocol_error(content: bytes) -> None:
    with suppress(ProtocolError):
        assert sent(content, lambda near: frames_of(near, FORWARD)) >= 0


@drawn("backward frames", anything_like(grant_frame(1, 9, 5) + bytes_frame(Kind.CREDIT, 1, 4)))
def test_a_sender_reads_frames_or_raises_a_protocol_error(content: bytes) -> None:
    with suppress(ProtocolError):
        assert sent(content, lambda near: frames_of(near, BACKWARD)) >= 0


def test_the_streams_that_the_fuzzer_changes_are_valid() -> None:
    credit = grant_frame(1, 9, 5) + bytes_frame(Kind.CREDIT, 1, 4)

    assert sent(a_forward_stream(), lambda near: frames_of(near, FORWARD)) == 4
    assert sent(credit, lambda near: frames_of(near, BACKWARD)) == 2


def a_control_frame(message: msgspec.Struct) -> bytes:
    payload = msgspec.json.encode(message)
    return len(payload).to_bytes(4, "big") + payload


INJECT = Inject(
    checkpoint_id=CheckpointId(1),
    trigger_ms=1,
    savepoint_format=None,
    is_final=False,
    location="file:///points/1",
)


@pytest.mark.parametrize("decoder", [SLOT_DECODER, MASTER_DECODER])
@drawn("control frames", anything_like(a_control_frame(INJECT), a_control_frame(Beat())))
def test_the_control_connection_reads_messages_or_raises_a_protocol_error(
    decoder: msgspec.json.Decoder[Any], content: bytes
) -> None:
    def receive(near: socket.socket) -> int:
        link = ControlLink(near, decoder, lambda: 0.0)
        count = 0
        while link.receive() is not None:
            count += 1
        return count

    with suppress(ProtocolError):
        assert sent(content, receive) >= 0


MANIFEST = Manifest(
    format_version=FORMAT_VERSION,
    pipeline="räume",
    run_id=RUN,
    attempt=ATTEMPT,
    checkpoint_id=CheckpointId(1),
    kind=CheckpointKind.CHECKPOINT,
    trigger_ms=1_700_000_000_000,
    completed_ms=1_700_000_000_100,
    parallelism=1,
    max_parallelism=128,
    ancestors=[(RunId("run-0"), CheckpointId(7))],
    operator_ids={Uid("count"): "0" * 32},
    subtasks=[
        SubtaskSnapshot(
            vertex=Uid("count"),
            subtask=0,
            operators=[
                OperatorSnapshot(
                    uid=Uid("count"),
                    states=[],
                    positions={"splits": [[0, 5]]},
                    committables=["transaction 1"],
                    counters={"late": 2},
                    watermark_ms=-5,
                )
            ],
        )
    ],
)


@drawn("manifest", anything_like(seal(MANIFEST)))
def test_a_manifest_is_read_as_written_or_reported_as_corrupt(content: bytes) -> None:
    with suppress(CorruptSnapshot):
        assert unseal("here", content) == MANIFEST


def a_journal() -> bytes:
    with TemporaryDirectory() as home:
        directory = RunDirectory.of(Path(home), "counts", RUN)
        with JournalWriter(directory, RUN, SystemClock(), announce_nothing) as journal:
            for _ in range(3):
                journal.append(RunEnded(status=JobStatus.FINISHED, reason="over"), ATTEMPT)
        return directory.journal_file.read_bytes()


@drawn("journal", anything_like(a_journal()))
def test_a_damaged_journal_raises_only_errors_of_its_own_kind(content: bytes) -> None:
    with TemporaryDirectory() as home:
        path = Path(home) / "journal.jsonl"
        path.write_bytes(content)

        with suppress(UndecodableEvent, JournalCutShort):
            assert all(each.sequence >= 0 for each in every_envelope(path))
        with suppress(UndecodableEvent):
            assert isinstance(newest_event(path, RunEnded), RunEnded | None)


CANCEL = Cancel(request_id=RequestId("first"), requested_by="ann", reason="over")


@drawn("request", anything_like(msgspec.json.encode(CANCEL)))
def test_an_invalid_request_file_does_not_block_the_next_request(content: bytes) -> None:
    with TemporaryDirectory() as home:
        directory = RunDirectory.of(Path(home), "counts", RUN)
        submit(directory, CANCEL)
        (file,) = directory.requests.glob("*.json")
        file.write_bytes(content)
        following = msgspec.structs.replace(CANCEL, request_id=RequestId("then"))
        submit(directory, following)

        pending = Inbox(directory).pending()

        assert following in pending
        assert file.with_suffix(".unreadable").exists() == (pending == [following])


@drawn("lease", anything_like(b'{"pid":1,"process_began_s":1.5,"host":"a","acquired_at":2.5}'))
def test_an_unreadable_lease_record_does_not_keep_a_successor_out(
    content: bytes,
) -> None:
    with TemporaryDirectory() as home:
        directory = RunDirectory.of(Path(home), "counts", RUN)
        with Lease.acquire(directory) as lease:
            directory.lease_file.write_bytes(content)
            owner_of(directory)
        assert lease.epoch == 1
        with Lease.acquire(directory) as successor:
            assert successor.epoch >= 1


@drawn("sign of life", anything_like(b'{"epoch":1,"sequence":1,"moves":1}   '))
def test_an_altered_sign_of_life_is_read_or_ignored(content: bytes) -> None:
    with TemporaryDirectory() as home:
        directory = RunDirectory.of(Path(home), "counts", RUN)
        directory.path.mkdir(parents=True)
        directory.sign_file.write_bytes(content)

        found = newest_sign(directory)

        assert found is None or isinstance(found, DriverSign)


PLAN = (
    b'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{"spark.sql.shuffle.partitions":"2"}}'
    b'\n{"logOffset":3}\n{"topic":{"0":5}}\n-'
)
FIELDS = b'{"fields":[{"name":"key","type":"long"}]}'
SCHEMA = b"\x00\x02v2" + 2 * (b"\x00\x00\x00\x01" + len(FIELDS).to_bytes(2, "big") + FIELDS)
PARSERS: dict[str, tuple[Callable[[bytes], object], bytes]] = {
    "metadata": (formats.query_id_of, b'{"id":"0f0e9a1c-7b1e-4c55-8a6c-0d0e5f1a2b3c"}'),
    "offsets": (formats.plan_of, PLAN),
    "commits": (
        formats.commit_of,
        b'v2\n{"nextBatchWatermarkMs":0,"stateUniqueIds":{"0":[["a"],["b"]]}}',
    ),
    "file log": (
        formats.log_entries_of,
        b'v1\n{"path":"file:///a","timestamp":1,"batchId":0}\n',
    ),
    "operator metadata": (
        formats.operator_of,
        b'v1\n{"operatorInfo":{"operatorId":0,"operatorName":"dedupe"},"stateStoreInfo":'
        b'[{"storeName":"default","numColsPrefixKey":0,"numPartitions":2}]}',
    ),
    "schema": (formats.schema_of, SCHEMA),
}


@pytest.mark.parametrize("name", PARSERS)
def test_a_file_of_a_spark_query_is_read_or_reported_as_damaged(name: str) -> None:
    parse, valid = PARSERS[name]

    assert parse(valid) is not Ellipsis
    fuzz(name, valid, only_raising(parse, Damaged))


CHECKED = bytes(600)


@drawn("checksums", anything_like(formats.crc_of(CHECKED)))
def test_a_wrong_checksum_is_never_accepted(content: bytes) -> None:
    with suppress(Damaged):
        assert formats.check_crc(CHECKED, content) is None
        assert content == formats.crc_of(CHECKED, int.from_bytes(content[4:8], "big"))
