"""The commands that a person may give: one frozen type each, JSON in rows and on the wire.

Pages, interfaces and the command line build a command. `ftdash.requests.services` stores it, and
the driver receives the same type. A command is a file in the run's inbox and may be delivered
twice; `request_id` makes that harmless. Each command ends in exactly one `RequestEnded` event.

A command also has the texts that people read about it, and says what it needs. Its name on the wire
is the name of its type, and `kind` is its name in rows and answers; neither ever changes.
"""

from enum import Enum, StrEnum, auto
from typing import ClassVar, get_args

import msgspec

from pipelines.domain.ids import RequestId, Uid
from pipelines.domain.run import ShippedCode
from pipelines.domain.status import ClaimMode, DriverKillMoment, KillMoment, SavepointFormat

KILL_WITHIN_S = 600.0
"""How long a kill waits for its moment by default: as long as a checkpoint may take by default."""


class RequestKind(StrEnum):
    SUBMIT = "SUBMIT"
    RESTORE = "RESTORE"
    UPGRADE = "UPGRADE"
    CHECKPOINT = "CHECKPOINT"
    SAVEPOINT = "SAVEPOINT"
    STOP_WITH_SAVEPOINT = "STOP_WITH_SAVEPOINT"
    CANCEL_WITH_SAVEPOINT = "CANCEL_WITH_SAVEPOINT"
    CANCEL = "CANCEL"
    DISPOSE = "DISPOSE"
    LABEL = "LABEL"
    CHANGE_SETTINGS = "CHANGE_SETTINGS"
    RETRY_NOW = "RETRY_NOW"
    UNDO_START = "UNDO_START"
    KILL_SLOT = "KILL_SLOT"
    KILL_DRIVER = "KILL_DRIVER"
    SLOW_SLOT = "SLOW_SLOT"
    ALLOW_FAULTS = "ALLOW_FAULTS"


class Needs(Enum):
    """The state of the pipeline that a command needs."""

    NOTHING = auto()  # its service decides
    NO_LIVE_RUN = auto()  # it starts one
    LIVE_RUN = auto()
    RUNNING = auto()  # a run that is RUNNING and is not being stopped
    WAITING = auto()  # a run that waits before its next attempt
    START_TO_UNDO = auto()  # the newest run started over and has committed nothing


class Addressed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A message to a run's inbox. The fields are empty until it is addressed to the run."""

    request_id: RequestId = RequestId("")
    requested_by: str = ""  # the person, or the process, for the journal
    reason: str = ""  # why, in the person's words


ADDRESS = Addressed.__struct_fields__


class Command(Addressed, frozen=True, kw_only=True):
    """A request of a person."""

    kind: ClassVar[RequestKind]
    action: ClassVar[str]  # in the audit log: "asked for: savepoint"
    consequence: ClassVar[str]  # may name {pipeline}, {parallelism}, {replay} and {allows}
    needs: ClassVar[Needs] = Needs.RUNNING
    is_fault: ClassVar[bool] = False  # possible only where the pipeline allows faults on purpose
    waits_for_upgrade: ClassVar[bool] = False  # not possible while the pipeline is being upgraded
    without_run: ClassVar[str] = ""  # what to do while there is no run; a clause
    ends_by_its_steps: ClassVar[bool] = False  # its deadline is an estimate; it may end later

    @property
    def waits_s(self) -> float:
        """How long the driver may wait before it begins."""
        return 0.0

    @property
    def parameters(self) -> dict[str, str]:
        """Its values as people read them. Leaves out those that are off, or empty, by default."""
        given = {
            "type" if field.name == "format" else field.name: getattr(self, field.name)
            for field in msgspec.structs.fields(self)
            if field.name not in ADDRESS
            if field.default or getattr(self, field.name) != field.default
        }
        return {name: _text(value) for name, value in given.items()}


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)


class TriggerCheckpoint(Command, frozen=True, kw_only=True):
    kind = RequestKind.CHECKPOINT
    action = "trigger checkpoint"
    consequence = "One more checkpoint is taken now, while the pipeline keeps running."


class TakeSavepoint(Command, frozen=True, kw_only=True):
    kind = RequestKind.SAVEPOINT
    action = "savepoint"
    consequence = "A savepoint is written and kept until it is deleted; the pipeline keeps running."

    format: SavepointFormat = SavepointFormat.CANONICAL
    label: str = ""  # the control plane stores it; the driver does not know labels


class StopWithSavepoint(Command, frozen=True, kw_only=True):
    """End once the savepoint's output is committed. If the savepoint fails, the run continues.

    With `drain`, event time ends first, so that every window fires. If the savepoint then fails,
    the run goes back to its latest checkpoint, before the windows fired.
    """

    kind = RequestKind.STOP_WITH_SAVEPOINT
    action = "stop with savepoint"
    consequence = "A savepoint is taken, its output is committed, and the pipeline ends."
    waits_for_upgrade = True

    format: SavepointFormat = SavepointFormat.CANONICAL
    drain: bool = False
    label: str = ""


class CancelWithSavepoint(Command, frozen=True, kw_only=True):
    """Like StopWithSavepoint, but the run ends as cancelled (Flink's `cancel -s`)."""

    kind = RequestKind.CANCEL_WITH_SAVEPOINT
    action = "cancel with savepoint"
    consequence = "A savepoint is taken, its output is committed, and the pipeline is cancelled."
    waits_for_upgrade = True

    format: SavepointFormat = SavepointFormat.CANONICAL
    label: str = ""


SavepointCommand = TakeSavepoint | StopWithSavepoint | CancelWithSavepoint


class Cancel(Command, frozen=True, kw_only=True):
    """Stop now. Work after the latest checkpoint is lost."""

    kind = RequestKind.CANCEL
    action = "cancel"
    consequence = "The pipeline ends at once; {replay} are not kept."
    needs = Needs.LIVE_RUN


class ChangeSettings(Command, frozen=True, kw_only=True):
    """Change these settings from now on. Only those that may change during a run are allowed."""

    kind = RequestKind.CHANGE_SETTINGS
    action = "change settings"
    consequence = (
        "The run continues with the new values, even after a failure; the next run starts with the"
        " pipeline's own values. A failure now would replay {replay}, and more if checkpoints are"
        " rarer."
    )
    without_run = (
        "; change its settings as you restore it (on the command line: restore --set KEY=VALUE)"
    )
    needs = Needs.LIVE_RUN  # what keeps failing may need another setting

    settings: dict[str, str]

    @property
    def parameters(self) -> dict[str, str]:
        return self.settings


class RetryNow(Command, frozen=True, kw_only=True):
    """Begin the attempt that waits for its restart delay.

    It may fail again; the next delay then counts from that failure.
    """

    kind = RequestKind.RETRY_NOW
    action = "retry now"
    consequence = "The run does not wait any longer: its next attempt begins at once."
    needs = Needs.WAITING
    without_run = "; restore its newest point to continue"


class UndoStart(Command, frozen=True, kw_only=True):
    """End a run that started over, and put back the output that its start set aside.

    Possible only while the run has committed nothing, so nothing that a reader has seen is lost.
    """

    kind = RequestKind.UNDO_START
    action = "undo the start"
    consequence = (
        "The new run ends; it has committed nothing. The output that its start set aside is put"
        " back, and you can restore the points of earlier runs as before."
    )
    needs = Needs.START_TO_UNDO
    waits_for_upgrade = True


class VerifyPoints(Addressed, frozen=True, kw_only=True):
    """Read every byte of the retained points now.

    Another process has found damage in one of them; the driver believes only what it reads itself.
    """


class KillSlot(Command, frozen=True, kw_only=True):
    """SIGKILL the Python process of one slot, on purpose.

    If the moment does not come within `within_s` after the slot gets the command, the slot lives
    on. If the moment is one of a recovery, this slot is killed at once and its replacement at the
    moment.
    """

    kind = RequestKind.KILL_SLOT
    action = "kill a slot"
    consequence = "The process of one slot is killed; {replay} will be replayed."
    is_fault = True

    slot: int
    moment: KillMoment = KillMoment.NOW
    within_s: float = KILL_WITHIN_S

    @property
    def waits_s(self) -> float:
        return 0.0 if self.moment is KillMoment.NOW else self.within_s

    @property
    def parameters(self) -> dict[str, str]:
        """Leaves out the time limit of a kill at once, which waits for nothing."""
        given = {"slot": str(self.slot), "moment": self.moment.value}
        return given | ({"within_s": f"{self.waits_s:g}"} if self.waits_s else {})


class KillDriver(Command, frozen=True, kw_only=True):
    """SIGKILL the driver on purpose, if its moment comes within `within_s`.

    `slot` is killed at once, so that there is a recovery in which the driver can die. The driver
    that takes over answers the command, and does not repeat it.
    """

    kind = RequestKind.KILL_DRIVER
    action = "kill the driver"
    consequence = "The driver is killed and replaced; {replay} will be replayed."
    is_fault = True

    moment: DriverKillMoment
    within_s: float = KILL_WITHIN_S
    slot: int | None = None

    @property
    def waits_s(self) -> float:
        return self.within_s


class SlowSlot(Command, frozen=True, kw_only=True):
    """Each upload that one slot begins within `for_ms` takes `delay_ms` longer, on purpose."""

    kind = RequestKind.SLOW_SLOT
    action = "slow down the storage of a slot"
    consequence = "Checkpoints take longer for a while; the pipeline keeps running."
    is_fault = True

    slot: int
    delay_ms: int
    for_ms: int


RunCommand = (
    TriggerCheckpoint
    | TakeSavepoint
    | StopWithSavepoint
    | CancelWithSavepoint
    | Cancel
    | ChangeSettings
    | RetryNow
    | UndoStart
    | KillSlot
    | SlowSlot
    | KillDriver
)
"""The commands that people may give to a running run."""

DriverCommand = RunCommand | VerifyPoints
"""Everything that a running driver takes, from people and from other processes."""


class StartPipeline(Command, frozen=True, kw_only=True):
    kind = RequestKind.SUBMIT
    action = "start"
    consequence = "A new run starts from the beginning of the input at parallelism {parallelism}."
    needs = Needs.NO_LIVE_RUN
    waits_for_upgrade = True

    parallelism: int


class RestorePipeline(Command, frozen=True, kw_only=True):
    kind = RequestKind.RESTORE
    action = "restore"
    consequence = (
        "A new run starts from the chosen point; output that was written after that point is set"
        " aside and written again."
    )
    needs = Needs.NO_LIVE_RUN
    waits_for_upgrade = True

    path: str
    parallelism: int
    claim_mode: ClaimMode
    allow_non_restored_state: bool
    replayed: dict[str, int] = {}  # records of the quarantine that are read again, by source
    settings: dict[str, str] = {}  # those that change
    renamed: dict[Uid, Uid] = {}  # operators in the point, to those of the pipeline
    values: dict[str, str] = {}  # of the flow's parameters, those that change
    accepted_gaps: list[str] = []  # input that is gone, and lost

    @property
    def parameters(self) -> dict[str, str]:
        given = {
            "path": self.path,
            "parallelism": str(self.parallelism),
            "claim-mode": self.claim_mode.value,
            "allow-non-restored-state": _text(self.allow_non_restored_state),
        }
        records = ", ".join(f"{count:,} of {uid}" for uid, count in sorted(self.replayed.items()))
        given |= {"replay-quarantine": records} if records else {}
        given |= {f"set {name}": value for name, value in (self.settings | self.values).items()}
        given |= {"accept-gap": "; ".join(self.accepted_gaps)} if self.accepted_gaps else {}
        return given | {f"map {old}": new for old, new in self.renamed.items()}


class UpgradePipeline(Command, frozen=True, kw_only=True):
    """Continue with another package, or return to the one before; `ftdash.upgrades` does it."""

    kind = RequestKind.UPGRADE
    action = "upgrade"
    consequence = (
        "The new code is checked. Then the pipeline stops with a savepoint and continues from it"
        " with the new code. If that fails, or does not complete its first checkpoints in time, the"
        " current code continues from the same savepoint."
    )
    waits_for_upgrade = True
    ends_by_its_steps = True

    code: ShippedCode
    allow_non_restored_state: bool = False

    @property
    def parameters(self) -> dict[str, str]:
        left = {"allow-non-restored-state": "true"} if self.allow_non_restored_state else {}
        return {"to": self.code.described} | left


class DisposeSavepoint(Command, frozen=True, kw_only=True):
    """Delete the files of a savepoint for good; a worker does it."""

    kind = RequestKind.DISPOSE
    action = "dispose of a savepoint"
    consequence = "The files of the savepoint are deleted; nothing can be restored from it."
    needs = Needs.NOTHING

    path: str


class LabelSavepoint(Command, frozen=True, kw_only=True):
    """Give a savepoint another label; an empty one removes it."""

    kind = RequestKind.LABEL
    action = "label a savepoint"
    consequence = "The savepoint is found under this name from now on; its files stay as they are."
    needs = Needs.NOTHING

    path: str
    label: str


class AllowFaults(Command, frozen=True, kw_only=True):
    """Allow or forbid faults. A run under way keeps the setting testing.faults it started with."""

    kind = RequestKind.ALLOW_FAULTS
    action = "allow or forbid faults on purpose"
    consequence = (
        "{pipeline} {allows} faults on purpose now. Where they are allowed, admins may kill and"
        " stop its processes to see that it recovers; readers of its output wait meanwhile."
    )
    needs = Needs.NOTHING

    allowed: bool


AnyCommand = (
    RunCommand
    | StartPipeline
    | RestorePipeline
    | UpgradePipeline
    | DisposeSavepoint
    | LabelSavepoint
    | AllowFaults
)
"""All commands of people. The control plane carries out those that no driver does."""

_BY_KIND: dict[RequestKind, type[Command]] = {each.kind: each for each in get_args(AnyCommand)}
COMMANDS = {kind: _BY_KIND[kind] for kind in RequestKind}
STARTS = tuple(kind for kind, each in COMMANDS.items() if each.needs is Needs.NO_LIVE_RUN)
