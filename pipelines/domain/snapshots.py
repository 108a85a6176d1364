"""What a checkpoint is made of: files with length and digest, gathered in a manifest.

Source: Flink's `_metadata` (master state, operator states, handles); here it is JSON, so that it
can be read without this program, and it is written last: a directory without one is garbage.
"""

import msgspec

from pipelines.domain.ids import Attempt, CheckpointId, RunId, Uid
from pipelines.domain.key_groups import KeyGroupRange
from pipelines.domain.status import CheckpointKind, SavepointFormat

FORMAT_VERSION = 1

Json = object
"""Plain JSON values; each connector converts its own with `msgspec.convert`, strictly."""


class FileHandle(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One immutable file of a snapshot, by its name in the checkpoint's directory."""

    name: str
    length: int  # bytes
    digest: str  # BLAKE2b-256 of the content, hexadecimal
    content: bytes | None = None  # with storage in the coordinator's memory: the file itself


class StateHandle(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of one keyed state of one subtask. `schema` maps column to Arrow type name."""

    state: str
    kind: str  # "table" or "batches"
    file: FileHandle
    key_groups: tuple[int, int]  # first and last, included
    rows: int
    schema: dict[str, str]

    @property
    def key_group_range(self) -> KeyGroupRange:
        return KeyGroupRange(*self.key_groups)


class OperatorSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One operator of one subtask at the cut."""

    uid: Uid
    states: list[StateHandle] = []
    positions: Json = None  # a source's: where to read next
    committables: list[Json] = []  # a sink's: prepared, to be committed on completion
    counters: dict[str, int] = {}
    watermark_ms: int | None = None


class SubtaskSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One vertex's subtask at the cut: what an acknowledgement carries."""

    vertex: Uid
    subtask: int
    operators: list[OperatorSnapshot]


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
    ancestors: list[tuple[RunId, CheckpointId]]  # the lineage: forked from, oldest first
    operator_ids: dict[Uid, str]  # uid to Flink's operator id
    subtasks: list[SubtaskSnapshot]

    @property
    def state_bytes(self) -> int:
        return sum(
            state.file.length
            for subtask in self.subtasks
            for operator in subtask.operators
            for state in operator.states
        )
