"""Requests of the control plane to a running driver: one frozen type per command, JSON on the wire.

A command is a file in the run's inbox and may be delivered twice; `request_id` makes that harmless.
Each command ends in exactly one `RequestEnded` event.
"""

import msgspec

from pipelines.domain.ids import RequestId
from pipelines.domain.status import DriverKillMoment, KillMoment, SavepointFormat

KILL_WITHIN_S = 600.0
"""How long a kill waits for its moment by default: as long as a checkpoint may take by default."""


class Command(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    request_id: RequestId
    requested_by: str  # the person, for the journal
    reason: str  # why, in the person's words


class TriggerCheckpoint(Command, frozen=True, kw_only=True):
    pass


class TakeSavepoint(Command, frozen=True, kw_only=True):
    format: SavepointFormat = SavepointFormat.CANONICAL


class StopWithSavepoint(Command, frozen=True, kw_only=True):
    """End once the savepoint's output is committed. If the savepoint fails, the run goes on.

    `drain`: event time ends first, so that every window fires. If the savepoint then fails, the run
    goes back to its latest checkpoint, before the windows fired.
    """

    format: SavepointFormat = SavepointFormat.CANONICAL
    drain: bool = False


class CancelWithSavepoint(Command, frozen=True, kw_only=True):
    """Like StopWithSavepoint, but the run ends as cancelled (Flink's `cancel -s`)."""

    format: SavepointFormat = SavepointFormat.CANONICAL


class Cancel(Command, frozen=True, kw_only=True):
    """Stop now. Work after the latest checkpoint is lost."""


class ChangeSettings(Command, frozen=True, kw_only=True):
    """Changes these settings from now on; only those that may change in a running run."""

    settings: dict[str, str]


class VerifyPoints(Command, frozen=True, kw_only=True):
    """Read every byte of the retained points now. Another process has found damage in one of them;
    the driver believes only what it reads itself."""


class KillSlot(Command, frozen=True, kw_only=True):
    """SIGKILL the Python process of one slot, on purpose.

    If the moment does not come within `within_s` after the slot gets the command, the slot lives
    on. If the moment is one of a recovery, this slot is killed at once and its replacement at the
    moment.
    """

    slot: int
    moment: KillMoment = KillMoment.NOW
    within_s: float = KILL_WITHIN_S


class SlowSlot(Command, frozen=True, kw_only=True):
    """Each upload that one slot begins within `for_ms` takes `delay_ms` longer, on purpose."""

    slot: int
    delay_ms: int
    for_ms: int


class KillDriver(Command, frozen=True, kw_only=True):
    """SIGKILL the driver on purpose, if its moment comes within `within_s`.

    `slot` is killed at once, so that there is a recovery in which the driver can die. The driver
    that takes over answers the command, and does not repeat it.
    """

    moment: DriverKillMoment
    within_s: float = KILL_WITHIN_S
    slot: int | None = None


DriverCommand = (
    TriggerCheckpoint
    | TakeSavepoint
    | StopWithSavepoint
    | CancelWithSavepoint
    | Cancel
    | ChangeSettings
    | VerifyPoints
    | KillSlot
    | SlowSlot
    | KillDriver
)
