"""The parts of a checkpoint: files with length and digest, listed in a manifest.

`check_expansion` bounds how large a stored file may become when it is unpacked.

State belongs to a uid. If an author renames an operator, a person maps the old name to the new one
at the restore. The point itself stays as it is; each process that reads it for that run reads it
under the new names (`renamed`).

Source: Flink's `_metadata` (master state, operator states, handles). Here it is JSON, so that it
can be read without this program, and it is written last: a directory without one is garbage.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum

import msgspec

from pipelines.domain.errors import CorruptSnapshot, Rejected
from pipelines.domain.ids import (
    Attempt,
    ChannelId,
    CheckpointId,
    RunId,
    Uid,
    channel_ends,
    channel_id,
    operator_id,
)
from pipelines.domain.key_groups import KeyGroupRange, Redistribution
from pipelines.domain.ledger import OutputShare
from pipelines.domain.run import ShippedCode
from pipelines.domain.status import CheckpointKind, SavepointFormat

FORMAT_VERSION = 3
"""Since 2, a state may consist of several files, some of them shared with other points. Since 3,
digests are BLAKE3, and say so."""

Json = object
"""Plain JSON values; each connector converts its own with `msgspec.convert`, strictly."""


class FileHandle(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One immutable file of a snapshot, by its name in the checkpoint's directory.

    If it is shared with other checkpoints, it is in the directory `shared` next to that one.
    """

    name: str
    length: int  # bytes
    digest: str  # of the content, hexadecimal; see `disk.files`
    content: bytes | None = None  # the file itself, if the storage is the coordinator's memory
    is_shared: bool = False


class StateFormat(StrEnum):
    """How to read the files of a state."""

    ROWS = "rows"  # one file with every row
    DELTAS = "deltas"  # a file with every row, and files with the changes since, in order
    ROCKSDB = "rocksdb"  # a database: `file` is its MANIFEST, the parts are its other files


class StatePart(msgspec.Struct, frozen=True, kw_only=True):
    """One more file of a state. `name` is a database file's name in its directory."""

    name: str
    file: FileHandle


class StateHandle(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The rows of one state of one subtask. `schema` maps column to Arrow type name.

    A state of a `Redistribution` kind belongs to no key: its `key_groups` are the subtask's and say
    nothing about its rows.
    """

    state: str
    kind: str  # "table" or "batches", or a `Redistribution`
    file: FileHandle
    key_groups: tuple[int, int]  # first and last, included
    rows: int
    schema: dict[str, str]
    format: StateFormat = StateFormat.ROWS
    parts: list[StatePart] = []

    @property
    def files(self) -> list[FileHandle]:
        return [self.file, *(part.file for part in self.parts)]

    @property
    def redistribution(self) -> Redistribution | None:
        return Redistribution(self.kind) if self.kind in set(Redistribution) else None

    @property
    def key_group_range(self) -> KeyGroupRange:
        return KeyGroupRange(*self.key_groups)


class InFlightHandle(msgspec.Struct, frozen=True, kw_only=True):
    """Records that the barrier has overtaken on one channel; a restore reads them before new ones.

    With `is_output`, they waited at the writer, behind the queue of the reader.
    """

    channel: ChannelId
    is_output: bool
    file: FileHandle
    rows: int


class SegmentHandle(msgspec.Struct, frozen=True, kw_only=True):
    """Records that a sink publishes when `checkpoint_id`, or a later one, has completed.

    `marker` names the segment at the target, so that it is published once.
    """

    checkpoint_id: CheckpointId
    marker: Json
    file: FileHandle
    rows: int


class OperatorSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One operator of one subtask at the cut."""

    uid: Uid
    states: list[StateHandle] = []
    positions: Json = None  # a source's: where to read next
    reserved: Json = None  # at most once: where an attempt restored from this point begins
    committables: list[Json] = []  # a sink's: prepared, to be committed on completion
    segments: list[SegmentHandle] = []  # a sink's: to be published on completion
    quarantined: list[Json] = []  # a source's: prepared, to be committed on completion
    replayed: Json = None  # a source's: how far its quarantine has been replayed
    outputs: list[OutputShare] = []  # a sink's: its output that may be in no older point
    counters: dict[str, int] = {}
    watermark_ms: int | None = None
    assigned_ms: int | None = None  # the event time that the operator itself had assigned
    # First and last key group, and how far event time had come there; empty: to the watermark.
    key_times_ms: list[tuple[int, int, int]] = []

    @property
    def has_output(self) -> bool:
        """True if a sink had prepared output that may not have been committed."""
        return bool(self.committables or self.segments)


class SubtaskSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One vertex's subtask at the cut: the contents of an acknowledgement."""

    vertex: Uid
    subtask: int
    operators: list[OperatorSnapshot]
    in_flight: list[InFlightHandle] = []  # of its inputs, and of its outputs

    @property
    def in_flight_bytes(self) -> int:
        return sum(handle.file.length for handle in self.in_flight)


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format_version: int
    pipeline: str
    run_id: RunId
    attempt: Attempt
    checkpoint_id: CheckpointId
    kind: CheckpointKind
    savepoint_format: SavepointFormat | None = None  # None: no savepoint
    trigger_ms: int
    completed_ms: int
    parallelism: int
    max_parallelism: int
    ancestors: list[tuple[RunId, CheckpointId]]  # the points it descends from, oldest first
    operator_ids: dict[Uid, str]  # uid to Flink's operator id
    subtasks: list[SubtaskSnapshot]
    code: ShippedCode | None = None  # that ran in every slot; None: an installed package did
    parallelisms: dict[Uid, int] = {}  # of operators with a parallelism of their own

    def parallelism_of(self, uid: Uid) -> int:
        """How many subtasks of this operator the point was cut from."""
        return self.parallelisms.get(uid, self.parallelism)

    def state_files(self) -> Iterator[FileHandle]:
        """Files of keyed states; a shared file once for each state that refers to it."""
        for subtask in self.subtasks:
            for operator in subtask.operators:
                for state in operator.states:
                    yield from state.files

    @property
    def state_bytes(self) -> int:
        return sum(file.length for file in self.state_files())


EXPANSION_MAX = 256
"""How many bytes a stored byte may become. Our codecs, Snappy and LZ4, stay below it."""

SLACK_BYTES = 64 << 10
"""The additional bytes that small files may need, for dictionaries and headers."""


def check_expansion(name: str, stored: int, unpacked: int) -> None:
    """Takes sizes in bytes. Raises CorruptSnapshot naming the file."""
    if unpacked > EXPANSION_MAX * stored + SLACK_BYTES:
        raise CorruptSnapshot(
            f"{name} would unpack {stored} bytes into {unpacked}; it was not written here and is"
            " not unpacked."
        )


NewNames = Mapping[Uid, Uid]
"""Maps the uid in the point to the new one."""


def renamed(manifest: Manifest, new_names: NewNames) -> Manifest:
    """Returns the same point under new names; two operators may exchange their uids.

    Raises Rejected if two operators would have the same uid.
    """
    if not new_names:
        return manifest
    known = (new_names.get(uid, uid) for uid in manifest.operator_ids)
    return msgspec.structs.replace(
        manifest,
        operator_ids={uid: operator_id(uid) for uid in known},
        subtasks=[_subtask(each, new_names) for each in manifest.subtasks],
        parallelisms={
            new_names.get(uid, uid): count for uid, count in manifest.parallelisms.items()
        },
    )


def _subtask(snapshot: SubtaskSnapshot, new_names: NewNames) -> SubtaskSnapshot:
    uids = [new_names.get(each.uid, each.uid) for each in snapshot.operators]
    if len(set(uids)) < len(uids):
        raise Rejected(f"Two operators of the point cannot have one uid: {', '.join(uids)}.")
    return msgspec.structs.replace(
        snapshot,
        vertex=new_names.get(snapshot.vertex, snapshot.vertex),
        operators=[
            msgspec.structs.replace(each, uid=new_names.get(each.uid, each.uid))
            for each in snapshot.operators
        ],
        in_flight=[
            msgspec.structs.replace(each, channel=_channel(each.channel, new_names))
            for each in snapshot.in_flight
        ],
    )


def _channel(channel: ChannelId, new_names: NewNames) -> ChannelId:
    ends = channel_ends(channel)
    return channel_id(
        new_names.get(ends.upstream, ends.upstream),
        ends.source,
        new_names.get(ends.downstream, ends.downstream),
        ends.port,
        ends.target,
    )
