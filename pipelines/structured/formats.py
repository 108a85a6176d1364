"""The text files of a Structured Streaming checkpoint, decoded.

It decides which content is whole. Pure: bytes in, values out; `Damaged` says what is wrong.
Source: Spark 4.3, `OffsetSeqLog`, `CommitLog`, `CompactibleFileStreamLog`, `OperatorStateMetadata`,
and Hadoop's `ChecksumFileSystem` for the `.crc` files.
"""

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from pipelines.domain.errors import UNDECODABLE

OFFSET_VERSIONS = ("v1", "v2")
COMMIT_VERSIONS = ("v1", "v2", "v3")
OPERATOR_VERSIONS = ("v1", "v2")
NO_OFFSET = "-"
"""The text in place of an offset if the source has given none yet."""

SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
STORE_CLASS = "spark.sql.streaming.stateStore.providerClass"
CRC_HEADER = b"crc\0"
T = TypeVar("T")


class Problem(StrEnum):
    EMPTY = "empty"
    TORN = "torn"  # cut off, or no such file
    UNKNOWN_VERSION = "unknown version"
    CHECKSUM = "checksum"  # the bytes are not those that were written
    LENGTH = "length"
    MISSING = "missing"


class Damaged(Exception):
    """The content cannot be used; the message is half a sentence that begins with a verb."""

    def __init__(self, problem: Problem, message: str) -> None:
        super().__init__(message)
        self.problem = problem


class SourceKind(StrEnum):
    KAFKA = "kafka"
    FILE = "file"
    RATE = "rate"
    OTHER = "other"
    NONE = "none"  # no offset yet


@dataclass(frozen=True, slots=True)
class SourceOffset:
    """`positions` are {topic-partition: next offset} for Kafka and {"logOffset": n} for files.

    They are {"offset": n} (rows) or {"seconds": n} for rate, and empty for other sources.
    """

    index: int
    name: str  # only with source evolution; else empty
    text: str  # as it is in the file
    kind: SourceKind
    positions: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Plan:
    """One file of `offsets/`."""

    version: str
    watermark_ms: int
    planned_ms: int
    conf: Mapping[str, str]
    sources: tuple[SourceOffset, ...]


UniqueIds = Mapping[int, tuple[tuple[str, ...], ...]]
"""{operator: for each partition, the ids of its stores in the order of the metadata}"""


@dataclass(frozen=True, slots=True)
class Commit:
    """One file of `commits/`."""

    version: str
    next_watermark_ms: int
    unique_ids: UniqueIds


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A line of a source's or a sink's log. `batch_id` is -1 if the line has none."""

    line: str
    path: str
    batch_id: int
    size_bytes: int
    modified_ms: int


@dataclass(frozen=True, slots=True)
class StateSchema:
    """Field names and types of a store's keys and values, as Spark writes them."""

    key: tuple[tuple[str, str], ...]
    value: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class StoreInfo:
    name: str
    partitions: int


@dataclass(frozen=True, slots=True)
class OperatorInfo:
    operator_id: int
    name: str
    stores: tuple[StoreInfo, ...]


LONG_MAX = 2**63 - 1
_Long = Annotated[int, Meta(ge=-LONG_MAX - 1, le=LONG_MAX)]
_Millis = Annotated[int, Meta(ge=0, le=253_402_300_799_000)]
"""In ms since the epoch, up to the year 9999."""


class _Metadata(msgspec.Struct):
    id: str


class _PlanHead(msgspec.Struct):
    batchWatermarkMs: _Long  # noqa: N815
    batchTimestampMs: _Millis  # noqa: N815
    conf: dict[str, str] = msgspec.field(default_factory=dict)


class _CommitBody(msgspec.Struct):
    nextBatchWatermarkMs: _Long = 0  # noqa: N815
    stateUniqueIds: dict[int, list[list[str]]] | None = None  # noqa: N815


class _LogLine(msgspec.Struct):
    path: str
    batchId: _Long = -1  # noqa: N815
    size: _Long = 0
    modificationTime: _Long = 0  # noqa: N815


class _OperatorName(msgspec.Struct):
    operatorId: int  # noqa: N815
    operatorName: str  # noqa: N815


class _Store(msgspec.Struct):
    storeName: str  # noqa: N815
    numPartitions: int  # noqa: N815


class _OperatorBody(msgspec.Struct):
    operatorInfo: _OperatorName  # noqa: N815
    stateStoreInfo: list[_Store]  # noqa: N815


_METADATA = msgspec.json.Decoder(_Metadata)
_PLAN_HEAD = msgspec.json.Decoder(_PlanHead)
_COMMIT = msgspec.json.Decoder(_CommitBody)
_LOG_LINE = msgspec.json.Decoder(_LogLine)
_OPERATOR = msgspec.json.Decoder(_OperatorBody)


def is_number(name: str) -> bool:
    """True if the name of a file or folder can be that of a batch, operator or partition."""
    return re.fullmatch("[0-9]{1,18}", name) is not None


def query_id_of(content: bytes) -> str:
    """Reads the query id from the content of the file `metadata`. Raises Damaged."""
    _check_filled(content)
    return _decoded(_METADATA, content).id


def plan_of(content: bytes) -> Plan:
    """Raises Damaged."""
    version, lines = _versioned(content, OFFSET_VERSIONS)
    if len(lines) < 2:
        raise Damaged(Problem.TORN, "ends before the offset of a source")
    head = _decoded(_PLAN_HEAD, lines[0])
    evolves = version == "v2"
    sources = tuple(
        _source_offset(index, _text_of(line), evolves=evolves)
        for index, line in enumerate(lines[1:])
    )
    return Plan(version, head.batchWatermarkMs, head.batchTimestampMs, head.conf, sources)


def commit_of(content: bytes) -> Commit:
    """Raises Damaged."""
    version, lines = _versioned(content, COMMIT_VERSIONS)
    if not lines:
        raise Damaged(Problem.TORN, "ends after its first line")
    body = _decoded(_COMMIT, lines[0])
    ids = {
        operator: tuple(tuple(stores) for stores in partitions)
        for operator, partitions in (body.stateUniqueIds or {}).items()
    }
    return Commit(version, body.nextBatchWatermarkMs, ids)


def log_entries_of(content: bytes) -> list[LogEntry]:
    """Reads the entries of a file in `sources/I/` or `_spark_metadata/`. Raises Damaged."""
    _, lines = _versioned(content, ("v1",))
    entries = []
    for line in lines:
        found = _decoded(_LOG_LINE, line)
        entries.append(
            LogEntry(_text_of(line), found.path, found.batchId, found.size, found.modificationTime)
        )
    return entries


def operator_of(content: bytes) -> OperatorInfo:
    """Raises Damaged."""
    _, lines = _versioned(content, OPERATOR_VERSIONS)
    if not lines:
        raise Damaged(Problem.TORN, "ends after its first line")
    body = _decoded(_OPERATOR, lines[0])
    stores = tuple(StoreInfo(each.storeName, each.numPartitions) for each in body.stateStoreInfo)
    return OperatorInfo(body.operatorInfo.operatorId, body.operatorInfo.operatorName, stores)


def schema_of(content: bytes) -> StateSchema | None:
    """Reads `_metadata/schema`.

    Returns None for a version with several column families, which is not compared. Raises Damaged.
    """
    version, at = _text_at(content, 0)
    if version != "v2":
        return None
    parts = []
    for _ in range(2):
        count = int.from_bytes(content[at : at + 4], "big")
        at, text = at + 4, ""
        for _ in range(count):
            piece, at = _text_at(content, at)
            text += piece
        parts.append(_fields_of(text))
    return StateSchema(*parts)


def _text_at(content: bytes, at: int) -> tuple[str, int]:
    """Reads a text that Java's `writeUTF` wrote: two bytes of length, then the text."""
    end = at + 2 + int.from_bytes(content[at : at + 2], "big")
    if len(content) < max(end, at + 2):
        raise Damaged(Problem.TORN, "breaks off")
    return content[at + 2 : end].decode("utf-8", "replace"), end


class _Field(msgspec.Struct):
    name: str
    type: Any


class _Fields(msgspec.Struct):
    fields: list[_Field]


def _fields_of(text: str) -> tuple[tuple[str, str], ...]:
    """Returns names and types; a type that has fields itself is written as JSON."""
    found = _decoded(msgspec.json.Decoder(_Fields), text.encode()).fields
    return tuple(
        (f.name, f.type if isinstance(f.type, str) else msgspec.json.encode(f.type).decode())
        for f in found
    )


BLOCK = b"LZ4Block"
LAST_BLOCK_BYTES = 21
"""An empty block ends a stream: its name, one byte of kind, and three zero numbers of 4 bytes."""


def check_blocks(content: bytes) -> None:
    """Raises Damaged if Spark's LZ4 stream wrote the state file and its end is missing."""
    if content.startswith(BLOCK):
        end = content[-LAST_BLOCK_BYTES:]
        if not end.startswith(BLOCK) or end[len(BLOCK) + 1 :] != bytes(12):
            raise Damaged(Problem.TORN, "breaks off: its last block is missing")


def crc_length_of(content_bytes: int, bytes_per_sum: int = 512) -> int:
    """Returns the length of Hadoop's checksum file for a file of `content_bytes`."""
    return 8 + 4 * -(-content_bytes // bytes_per_sum)


def check_crc(content: bytes, crc: bytes) -> None:
    """Compares a file with Hadoop's checksums of it. Raises Damaged."""
    if len(crc) < 8 or crc[:4] != CRC_HEADER:
        raise Damaged(Problem.TORN, "has a checksum file that is itself damaged")
    step = int.from_bytes(crc[4:8], "big")
    if step <= 0 or len(crc) != crc_length_of(len(content), step):
        raise Damaged(Problem.LENGTH, "is not as long as its checksum file says")
    for number, start in enumerate(range(0, len(content), step)):
        expected = int.from_bytes(crc[8 + 4 * number : 12 + 4 * number], "big")
        if zlib.crc32(content[start : start + step]) != expected:
            raise Damaged(
                Problem.CHECKSUM,
                f"differs from its checksum within bytes {start} to {start + step}",
            )


def crc_of(content: bytes, step: int = 512) -> bytes:
    """Returns the checksums that Hadoop's local file system would write for this content."""
    sums = (zlib.crc32(content[at : at + step]) for at in range(0, len(content), step))
    return b"".join((CRC_HEADER, step.to_bytes(4, "big"), *(s.to_bytes(4, "big") for s in sums)))


def _source_offset(index: int, line: str, *, evolves: bool) -> SourceOffset:
    name = ""
    if evolves:
        name, colon, line = line.partition(":")
        if not colon:
            raise Damaged(Problem.TORN, f"has no name before the offset of source {index}")
    if line == NO_OFFSET:
        return SourceOffset(index, name, line, SourceKind.NONE, {})
    try:
        value = msgspec.json.decode(line)
    except UNDECODABLE as error:
        raise Damaged(Problem.TORN, f"breaks off in the offset of source {index}") from error
    return SourceOffset(index, name, line, *_positions(value))


def _positions(value: Any) -> tuple[SourceKind, Mapping[str, int]]:
    if isinstance(value, int):
        return SourceKind.RATE, {"seconds": value}
    if not isinstance(value, dict):
        return SourceKind.OTHER, {}
    if isinstance(log_offset := value.get("logOffset"), int):
        return SourceKind.FILE, {"logOffset": log_offset}
    if value.keys() == {"offset", "timestamp"} and isinstance(offset := value["offset"], int):
        return SourceKind.RATE, {"offset": offset}
    if value and all(_are_partitions(each) for each in value.values()):
        return SourceKind.KAFKA, {
            f"{topic}-{partition}": offset
            for topic, partitions in value.items()
            for partition, offset in partitions.items()
        }
    return SourceKind.OTHER, {}


def _are_partitions(value: Any) -> bool:
    return isinstance(value, dict) and all(
        key.isdigit() and isinstance(each, int) for key, each in value.items()
    )


def _versioned(content: bytes, known: tuple[str, ...]) -> tuple[str, list[bytes]]:
    _check_filled(content)
    first, *lines = content.split(b"\n")
    version = first.decode("utf-8", "replace").strip()
    if version not in known:
        raise Damaged(
            Problem.UNKNOWN_VERSION, f"begins with {version[:20]!r}, not with {' or '.join(known)}"
        )
    return version, [line for line in lines if line]


def _text_of(line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise Damaged(Problem.TORN, f"is no text: {error}") from error


def _check_filled(content: bytes) -> None:
    if not content.strip():
        raise Damaged(Problem.EMPTY, "is empty")


def _decoded(decoder: "msgspec.json.Decoder[T]", content: bytes) -> T:
    try:
        return decoder.decode(content)
    except UNDECODABLE as error:
        raise Damaged(Problem.TORN, f"is no whole JSON: {error}") from error
