"""The requests to our addresses, with the bounds of each value. Unknown fields are refused."""

from datetime import UTC, datetime, timedelta
from typing import Annotated

import msgspec
from ninja import Path, Query, Schema
from pydantic import AwareDatetime, ConfigDict, Field, StringConstraints

from ftdash.accounts.models import TokenScope
from ftdash.accounts.services import Role
from ftdash.alerts.hysteresis import Band
from ftdash.alerts.models import Watched
from ftdash.checkpoints.queries.statistics import HistoryFilter, StatusChoice
from ftdash.eventlog.queries import FIRST_YEAR, LAST_YEAR, EventFilter, LineKind
from ftdash.gameday.models import Fault
from pipelines.domain.key_groups import DEFAULT_MAX_PARALLELISM
from pipelines.domain.settings import MAX_PARALLELISM_LIMIT
from pipelines.domain.status import CheckpointKind, ClaimMode, KillMoment, SavepointFormat
from pipelines.lab.options import MODE_NAMES, LabOptions

NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,79}$"
NO_NUL = r"^[^\x00]*$"
TEXT_MAX = 4_000
ROW_ID_MAX = 2**63 - 1

Name = Annotated[str, StringConstraints(pattern=NAME)]
Text = Annotated[str, StringConstraints(pattern=NO_NUL, max_length=TEXT_MAX)]
Texts = Annotated[dict[Text, Text], Field(max_length=500)]
Moment = Annotated[
    AwareDatetime,
    Field(ge=datetime(FIRST_YEAR, 1, 2, tzinfo=UTC), le=datetime(LAST_YEAR, 12, 30, tzinfo=UTC)),
]
Parallelism = Annotated[int, Field(ge=1, le=MAX_PARALLELISM_LIMIT)]

InPath = Annotated[str, Path(pattern=NAME)]
NumberInPath = Annotated[int, Path(ge=0, le=ROW_ID_MAX)]
Limit = Annotated[int, Query(ge=1, le=1_000)]
Pairs = Annotated[list[Text], Query(max_length=500, default_factory=list)]
Count = Annotated[int, Query(ge=0, le=ROW_ID_MAX)]
Page = Annotated[int, Query(ge=1, le=1_000_000)]

Number = Annotated[int, Field(ge=0, le=ROW_ID_MAX)]


class HistoryQuery(Schema):
    """Filters checkpoints; `after` and `before` take the place that another part gave."""

    model_config = ConfigDict(extra="forbid")

    status: StatusChoice | None = None
    kind: CheckpointKind | None = None
    reason_name: Text = ""
    from_id: Number | None = None
    to_id: Number | None = None
    after: Number | None = None
    before: Number | None = None
    limit: Annotated[int, Field(ge=1, le=1_000)] = 25

    @property
    def chosen(self) -> HistoryFilter:
        return msgspec.convert(self, HistoryFilter, from_attributes=True)


class EventsQuery(Schema):
    """Filters the log; `before` takes the place that another page gave."""

    model_config = ConfigDict(extra="forbid")

    pipeline: Name | None = None
    kind: LineKind | None = None
    actor: Text | None = None
    since: Moment | None = None
    until: Moment | None = None
    before: Text = ""
    limit: Annotated[int, Field(ge=1, le=1_000)] = 50

    @property
    def filters(self) -> EventFilter:
        return msgspec.convert(self, EventFilter, from_attributes=True)


class Changing(Schema):
    """The reason, which the log keeps."""

    model_config = ConfigDict(extra="forbid")

    reason: Text


class CommandBody(Changing):
    """The reason, and a request id: repeating an id returns the same request."""

    request_id: Name | None = None


class SavepointBody(CommandBody):
    format: SavepointFormat = SavepointFormat.CANONICAL
    label: Text = ""


class StopBody(SavepointBody):
    drain: bool = False


class CancelBody(SavepointBody):
    with_savepoint: bool = False


class DisposalBody(CommandBody):
    path: Text


class LabelBody(DisposalBody):
    label: Text


class ComparisonBody(Schema):
    model_config = ConfigDict(extra="forbid")

    since: Text


class KillBody(CommandBody):
    slot: Annotated[int, Field(ge=0, le=MAX_PARALLELISM_LIMIT)]
    moment: KillMoment = KillMoment.NOW


class FaultsBody(CommandBody):
    is_allowed: bool


class GameDayBody(CommandBody):
    """`slot` is the slot to hit, if the fault hits one."""

    fault: Fault
    slot: Annotated[int, Field(ge=0, le=MAX_PARALLELISM_LIMIT)] | None = None


class LabBody(Schema):
    """The numbers have the bounds that the lab's page names."""

    model_config = ConfigDict(extra="forbid")

    reason: Text
    seed: int = LabOptions().seed
    records: int = LabOptions().records
    parallelism: int = LabOptions().parallelism
    rate: int = LabOptions().rate
    interval_ms: int = LabOptions().interval_ms
    faults: int = LabOptions().faults
    modes: Annotated[
        list[Text], Field(max_length=len(MODE_NAMES), default_factory=lambda: list(MODE_NAMES))
    ]
    has_cost_run: bool = True


class SettingsBody(CommandBody):
    settings: Texts


class RestoreBody(CommandBody):
    """The point to restore from, and how. Null means as the pipeline is set.

    Changed parameters and settings replace those of the same name, for this run and later ones.
    `renamed` maps the uids of operators in the point to their uids now. `accepted_gaps` lists input
    that is gone and may be lost, as the preflight writes it: SOURCE SPLIT FIRST-LAST.
    """

    path: Text
    parallelism: Parallelism | None = None
    parameters: Texts | None = None
    settings: Texts | None = None
    renamed: Texts | None = None
    accepted_gaps: Annotated[list[Text], Field(max_length=500, default_factory=list)]
    claim_mode: ClaimMode = ClaimMode.NO_CLAIM
    allow_non_restored_state: bool = False
    reads_files: bool = False


class UpgradeBody(CommandBody):
    """`package` is the beginning of a package's SHA-256, eight characters or more."""

    package: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{8,64}$")]
    allow_non_restored_state: bool = False


class ReplayBody(CommandBody):
    """Replays the quarantine of these sources or of all, from that point or from the newest."""

    path: Text | None = None
    sources: list[Name] = Field(default_factory=list)
    parallelism: Parallelism | None = None
    reads_files: bool = False


class StartBody(CommandBody):
    """Starts from the beginning of the input; creates or changes the pipeline.

    If the pipeline has a recovery point, `confirm` must repeat its name.
    """

    name: Name
    flow: Text
    parallelism: Parallelism = 1
    max_parallelism: Parallelism = DEFAULT_MAX_PARALLELISM
    parameters: Texts = Field(default_factory=dict)
    settings: Texts = Field(default_factory=dict)
    allows_faults: bool = False
    confirm: Text | None = None


PersonInPath = Annotated[str, Path(pattern=r"^[^/\x00]{1,150}$")]
"""Django's own command may make a person with a name that invitations do not allow."""

Finite = Annotated[float, Field(allow_inf_nan=False)]


class BandBody(Schema):
    """Like the `band` of a rule in an answer."""

    model_config = ConfigDict(extra="forbid")

    fire_above: Finite
    fire_after_s: Finite
    clear_below: Finite
    clear_after_s: Finite

    @property
    def band(self) -> Band:
        return msgspec.convert(self, Band, from_attributes=True)


class ChangingRule(Changing):
    """A name may contain blanks and slashes, so it is in the body, not in the address."""

    name: Text


class MakingRule(ChangingRule):
    """`pipeline` null means all."""

    watched: Watched
    pipeline: Name | None = None
    band: BandBody


class ChangingBand(ChangingRule):
    band: BandBody


class SwitchingRule(ChangingRule):
    is_on: bool


class Silencing(Changing):
    """`rule` null means all rules.

    Give at most one of `pipeline`, `query` (a watched one) and `flink_cluster`; none means all of
    them.
    """

    rule: Text | None = None
    pipeline: Name | None = None
    query: Name | None = None
    flink_cluster: Name | None = None
    until: Moment


class MakingWebhook(Changing):
    """`pipeline` null means all."""

    name: Text
    address: Text
    pipeline: Name | None = None


class MakingMail(Changing):
    """`addresses` are separated by commas."""

    name: Text
    addresses: Text
    pipeline: Name | None = None


class Inviting(Changing):
    name: Text
    role: Role


class ChangingRole(Changing):
    role: Role


class MakingToken(Changing):
    """`expires_at` null means never; the field is required."""

    name: Text
    scope: TokenScope
    expires_at: Moment | None


class Keeping(Changing):
    """One of the offered choices, as an ISO 8601 duration."""

    keep: timedelta
