"""Contradictions between two settings: one rule for each, with its sentence.

A rule names the keys as a person writes them and says what to change. `setting_readers` refuses
values that are wrong by themselves.
"""

from collections.abc import Callable, Collection

from pipelines.domain.errors import Rejected
from pipelines.domain.settings import (
    CapAction,
    CheckpointingMode,
    CheckpointStorage,
    ExternalizedRetention,
    Settings,
)
from pipelines.domain.settings.record_settings import PREFIX as TOPOLOGY
from pipelines.domain.settings.record_settings import (
    limit_needs_quarantine,
    quarantine_needs_a_second_try,
)

READ_AHEAD_KEY = "execution.checkpointing.at-most-once.read-ahead"
RETENTION_KEY = "execution.checkpointing.externalized-checkpoint-retention"

Rule = Callable[[Settings], str | None]
"""None: no objection. Otherwise the sentence for the person who set both."""


def check_settings(settings: Settings, given: Collection[str]) -> None:
    """Raises Rejected with the sentence of the first rule that objects; `given` are keys."""
    objections = [rule(settings) for rule in RULES]
    objections += [rule(settings, given) for rule in RULES_OF_GIVEN]
    for objection in objections:
        if objection is not None:
            raise Rejected(objection)


def _backoff_grows(settings: Settings) -> str | None:
    if settings.initial_backoff_ms <= settings.max_backoff_ms:
        return None
    return (
        "restart-strategy.exponential-delay.initial-backoff"
        f" ({settings.initial_backoff_ms} ms) is longer than max-backoff"
        f" ({settings.max_backoff_ms} ms); make it at most as long."
    )


def _memory_has_no_directory(settings: Settings) -> str | None:
    if settings.checkpoint_storage is not CheckpointStorage.JOBMANAGER:
        return None
    if not settings.checkpoint_dir:
        return None
    return (
        "execution.checkpointing.dir is set, but execution.checkpointing.storage is jobmanager,"
        " which keeps nothing in a directory; leave one of them out."
    )


def _pause_means_one_at_a_time(settings: Settings) -> str | None:
    if settings.min_pause_ms == 0 or settings.max_concurrent_checkpoints == 1:
        return None
    return (
        "execution.checkpointing.min-pause needs checkpoints one after the other, and"
        " execution.checkpointing.max-concurrent-checkpoints is"
        f" {settings.max_concurrent_checkpoints}; set one of them back to its default."
    )


def _heartbeats_fit_their_timeout(settings: Settings) -> str | None:
    if 2 * settings.heartbeat_interval_ms <= settings.heartbeat_timeout_ms:
        return None
    return (
        f"heartbeat.interval ({settings.heartbeat_interval_ms} ms) is more than half of"
        f" heartbeat.timeout ({settings.heartbeat_timeout_ms} ms): one late heartbeat would end"
        " the attempt; make it shorter."
    )


def _overtaking_needs_exactly_once(settings: Settings) -> str | None:
    if not settings.unaligned or settings.checkpointing_mode is CheckpointingMode.EXACTLY_ONCE:
        return None
    return (
        "execution.checkpointing.unaligned.enabled needs execution.checkpointing.mode EXACTLY_ONCE,"
        f" not {settings.checkpointing_mode}: without alignment there is nothing to overtake."
    )


def _overtaking_is_done_by_one(settings: Settings) -> str | None:
    if not settings.unaligned or settings.max_concurrent_checkpoints == 1:
        return None
    return (
        "execution.checkpointing.unaligned.enabled needs"
        " execution.checkpointing.max-concurrent-checkpoints 1, not"
        f" {settings.max_concurrent_checkpoints}: records in flight belong to one checkpoint."
    )


def _timeout_needs_overtaking(settings: Settings) -> str | None:
    if settings.unaligned or settings.aligned_timeout_ms == 0:
        return None
    return (
        "execution.checkpointing.aligned-checkpoint-timeout has no effect without"
        " execution.checkpointing.unaligned.enabled true; set that, or leave the timeout out."
    )


def _at_most_once_needs_checkpoints(settings: Settings) -> str | None:
    """No output comes before a completed checkpoint has reserved what was read."""
    if settings.checkpointing_mode is not CheckpointingMode.AT_MOST_ONCE:
        return None
    if settings.checkpoint_interval_ms is None:
        return (
            "execution.checkpointing.mode AT_MOST_ONCE needs periodic checkpoints, as records come"
            " out only once one has completed; set execution.checkpointing.interval."
        )
    if not settings.allows_finished_sources:
        return (
            "execution.checkpointing.mode AT_MOST_ONCE needs"
            " execution.checkpointing.checkpoints-after-tasks-finish true: the last records of a"
            " source come out only with a checkpoint after its end."
        )
    return None


def _reading_ahead_needs_at_most_once(settings: Settings, given: Collection[str]) -> str | None:
    is_at_most_once = settings.checkpointing_mode is CheckpointingMode.AT_MOST_ONCE
    if READ_AHEAD_KEY not in given or is_at_most_once:
        return None
    return (
        f"{READ_AHEAD_KEY} has no effect with execution.checkpointing.mode"
        f" {settings.checkpointing_mode}, which reads nothing ahead; leave it out."
    )


def _topology_needs_acking(settings: Settings, given: Collection[str]) -> str | None:
    without_effect = sorted(key for key in given if key.startswith(TOPOLOGY))
    if not without_effect or settings.checkpointing_mode is CheckpointingMode.ACKED:
        return None
    return (
        f"{without_effect[0]} has no effect with execution.checkpointing.mode"
        f" {settings.checkpointing_mode}, which follows no record; leave it out, or set the mode to"
        " ACKED."
    )


def _memory_keeps_whole_checkpoints(settings: Settings) -> str | None:
    is_memory = settings.checkpoint_storage is CheckpointStorage.JOBMANAGER
    if not is_memory or not settings.incremental_checkpoints:
        return None
    return (
        "execution.checkpointing.incremental is true, but execution.checkpointing.storage is"
        " jobmanager, which has no files that a later checkpoint could refer to; leave one out."
    )


def _pause_needs_an_interval(settings: Settings) -> str | None:
    if settings.min_pause_ms == 0 or settings.checkpoint_interval_ms is not None:
        return None
    return (
        "execution.checkpointing.min-pause delays periodic checkpoints, and"
        " execution.checkpointing.interval is off; leave one of them out."
    )


def _alignment_fits_the_timeout(settings: Settings) -> str | None:
    if settings.aligned_timeout_ms < settings.checkpoint_timeout_ms:
        return None
    return (
        f"execution.checkpointing.aligned-checkpoint-timeout ({settings.aligned_timeout_ms} ms) is"
        f" not shorter than execution.checkpointing.timeout ({settings.checkpoint_timeout_ms} ms):"
        " a checkpoint would expire before its barriers overtake; make it shorter."
    )


def _files_need_encryption(settings: Settings) -> str | None:
    named = (settings.tls_certificate, settings.tls_key, settings.tls_authority)
    if settings.tls_enabled or not any(named):
        return None
    return (
        "security.ssl.internal names files, but security.ssl.internal.enabled is false and nothing"
        " would be encrypted; set it to true, or leave the files out."
    )


def _cap_needs_alignment(settings: Settings) -> str | None:
    has_cap = settings.channel_cap_bytes or settings.subtask_cap_bytes
    key = "execution.checkpointing.alignment-buffer"
    if has_cap and settings.checkpointing_mode is not CheckpointingMode.EXACTLY_ONCE:
        return (
            f"{key}.max-size-per-channel and -per-subtask have no effect with"
            f" execution.checkpointing.mode {settings.checkpointing_mode}, which holds nothing"
            " back; leave them out."
        )
    if settings.cap_action is CapAction.WAIT:
        return None
    if not has_cap:
        return (
            f"{key}.when-exceeded is {settings.cap_action}, but no cap is set; set"
            f" {key}.max-size-per-channel or {key}.max-size-per-subtask."
        )
    if settings.cap_action is CapAction.UNALIGNED and settings.max_concurrent_checkpoints != 1:
        return (
            f"{key}.when-exceeded unaligned needs"
            " execution.checkpointing.max-concurrent-checkpoints 1, not"
            f" {settings.max_concurrent_checkpoints}: records in flight belong to one checkpoint."
        )
    return None


def _memory_retains_nothing(settings: Settings, given: Collection[str]) -> str | None:
    """Objects only if the setting was given, since the default means files."""
    is_memory = settings.checkpoint_storage is CheckpointStorage.JOBMANAGER
    retains = settings.retention is not ExternalizedRetention.NO_EXTERNALIZED_CHECKPOINTS
    if RETENTION_KEY not in given or not is_memory or not retains:
        return None
    return (
        f"{RETENTION_KEY} is {settings.retention}, but execution.checkpointing.storage is"
        " jobmanager, whose memory ends with the run; keep checkpoints in files, or set the"
        " retention to NO_EXTERNALIZED_CHECKPOINTS."
    )


RULES_OF_GIVEN = (
    _memory_retains_nothing,
    _reading_ahead_needs_at_most_once,
    _topology_needs_acking,
    limit_needs_quarantine,
)
"""They object only to given settings, not to defaults."""

RULES: tuple[Rule, ...] = (
    _heartbeats_fit_their_timeout,
    _memory_has_no_directory,
    _pause_means_one_at_a_time,
    _backoff_grows,
    _overtaking_needs_exactly_once,
    _overtaking_is_done_by_one,
    _timeout_needs_overtaking,
    _cap_needs_alignment,
    _at_most_once_needs_checkpoints,
    _memory_keeps_whole_checkpoints,
    _pause_needs_an_interval,
    _alignment_fits_the_timeout,
    _files_need_encryption,
    quarantine_needs_a_second_try,
)
