"""The settings of a run as values, in groups by subject; `parsing` reads and checks them.

Each setting is declared once, as a field of its group: key, default, valid values, and the help
that pages and commands show unchanged. If a default differs from Flink's, the help says why.
`parsing` has the contradictions between settings. Nothing here decides when a checkpoint runs.
"""

from dataclasses import dataclass
from enum import StrEnum

from pipelines.domain.errors import Rejected
from pipelines.domain.faults import parse_faults
from pipelines.domain.settings.checkpointing import (
    AckingOptions,
    BarrierOptions,
    CapAction,
    CheckpointingMode,
    CheckpointingOptions,
    ExternalizedRetention,
)
from pipelines.domain.settings.failures import (
    DamagedPointPolicy,
    Heartbeat,
    PoisonOptions,
    RecoveryOptions,
    RestartOptions,
    RestartStrategy,
    UpgradeOptions,
)
from pipelines.domain.settings.readers import one_of, setting, true_or_false
from pipelines.domain.settings.resources import (
    AS_SENT,
    CheckpointStorage,
    InputOptions,
    NetworkOptions,
    StateBackendType,
    StateOptions,
    StorageOptions,
    TlsOptions,
)

__all__ = [
    "AS_SENT",
    "MAX_PARALLELISM_LIMIT",
    "REQUIRED_KEY",
    "AckingOptions",
    "BarrierOptions",
    "CapAction",
    "CheckpointStorage",
    "CheckpointingMode",
    "CheckpointingOptions",
    "DamagedPointPolicy",
    "ExternalizedRetention",
    "Heartbeat",
    "InputOptions",
    "NetworkOptions",
    "PoisonOptions",
    "RecoveryOptions",
    "RequiredGuarantee",
    "RestartOptions",
    "RestartStrategy",
    "Settings",
    "StateBackendType",
    "StateOptions",
    "StorageOptions",
    "TlsOptions",
    "UpgradeOptions",
    "check_parallelism",
]

MAX_PARALLELISM_LIMIT = 1 << 15
"""Flink's bound on key groups; they are stored as 16 bits."""
REQUIRED_KEY = "ftdash.guarantee.required"


class RequiredGuarantee(StrEnum):
    """The guarantee required from end to end; NONE means any."""

    NONE = "none"
    AT_MOST_ONCE = "AT_MOST_ONCE"
    AT_LEAST_ONCE = "AT_LEAST_ONCE"
    IDEMPOTENT = "IDEMPOTENT"
    EXACTLY_ONCE = "EXACTLY_ONCE"


def _faults(text: str) -> str:
    parse_faults(text)
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The groups, and the settings outside the groups."""

    checkpointing: CheckpointingOptions
    barriers: BarrierOptions
    acking: AckingOptions
    required_guarantee: RequiredGuarantee = setting(
        REQUIRED_KEY,
        "none",
        one_of(RequiredGuarantee),
        "The least that the pipeline must guarantee from end to end: AT_MOST_ONCE, AT_LEAST_ONCE,"
        " IDEMPOTENT (exact again when the checkpoint after a failure completes) or EXACTLY_ONCE."
        " ftdash computes what sources, mode and sinks give, and refuses a run that gives less"
        " before it starts, with the reason. none: nothing is required.",
    )
    restart: RestartOptions
    heartbeat: Heartbeat
    recovery: RecoveryOptions
    poison: PoisonOptions
    upgrade: UpgradeOptions
    shows_failed_records: bool = setting(
        "pipeline.failures.show-records",
        "false",
        true_or_false,
        "true: when a function fails at a record, the recovery page shows the record's values, cut"
        " to 2,000 characters, and where one subtask has most of the work, the pages name its"
        " hottest keys; columns and values that look like secrets are masked. false: they show the"
        " record's source, split and offset, and the hottest key groups. Off by default: records"
        " may hold personal data, and they would be kept in the journal, in the database and in"
        " backups. The text of an exception is always shown, so do not put values into it. Ours.",
    )
    state: StateOptions
    storage: StorageOptions
    digests_output: bool = setting(
        "execution.ledger.digest",
        "true",
        true_or_false,
        "true: the ledger keeps a digest of what each sink is given, so that an audit of the output"
        " finds every changed value. false: it only counts the rows, which costs nothing; see"
        " docs/how-to/audit.md. Flink has no ledger.",
    )
    inputs: InputOptions
    network: NetworkOptions
    tls: TlsOptions
    faults: str = setting(
        "testing.faults",
        "",
        _faults,
        "Kills, stops or fails processes of the run on purpose at named points, for tests; only"
        " where the pipeline allows faults. Example: kill uploading slot=1 nth=2; kill published.",
    )

    @property
    def may_fall_back(self) -> bool:
        """True if the run may go back to an older point when the newest does not verify.

        It never may in mode AT_MOST_ONCE: the output since then would come out again.
        """
        may_repeat = self.barriers.mode is not CheckpointingMode.AT_MOST_ONCE
        return may_repeat and self.recovery.on_damaged_point is DamagedPointPolicy.OLDER


def check_parallelism(parallelism: int, max_parallelism: int) -> None:
    """Raises Rejected unless every subtask owns at least one key group."""
    if not 1 <= max_parallelism <= MAX_PARALLELISM_LIMIT:
        raise Rejected(
            f"The maximum parallelism cannot be {max_parallelism};"
            f" choose 1 to {MAX_PARALLELISM_LIMIT}."
        )
    if not 1 <= parallelism <= max_parallelism:
        raise Rejected(
            f"The parallelism cannot be {parallelism}; choose 1 to {max_parallelism},"
            " the maximum parallelism of this pipeline."
        )
