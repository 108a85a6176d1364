"""The messages between a slot and the job master: JSON frames on the control connection.

The unions `FromSlot` and `FromMaster` list which side sends what. The connection belongs to one
attempt; its end is the slot's end.
"""

import msgspec

from pipelines.domain.checkpoint_failures import CheckpointFailureReason, SubtaskPhases
from pipelines.domain.events import RestoreProgress, SubtaskSample
from pipelines.domain.faults import Fault
from pipelines.domain.ids import NO_CHECKPOINT, Attempt, CheckpointId, RunId, Uid
from pipelines.domain.poison import Isolation
from pipelines.domain.settings import BarrierOptions, InputOptions, StateOptions
from pipelines.domain.snapshots import Manifest, SubtaskSnapshot
from pipelines.domain.status import KillMoment, SavepointFormat
from pipelines.protocol.fencing import CommitPermit
from pipelines.protocol.repeated_failures import OperatorError


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    pass


class Hello(Message, frozen=True, kw_only=True):
    """First message of a slot: its number and process, and where its data port listens."""

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
    """At most once: a source has read ahead all it may, and emits nothing before a checkpoint."""

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
    is_fatal: bool  # trying again cannot help: bad input or a setting, not the world
    lost_output_of: CheckpointId | None = None  # the output that it counts on is gone: fatal, too
    damaged_file: str | None = None  # of the point that it starts from: fatal for that point
    is_damage: bool = False  # also if the file is unknown
    error: OperatorError | None = None  # None: no operator raised it


class PeerLost(Message, frozen=True, kw_only=True):
    """A data connection ended: usually because the peer died, which the master hears itself."""

    problem: str


class StrangerTurnedAway(Message, frozen=True, kw_only=True):
    """A peer without the attempt's token, or of an older attempt, tried the data port."""

    attempt: Attempt  # the one it claimed; 0 if it claimed none
    what: str


class Ended(Message, frozen=True, kw_only=True):
    """Every subtask of the slot has ended after the final checkpoint."""


class Beat(Message, frozen=True, kw_only=True):
    """Either way: the sender lives."""


class Sampled(Message, frozen=True, kw_only=True):
    subtasks: list[SubtaskSample]
    source_records: int
    resident_bytes: int
    counters: dict[str, int]


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    slot: int
    host: str
    port: int


class Deploy(Message, frozen=True, kw_only=True):
    """Everything a slot needs; code comes from the flow's name, state from `restore_location`."""

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
    restore_manifest: Manifest | None  # of a point in the master's memory; else the slot reads it
    faults: list[Fault] = []  # on purpose
    barriers: BarrierOptions
    inputs: InputOptions = InputOptions()
    state: StateOptions
    forgets_state: bool = False  # at most once, after a failure: see RestorePoint
    dropped_states: list[tuple[Uid, str]] = []  # in the point, but the slot does not restore them
    quarantine: str = ""  # the directory of the quarantines of all sources
    isolation: Isolation = Isolation()
    replayed_sources: list[Uid] = []  # sources whose quarantine is read again
    beginning: bytes = b""  # of the run, see `connectors.beginning`


class Begin(Message, frozen=True, kw_only=True):
    """All slots are deployed: connect and run."""


class Inject(Message, frozen=True, kw_only=True):
    checkpoint_id: CheckpointId
    trigger_ms: int
    location: str
    savepoint_format: SavepointFormat | None  # None: a checkpoint
    is_final: bool
    drains: bool = False
    confirmed_id: CheckpointId = NO_CHECKPOINT  # what increments may build on, at the least


class Completed(Message, frozen=True, kw_only=True):
    """Sinks commit on it, so it carries the proof that they may."""

    permit: CommitPermit


class Aborted(Message, frozen=True, kw_only=True):
    checkpoint_id: CheckpointId


class Die(Message, frozen=True, kw_only=True):
    """Kill this slot's own process with SIGKILL: a fault on purpose.

    The slot stops waiting for the moment `within_s` after it heard of it.
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
    | Beat
)
FromMaster = Deploy | Begin | Inject | Completed | Aborted | Die | SlowUploads | Beat

SLOT_DECODER: msgspec.json.Decoder[FromSlot] = msgspec.json.Decoder(FromSlot)
MASTER_DECODER: msgspec.json.Decoder[FromMaster] = msgspec.json.Decoder(FromMaster)
