"""Turns the keys and texts that a person wrote into validated `Settings`: the only way in.

Strict: it refuses an unknown key, a bad value and a contradiction by name before anything starts.

If you bring a configuration from Flink, the refusal of each fault tolerance setting that ftdash
does not have says what to do instead. A setting that ftdash has under Flink's newer name is also
listed under its older one.

Settings that contradict each other are refused in one sentence for each contradiction, which names
the keys as a person writes them and says what to change. `readers` refuses values that are wrong by
themselves.

Source: Flink 2.3, `CheckpointingOptions`, `StateRecoveryOptions`, `RestartStrategyOptions`,
`StateBackendOptions`, `RocksDBOptions`, `StateChangelogOptions`.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import Field, fields, is_dataclass
from difflib import get_close_matches
from typing import Any

import msgspec

from pipelines.domain.errors import Rejected
from pipelines.domain.poison import PoisonPolicy
from pipelines.domain.settings import (
    CapAction,
    CheckpointingMode,
    CheckpointStorage,
    ExternalizedRetention,
    Settings,
)
from pipelines.domain.settings.checkpointing import ACKING_PREFIX, READ_AHEAD_KEY, RETENTION_KEY
from pipelines.domain.settings.failures import (
    LIMIT_KEY,
    MIN_DURATION_KEY,
    MIN_TRIES_KEY,
    POLICY_KEY,
)
from pipelines.domain.settings.readers import Definition, definition_of


def _definitions(group: type) -> Iterator[Definition]:
    for each in fields(group):
        if isinstance(each.type, type) and is_dataclass(each.type):
            yield from _definitions(each.type)
        else:
            yield definition_of(each)


DEFINITIONS = tuple(_definitions(Settings))


def read_settings(given: Mapping[str, str]) -> Settings:
    """Settings that are not given have their default. Raises Rejected for a bad value."""
    return msgspec.convert(_values(Settings, given), Settings)


def _values(group: type, given: Mapping[str, str]) -> dict[str, object]:
    return {each.name: _value(each, given) for each in fields(group)}


def _value(declared: Field[Any], given: Mapping[str, str]) -> object:
    if isinstance(declared.type, type) and is_dataclass(declared.type):
        return _values(declared.type, given)
    definition = definition_of(declared)
    return definition.parse(given.get(definition.key, definition.default))


Rule = Callable[[Settings], str | None]
"""Returns None, or the objection as a sentence for the person who set both."""


def check_settings(settings: Settings, given: Collection[str]) -> None:
    """Raises Rejected with the sentence of the first rule that objects; `given` are keys."""
    objections = [rule(settings) for rule in RULES]
    objections += [rule(settings, given) for rule in RULES_OF_GIVEN]
    for objection in objections:
        if objection is not None:
            raise Rejected(objection)


def _backoff_grows(settings: Settings) -> str | None:
    backoff = settings.restart.exponential_delay
    if backoff.initial_ms <= backoff.max_ms:
        return None
    return (
        f"restart-strategy.exponential-delay.initial-backoff ({backoff.initial_ms} ms) is longer"
        f" than max-backoff ({backoff.max_ms} ms); make it at most as long."
    )


def _memory_has_no_directory(settings: Settings) -> str | None:
    is_memory = settings.storage.kind is CheckpointStorage.JOBMANAGER
    if not is_memory or not settings.storage.checkpoint_dir:
        return None
    return (
        "execution.checkpointing.dir is set, but execution.checkpointing.storage is jobmanager,"
        " which keeps nothing in a directory; leave one of them out."
    )


def _pause_means_one_at_a_time(settings: Settings) -> str | None:
    if settings.checkpointing.min_pause_ms == 0 or settings.checkpointing.max_concurrent == 1:
        return None
    return (
        "execution.checkpointing.min-pause needs checkpoints one after the other, and"
        " execution.checkpointing.max-concurrent-checkpoints is"
        f" {settings.checkpointing.max_concurrent}; set one of them back to its default."
    )


def _heartbeats_fit_their_timeout(settings: Settings) -> str | None:
    if 2 * settings.heartbeat.interval_ms <= settings.heartbeat.timeout_ms:
        return None
    return (
        f"heartbeat.interval ({settings.heartbeat.interval_ms} ms) is more than half of"
        f" heartbeat.timeout ({settings.heartbeat.timeout_ms} ms): one late heartbeat would end"
        " the attempt; make it shorter."
    )


def _overtaking_needs_exactly_once(settings: Settings) -> str | None:
    if not settings.barriers.unaligned or settings.barriers.mode is CheckpointingMode.EXACTLY_ONCE:
        return None
    return (
        "execution.checkpointing.unaligned.enabled needs execution.checkpointing.mode EXACTLY_ONCE,"
        f" not {settings.barriers.mode}: without alignment there is nothing to overtake."
    )


def _overtaking_is_done_by_one(settings: Settings) -> str | None:
    if not settings.barriers.unaligned or settings.checkpointing.max_concurrent == 1:
        return None
    return (
        "execution.checkpointing.unaligned.enabled needs"
        " execution.checkpointing.max-concurrent-checkpoints 1, not"
        f" {settings.checkpointing.max_concurrent}: records in flight belong to one checkpoint."
    )


def _timeout_needs_overtaking(settings: Settings) -> str | None:
    if settings.barriers.unaligned or settings.barriers.aligned_timeout_ms == 0:
        return None
    return (
        "execution.checkpointing.aligned-checkpoint-timeout has no effect without"
        " execution.checkpointing.unaligned.enabled true; set that, or leave the timeout out."
    )


def _at_most_once_needs_checkpoints(settings: Settings) -> str | None:
    """No output comes before a completed checkpoint has reserved what was read."""
    if settings.barriers.mode is not CheckpointingMode.AT_MOST_ONCE:
        return None
    if settings.checkpointing.interval_ms is None:
        return (
            "execution.checkpointing.mode AT_MOST_ONCE needs periodic checkpoints, as records come"
            " out only once one has completed; set execution.checkpointing.interval."
        )
    if not settings.checkpointing.allows_finished_sources:
        return (
            "execution.checkpointing.mode AT_MOST_ONCE needs"
            " execution.checkpointing.checkpoints-after-tasks-finish true: the last records of a"
            " source come out only with a checkpoint after its end."
        )
    return None


def _reading_ahead_needs_at_most_once(settings: Settings, given: Collection[str]) -> str | None:
    is_at_most_once = settings.barriers.mode is CheckpointingMode.AT_MOST_ONCE
    if READ_AHEAD_KEY not in given or is_at_most_once:
        return None
    return (
        f"{READ_AHEAD_KEY} has no effect with execution.checkpointing.mode"
        f" {settings.barriers.mode}, which reads nothing ahead; leave it out."
    )


def _topology_needs_acking(settings: Settings, given: Collection[str]) -> str | None:
    without_effect = sorted(key for key in given if key.startswith(ACKING_PREFIX))
    if not without_effect or settings.barriers.mode is CheckpointingMode.ACKED:
        return None
    return (
        f"{without_effect[0]} has no effect with execution.checkpointing.mode"
        f" {settings.barriers.mode}, which follows no record; leave it out, or set the mode to"
        " ACKED."
    )


def _memory_keeps_whole_checkpoints(settings: Settings) -> str | None:
    is_memory = settings.storage.kind is CheckpointStorage.JOBMANAGER
    if not is_memory or not settings.state.is_incremental:
        return None
    return (
        "execution.checkpointing.incremental is true, but execution.checkpointing.storage is"
        " jobmanager, which has no files that a later checkpoint could refer to; leave one out."
    )


def _pause_needs_an_interval(settings: Settings) -> str | None:
    if settings.checkpointing.min_pause_ms == 0 or settings.checkpointing.interval_ms is not None:
        return None
    return (
        "execution.checkpointing.min-pause delays periodic checkpoints, and"
        " execution.checkpointing.interval is off; leave one of them out."
    )


def _alignment_fits_the_timeout(settings: Settings) -> str | None:
    aligned_ms, whole_ms = settings.barriers.aligned_timeout_ms, settings.checkpointing.timeout_ms
    if aligned_ms < whole_ms:
        return None
    return (
        f"execution.checkpointing.aligned-checkpoint-timeout ({aligned_ms} ms) is not shorter than"
        f" execution.checkpointing.timeout ({whole_ms} ms): a checkpoint would expire before its"
        " barriers overtake; make it shorter."
    )


def _files_need_encryption(settings: Settings) -> str | None:
    named = (settings.tls.certificate, settings.tls.key, settings.tls.authority)
    if settings.tls.enabled or not any(named):
        return None
    return (
        "security.ssl.internal names files, but security.ssl.internal.enabled is false and nothing"
        " would be encrypted; set it to true, or leave the files out."
    )


def _cap_needs_alignment(settings: Settings) -> str | None:
    barriers, max_concurrent = settings.barriers, settings.checkpointing.max_concurrent
    has_cap = barriers.channel_cap_bytes or barriers.subtask_cap_bytes
    key = "execution.checkpointing.alignment-buffer"
    if has_cap and barriers.mode is not CheckpointingMode.EXACTLY_ONCE:
        return (
            f"{key}.max-size-per-channel and -per-subtask have no effect with"
            f" execution.checkpointing.mode {barriers.mode}, which holds nothing back; leave them"
            " out."
        )
    if barriers.cap_action is CapAction.WAIT:
        return None
    if not has_cap:
        return (
            f"{key}.when-exceeded is {barriers.cap_action}, but no cap is set; set"
            f" {key}.max-size-per-channel or {key}.max-size-per-subtask."
        )
    if barriers.cap_action is CapAction.UNALIGNED and max_concurrent != 1:
        return (
            f"{key}.when-exceeded unaligned needs"
            " execution.checkpointing.max-concurrent-checkpoints 1, not"
            f" {max_concurrent}: records in flight belong to one checkpoint."
        )
    return None


def _memory_retains_nothing(settings: Settings, given: Collection[str]) -> str | None:
    """Objects only if the setting was given, since the default means files."""
    is_memory = settings.storage.kind is CheckpointStorage.JOBMANAGER
    retention = settings.checkpointing.retention
    retains = retention is not ExternalizedRetention.NO_EXTERNALIZED_CHECKPOINTS
    if RETENTION_KEY not in given or not is_memory or not retains:
        return None
    return (
        f"{RETENTION_KEY} is {retention}, but execution.checkpointing.storage is"
        " jobmanager, whose memory ends with the run; keep checkpoints in files, or set the"
        " retention to NO_EXTERNALIZED_CHECKPOINTS."
    )


def _quarantine_needs_a_second_try(settings: Settings) -> str | None:
    """A record is at fault if it fails again, at its place in the source."""
    if settings.poison.policy is not PoisonPolicy.QUARANTINE:
        return None
    key, mode = f"{POLICY_KEY} quarantine", settings.barriers.mode
    if mode not in (CheckpointingMode.EXACTLY_ONCE, CheckpointingMode.AT_LEAST_ONCE):
        return (
            f"{key} needs execution.checkpointing.mode EXACTLY_ONCE or AT_LEAST_ONCE, not {mode},"
            " which does not go back to a failed record and undo everything derived from it."
        )
    if settings.barriers.unaligned or settings.barriers.cap_action is CapAction.UNALIGNED:
        return (
            f"{key} needs barriers that overtake nothing: a record in flight that a checkpoint"
            " keeps is not read from its source again; set"
            " execution.checkpointing.unaligned.enabled to false, and"
            " execution.checkpointing.alignment-buffer.when-exceeded to wait or abort."
        )
    restart, repeated = settings.restart, settings.restart.repeated_failure
    if not restart.lasts_until_deterministic:
        return (
            f"{key} needs restarts until a failure counts as deterministic: {MIN_TRIES_KEY} is"
            f" {repeated.tries_min} and {MIN_DURATION_KEY} is"
            f" {repeated.over_min_ms} ms, and restart-strategy.type {restart.strategy} may give up"
            " before; set it to exponential-delay, or lower those two."
        )
    return None


def _limit_needs_quarantine(settings: Settings, given: Collection[str]) -> str | None:
    if LIMIT_KEY not in given or settings.poison.policy is PoisonPolicy.QUARANTINE:
        return None
    return (
        f"{LIMIT_KEY} has no effect with {POLICY_KEY} {settings.poison.policy}, which sets no"
        " record aside; leave it out, or set the policy to quarantine."
    )


RULES_OF_GIVEN = (
    _memory_retains_nothing,
    _reading_ahead_needs_at_most_once,
    _topology_needs_acking,
    _limit_needs_quarantine,
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
    _quarantine_needs_a_second_try,
)


MAX_PARALLELISM_KEY = "pipeline.max-parallelism"
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
    """Returns the answer to a person who sets `key`; None if we know no such setting in Flink."""
    if key in RENAMED:
        return f"The setting {key!r} is called {RENAMED[key]} here, as in newer versions of Flink."
    groups = (why for prefix, why in _ABSENT_GROUPS.items() if key.startswith(prefix))
    why = _ABSENT.get(key) or next(groups, None)
    return None if why is None else f"Flink's setting {key!r} is not here: {why}. Leave it out."


_BY_KEY = {definition.key: definition for definition in DEFINITIONS}


def parse_settings(given: Mapping[str, str]) -> Settings:
    """Settings that are not given have their default.

    Raises:
        Rejected: an unknown key, with its closest neighbour; a setting of Flink's that is
        missing here, with what to do instead; a bad value; settings that contradict each other.
    """
    for key in given:
        _check_known(key)
    settings = read_settings(given)
    check_settings(settings, given)
    return settings


def changed_settings(given: Mapping[str, str], changes: Mapping[str, str]) -> dict[str, str]:
    """Returns the given settings after `changes` to a running run.

    Raises:
        Rejected: there is no change, a setting cannot change during a run, or a start would refuse
        the settings.
    """
    if not changes:
        raise Rejected(f"Name a setting to change: {_listed_live()}.")
    for key in changes:
        _check_known(key)
        if not _BY_KEY[key].changes_live:
            raise Rejected(
                f"The setting {key} cannot change during a run; {_listed_live()} can."
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
