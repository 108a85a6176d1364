"""Turns the keys and texts that a person wrote into validated `Settings`: the only way in.

Strict: it refuses an unknown key, a bad value and a contradiction by name before anything starts.
There is one rule for each contradiction, which names the keys as a person writes them and says what
to change; `readers` refuses values that are wrong by themselves.

If you bring a configuration from Flink, each setting about fault tolerance that ftdash lacks is
answered by name, with what to do instead. A setting that ftdash has under Flink's newer name is
also listed under its older one.

Source: Flink 2.3, `CheckpointingOptions`, `StateRecoveryOptions`, `RestartStrategyOptions`,
`StateBackendOptions`, `RocksDBOptions`, `StateChangelogOptions`.
"""

from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches

import msgspec

from pipelines.domain.errors import Rejected
from pipelines.domain.settings import (
    CapAction,
    CheckpointingMode,
    CheckpointStorage,
    ExternalizedRetention,
    Settings,
)
from pipelines.domain.settings.recovery_settings import PREFIX as TOPOLOGY
from pipelines.domain.settings.recovery_settings import (
    limit_needs_quarantine,
    quarantine_needs_a_second_try,
)
from pipelines.domain.settings.table import DEFINITIONS

MAX_PARALLELISM_KEY = "pipeline.max-parallelism"
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


_CHECKPOINTING = "execution.checkpointing."

RENAMED = {
    _CHECKPOINTING + "unaligned": _CHECKPOINTING + "unaligned.enabled",
    _CHECKPOINTING + "alignment-timeout": _CHECKPOINTING + "aligned-checkpoint-timeout",
    _CHECKPOINTING + "checkpoints-after-tasks-finish.enabled": (
        _CHECKPOINTING + "checkpoints-after-tasks-finish"
    ),
    "state.checkpoints.num-retained": _CHECKPOINTING + "num-retained",
    "state.checkpoint-storage": _CHECKPOINTING + "storage",
    "state.checkpoints.dir": _CHECKPOINTING + "dir",
    "state.savepoints.dir": _CHECKPOINTING + "savepoint-dir",
    "state.backend.incremental": _CHECKPOINTING + "incremental",
    "state.backend": "state.backend.type",
    "restart-strategy": "restart-strategy.type",
}
"""Flink's older name -> the name that ftdash understands."""

_RESTORE = "a restore says so itself: choose the point and its options when you restore"
_LOCAL = "every recovery reads from the checkpoint storage; no copy is kept beside it"
_MERGING = "each subtask writes few files, whose number does not grow with the state"

_ABSENT = {
    _CHECKPOINTING + "interval-during-backlog": (
        "no source here reports a backlog, so one interval holds throughout; change"
        f" {_CHECKPOINTING}interval on the running pipeline instead"
    ),
    _CHECKPOINTING + "cleaner.parallel-mode": "old checkpoints are always deleted on other threads",
    "pipeline.sources.pause-until-first-checkpoint": (
        "what was in flight is always taken in before a source reads on"
    ),
    _CHECKPOINTING + "unaligned.forced": "there are no iterations that it could be forced for",
    _CHECKPOINTING + "unaligned.max-subtasks-per-channel-state-file": (
        "each subtask writes what was in flight to a file of its own"
    ),
    _CHECKPOINTING + "unaligned.interruptible-timers.enabled": (
        "timers fire in batches, and a barrier waits for one batch only"
    ),
    _CHECKPOINTING + "unaligned.recover-output-on-downstream.enabled": (
        "what was in flight in an output is always restored before anything new is emitted"
    ),
    _CHECKPOINTING + "during-recovery.enabled": (
        "checkpoints start once all subtasks run, and what was in flight has been taken in"
    ),
    "execution.state-recovery.without-channel-state.checkpoint-id": (
        "records in flight are never dropped; restore an older point if they cannot be read"
    ),
    _CHECKPOINTING + "create-subdir": "each run always has a directory of its own below dir",
    _CHECKPOINTING + "data-inline-threshold": (
        "state always lies in files, or with storage jobmanager always in the manifest"
    ),
    _CHECKPOINTING + "write-buffer-size": "state is written in batches of columns, not in a stream",
    "execution.state-recovery.from-local": _LOCAL,
    "state.backend.local-recovery": _LOCAL,
    "execution.state-recovery.path": _RESTORE,
    "execution.savepoint.path": _RESTORE,
    "execution.state-recovery.ignore-unclaimed-state": _RESTORE,
    "execution.state-recovery.claim-mode": _RESTORE,
    MAX_PARALLELISM_KEY: "it is given with the parallelism when the pipeline is started",
    "pipeline.auto-generate-uids": "every operator needs a uid of its own, given by its author",
    "state.checkpoint.cleaner.parallel-mode": "old checkpoints are deleted on other threads",
    "jobmanager.execution.failover-strategy": (
        "a run is one pipelined region, which restarts as a whole under either strategy"
    ),
}
_ABSENT_GROUPS = {
    _CHECKPOINTING + "local-backup.": _LOCAL,
    _CHECKPOINTING + "file-merging.": _MERGING,
    "state.changelog.": (
        f"there is no changelog backend; {_CHECKPOINTING}incremental makes checkpoints short"
    ),
    "state.backend.rocksdb.": (
        "of RocksDB only memory.fixed-per-slot and localdir are set by hand; the rest is derived"
    ),
}


def why_absent(key: str) -> str | None:
    """The answer to a person who sets `key`; None: we know of no such setting in Flink."""
    if key in RENAMED:
        return f"The setting {key!r} is called {RENAMED[key]} here, as in newer versions of Flink."
    groups = (why for prefix, why in _ABSENT_GROUPS.items() if key.startswith(prefix))
    why = _ABSENT.get(key) or next(groups, None)
    return None if why is None else f"Flink's setting {key!r} is not here: {why}. Leave it out."


_BY_KEY = {definition.key: definition for definition in DEFINITIONS}


def parse_settings(given: Mapping[str, str]) -> Settings:
    """Settings that are not given have the default of the table.

    Raises:
        Rejected: an unknown key, with its closest neighbour; one of Flink's that ftdash lacks, with
        what to do instead; a bad value; settings that contradict each other.
    """
    for key in given:
        _check_known(key)
    values = {d.field: d.parse(given.get(d.key, d.default)) for d in DEFINITIONS}
    settings = msgspec.convert(values, Settings)
    check_settings(settings, given)
    return settings


def changed_settings(given: Mapping[str, str], changes: Mapping[str, str]) -> dict[str, str]:
    """The given settings after `changes` to a run that goes on.

    Raises:
        Rejected: there is no change, a setting cannot change while a run goes on, or a start would
        refuse the settings.
    """
    if not changes:
        raise Rejected(f"Name a setting to change: {_listed_live()}.")
    for key in changes:
        _check_known(key)
        if not _BY_KEY[key].changes_live:
            raise Rejected(
                f"The setting {key} cannot change while a run goes on; {_listed_live()} can."
                " Stop the run with a savepoint and restore it with the new value."
            )
    changed = {**given, **changes}
    parse_settings(changed)
    return changed


def _listed_live() -> str:
    *others, last = [definition.key for definition in DEFINITIONS if definition.changes_live]
    return f"{', '.join(others)} and {last}"


def _check_known(key: str) -> None:
    known = [definition.key for definition in DEFINITIONS]
    if key in known:
        return
    absent = why_absent(key)
    if absent is not None:
        raise Rejected(absent)
    closest = get_close_matches(key, known, n=1, cutoff=0.5)
    hint = f"; did you mean {closest[0]}?" if closest else "; no known setting is similar to it."
    raise Rejected(f"There is no setting {key!r}{hint}")
