"""Makes Flink's body about how a job takes its checkpoints."""

from ftdash.api.flink import shapes_checkpoints as shapes
from ftdash.runs.queries.runs import RunFacts
from pipelines.domain.settings import (
    CheckpointingMode,
    CheckpointStorage,
    ExternalizedRetention,
    StateBackendType,
)
from pipelines.domain.settings.parsing import parse_settings

NEVER = 2**63 - 1
"""Flink's interval when nothing is periodic."""

CHANGELOG_INTERVAL_MS = 600_000
_BACKENDS = {
    StateBackendType.HASHMAP: "HashMapStateBackend",
    StateBackendType.ROCKSDB: "EmbeddedRocksDBStateBackend",
}
_STORAGES = {
    CheckpointStorage.FILESYSTEM: "FileSystemCheckpointStorage",
    CheckpointStorage.JOBMANAGER: "JobManagerCheckpointStorage",
}


def config(run: RunFacts) -> shapes.CheckpointConfig:
    given = parse_settings(run.settings)
    kept = given.retention is not ExternalizedRetention.NO_EXTERNALIZED_CHECKPOINTS
    deletes = given.retention is ExternalizedRetention.DELETE_ON_CANCELLATION
    mode = given.checkpointing_mode
    if mode is CheckpointingMode.ACKED:
        mode = CheckpointingMode.AT_LEAST_ONCE
    return shapes.CheckpointConfig(
        mode=mode.value.lower(),  # Flink has no word for at most once
        interval=NEVER if given.checkpoint_interval_ms is None else given.checkpoint_interval_ms,
        timeout=given.checkpoint_timeout_ms,
        min_pause=given.min_pause_ms,
        max_concurrent=given.max_concurrent_checkpoints,
        externalization=shapes.Externalization(enabled=kept, delete_on_cancellation=deletes),
        state_backend=_BACKENDS[given.state_backend],
        checkpoint_storage=_STORAGES[given.checkpoint_storage],
        unaligned_checkpoints=given.unaligned,
        tolerable_failed_checkpoints=given.tolerable_failed_checkpoints,
        aligned_checkpoint_timeout=given.aligned_timeout_ms,
        checkpoints_after_tasks_finish=given.allows_finished_sources,
        state_changelog_enabled=False,
        changelog_periodic_materialization_interval=CHANGELOG_INTERVAL_MS,
        changelog_storage="memory",
    )
