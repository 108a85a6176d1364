"""Turns the keys and texts that a person wrote into validated `Settings`: the only way in.

Strict: it refuses an unknown key, a bad value and a contradiction by name before anything starts.

If you bring a configuration from Flink, each setting about fault tolerance that ftdash lacks is
answered by name, with what to do instead. A setting that ftdash has under Flink's newer name is
also listed under its older one.

Source: Flink 2.3, `CheckpointingOptions`, `StateRecoveryOptions`, `RestartStrategyOptions`,
`StateBackendOptions`, `RocksDBOptions`, `StateChangelogOptions`.
"""

from collections.abc import Mapping
from difflib import get_close_matches

from pipelines.domain.errors import Rejected
from pipelines.domain.settings import Settings
from pipelines.domain.settings.rules import check_settings
from pipelines.domain.settings.table import DEFINITIONS, read_settings

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
    settings = read_settings(given)
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
