"""The settings of a run as values, after `setting_parsing` has read and checked them.

`table` has keys, defaults and help texts. Decides nothing about when a checkpoint runs.
"""

from dataclasses import dataclass
from enum import StrEnum

import msgspec

from pipelines.domain.errors import Rejected
from pipelines.domain.poison import PoisonPolicy

MAX_PARALLELISM_LIMIT = 1 << 15
"""Flink's bound on key groups; they are stored as 16 bits."""


class CheckpointingMode(StrEnum):
    EXACTLY_ONCE = "EXACTLY_ONCE"
    AT_LEAST_ONCE = "AT_LEAST_ONCE"
    AT_MOST_ONCE = "AT_MOST_ONCE"
    ACKED = "ACKED"


class CapAction(StrEnum):
    """What happens if more is held back than the cap allows."""

    WAIT = "wait"
    UNALIGNED = "unaligned"
    ABORT = "abort"


class RequiredGuarantee(StrEnum):
    """The guarantee required from end to end; NONE: any."""

    NONE = "none"
    AT_MOST_ONCE = "AT_MOST_ONCE"
    AT_LEAST_ONCE = "AT_LEAST_ONCE"
    IDEMPOTENT = "IDEMPOTENT"
    EXACTLY_ONCE = "EXACTLY_ONCE"


class AckingOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How the subtasks of a run in mode ACKED follow records; every slot gets them."""

    acker_count: int  # 0: records are not followed
    timeout_ms: int
    pending_max: int  # records in flight of one subtask of a source


class BarrierOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How the subtasks of a run treat barriers; every slot gets them."""

    mode: CheckpointingMode
    unaligned: bool = False  # barriers may overtake records
    aligned_timeout_ms: int = 0  # how long they align first
    channel_cap_bytes: int = 0  # the most held back while aligning; 0: no cap
    subtask_cap_bytes: int = 0
    cap_action: CapAction = CapAction.WAIT
    read_ahead_bytes: int = 256 << 20  # at most once, by one subtask of a source
    acking: AckingOptions | None = None  # None: in any mode but ACKED


class InputOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How operators take what is queued in front of them; every slot gets them."""

    coalesced_rows: int = 1  # the most of small batches that are handled as one
    coalescing_wait_ms: int = 0  # how long to wait for more of them
    debloat_target_ms: int = 0  # time to consume what is queued; 0: channels have only a byte bound
    debloat_period_ms: int = 200
    debloat_samples: int = 20
    debloat_threshold_percent: int = 25


class StateBackendType(StrEnum):
    HASHMAP = "hashmap"
    ROCKSDB = "rocksdb"


class StateOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How the subtasks of a run keep their state; every slot gets them."""

    backend: StateBackendType
    is_incremental: bool  # checkpoints hold only changes, and refer to older files
    rocksdb_memory_bytes: int  # of one slot
    rocksdb_directory: str  # empty: the directory for temporary files


class CheckpointStorage(StrEnum):
    FILESYSTEM = "filesystem"
    JOBMANAGER = "jobmanager"


class ExternalizedRetention(StrEnum):
    """Which ends of a run leave its checkpoints in place; the names are Flink's."""

    RETAIN_ON_CANCELLATION = "RETAIN_ON_CANCELLATION"
    DELETE_ON_CANCELLATION = "DELETE_ON_CANCELLATION"
    NO_EXTERNALIZED_CHECKPOINTS = "NO_EXTERNALIZED_CHECKPOINTS"


class RestartStrategy(StrEnum):
    NONE = "none"
    FIXED_DELAY = "fixed-delay"
    FAILURE_RATE = "failure-rate"
    EXPONENTIAL_DELAY = "exponential-delay"


class DamagedPointPolicy(StrEnum):
    OLDER = "older"  # go back to the newest point that verifies
    FAIL = "fail"  # end the run, so that a person decides


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """In both directions between the driver and each slot."""

    interval_ms: int = 1_000
    timeout_ms: int = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One field per row of the table."""

    checkpoint_interval_ms: int | None  # None: no periodic checkpoints
    checkpoint_timeout_ms: int
    min_pause_ms: int
    max_concurrent_checkpoints: int
    tolerable_failed_checkpoints: int
    retained_checkpoints: int
    retention: ExternalizedRetention
    allows_finished_sources: bool
    checkpointing_mode: CheckpointingMode
    required_guarantee: RequiredGuarantee
    unaligned: bool
    aligned_timeout_ms: int
    channel_cap_bytes: int
    subtask_cap_bytes: int
    cap_action: CapAction
    read_ahead_bytes: int
    acker_count: int
    message_timeout_s: int
    spout_pending_max: int
    restart_strategy: RestartStrategy
    fixed_delay_attempts: int
    fixed_delay_ms: int
    failure_rate_max_failures: int
    failure_rate_interval_ms: int
    failure_rate_delay_ms: int
    initial_backoff_ms: int
    max_backoff_ms: int
    backoff_multiplier: float
    reset_backoff_threshold_ms: int
    backoff_jitter_factor: float
    attempts_before_reset_backoff: int
    repeated_failure_tries: int
    repeated_failure_ms: int
    heartbeat_interval_ms: int
    heartbeat_timeout_ms: int
    driver_timeout_ms: int
    slot_request_timeout_ms: int
    restore_standstill_ms: int
    state_backend: StateBackendType
    incremental_checkpoints: bool
    rocksdb_memory_bytes: int
    rocksdb_directory: str
    checkpoint_storage: CheckpointStorage
    checkpoint_dir: str  # empty: the run's own directory
    savepoint_dir: str  # empty: the pipeline's own directory
    max_memory_state_bytes: int
    compresses_snapshots: bool
    digests_output: bool
    verification_interval_ms: int
    on_damaged_point: DamagedPointPolicy
    coalesced_rows: int
    coalescing_wait_ms: int
    debloats_channels: bool
    debloat_target_ms: int
    debloat_period_ms: int
    debloat_samples: int
    debloat_threshold_percent: int
    driver_host: str
    driver_bind_host: str  # empty: driver_host
    driver_port: int  # 0: any
    slot_host: str  # empty: the address from which the slot reaches the driver
    slot_bind_host: str  # empty: the address under which the slot is reached
    tls_enabled: bool
    tls_certificate: str
    tls_key: str
    tls_authority: str
    poison_policy: PoisonPolicy
    poison_limit: int
    upgrade_checkpoints: int
    upgrade_timeout_ms: int
    shows_failed_records: bool
    faults: str  # a plan for `domain.faults`

    @property
    def heartbeat(self) -> Heartbeat:
        return Heartbeat(self.heartbeat_interval_ms, self.heartbeat_timeout_ms)

    @property
    def may_fall_back(self) -> bool:
        """True if it may go back to an older point when the newest does not verify. Never at most
        once: the output since then would come out again."""
        may_repeat = self.checkpointing_mode is not CheckpointingMode.AT_MOST_ONCE
        return may_repeat and self.on_damaged_point is DamagedPointPolicy.OLDER

    @property
    def barriers(self) -> BarrierOptions:
        return BarrierOptions(
            mode=self.checkpointing_mode,
            unaligned=self.unaligned,
            aligned_timeout_ms=self.aligned_timeout_ms,
            channel_cap_bytes=self.channel_cap_bytes,
            subtask_cap_bytes=self.subtask_cap_bytes,
            cap_action=self.cap_action,
            read_ahead_bytes=self.read_ahead_bytes,
            acking=self._acking,
        )

    @property
    def inputs(self) -> InputOptions:
        """Mode ACKED fails and repeats batches as they were sent, so it joins none. No barrier
        waits there behind queued records, so its channels need no bound in time."""
        if self.checkpointing_mode is CheckpointingMode.ACKED:
            return InputOptions()
        return InputOptions(
            coalesced_rows=self.coalesced_rows,
            coalescing_wait_ms=self.coalescing_wait_ms,
            debloat_target_ms=self.debloat_target_ms if self.debloats_channels else 0,
            debloat_period_ms=self.debloat_period_ms,
            debloat_samples=self.debloat_samples,
            debloat_threshold_percent=self.debloat_threshold_percent,
        )

    @property
    def _acking(self) -> AckingOptions | None:
        if self.checkpointing_mode is not CheckpointingMode.ACKED:
            return None
        return AckingOptions(
            acker_count=self.acker_count,
            timeout_ms=self.message_timeout_s * 1_000,
            pending_max=self.spout_pending_max,
        )

    @property
    def state(self) -> StateOptions:
        return StateOptions(
            backend=self.state_backend,
            is_incremental=self.incremental_checkpoints,
            rocksdb_memory_bytes=self.rocksdb_memory_bytes,
            rocksdb_directory=self.rocksdb_directory,
        )


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
