"""Judges a query by its checkpoint directory: damage, traps and slow decay.

It decides which facts are findings. It does not say what to do about them (`findings`), and reads
nothing. Pure: the caller passes in the facts that the directory does not show (`Observed`).
Consecutive batches with the same problem are one finding.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, takewhile
from statistics import median

from pipelines.structured.findings import Finding, Kind, finding
from pipelines.structured.formats import Problem, SourceKind, SourceOffset, is_number
from pipelines.structured.query import (
    Batch,
    FileLog,
    FileProblem,
    Operator,
    QueryDirectory,
    Store,
    StorePartition,
    is_compact,
)
from pipelines.structured.recovery import missing_partitions, recovery_points

DAY_MS = 24 * 60 * 60 * 1000
LONG_CHAIN_FILES = 40
"""Spark takes a snapshot after 10 changes; the maintenance may be some rounds late."""
LARGE_LOG_BYTES = 64 << 20
SMALL_FILE_BYTES, MANY_FILES = 1 << 20, 1_000
GROWING_STATE_BYTES, GROWTH = 64 << 20, 2.0
STILL_BATCHES, STILL_MS = 20, 10 * 60 * 1000
STUCK_TIMES, STUCK_MS = 20, 10 * 60 * 1000
SLOW_BATCHES_LOOKED_AT = 10
PURGED_MAX = 3
"""Spark deletes state and logs separately, so the oldest batches may have only one of them."""
CLOCK_SLACK_MS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Facts about the query from elsewhere. All of them are optional.

    `source_bounds` is {source index: {topic-partition: (oldest, next) offset}}.
    `rows_dropped` is {operator name: rows that the watermark dropped}.
    `file_problems` are the problems that `recovery.verify` found in the bytes.
    """

    now_ms: int | None = None
    trigger_interval_ms: int | None = None
    session_shuffle_partitions: int | None = None
    rows_dropped: Mapping[str, int] = field(default_factory=dict)
    source_bounds: Mapping[int, Mapping[str, tuple[int, int]]] = field(default_factory=dict)
    file_problems: tuple[FileProblem, ...] = ()


NOTHING = Observed()


def examine(query: QueryDirectory, observed: Observed = NOTHING) -> tuple[Finding, ...]:
    """Returns every finding, the worst first, or nothing if no problem shows."""
    looks: tuple[Callable[[QueryDirectory, Observed], Iterable[Finding]], ...] = (
        _identity,
        _damaged_files,
        _logs,
        _unfinished,
        _operators,
        _state,
        _abandoned_state,
        _settings,
        _source_offsets,
        _source_logs,
        _source_bounds,
        _sink,
        _times,
        _figures,
        _other_files,
    )
    found = [each for look in looks for each in look(query, observed)]
    order = {"error": 0, "warning": 1, "note": 2}
    return tuple(sorted(found, key=lambda each: order[each.severity]))


def _identity(query: QueryDirectory, observed: Observed) -> Iterator[Finding]:
    if not query.query_id and not any(each.path == "metadata" for each in query.problems):
        yield finding(Kind.METADATA_MISSING, "The file metadata is missing.", path="metadata")


PROBLEM_KINDS = {
    Problem.EMPTY: Kind.LOG_FILE_EMPTY,
    Problem.TORN: Kind.LOG_FILE_TORN,
    Problem.UNKNOWN_VERSION: Kind.UNKNOWN_VERSION,
    Problem.CHECKSUM: Kind.CHECKSUM_MISMATCH,
    Problem.LENGTH: Kind.LOG_FILE_TORN,
    Problem.MISSING: Kind.STATE_FILE_DAMAGED,
}


def _damaged_files(query: QueryDirectory, observed: Observed) -> Iterator[Finding]:
    """Yields one finding for a file: a problem of reading it, or else one of its bytes."""
    seen: set[str] = set()
    for problem in (*query.problems, *observed.file_problems):
        kind = _kind_of(problem)
        if problem.path not in seen:
            seen.add(problem.path)
            batch_id = _batch_of(problem.path)
            yield finding(kind, problem.text, batch_id=batch_id, path=problem.path)


def _kind_of(problem: FileProblem) -> Kind:
    if problem.path == "metadata":
        return Kind.METADATA_DAMAGED
    if problem.path.startswith("state/") and "/_metadata/" in problem.path:
        return Kind.OPERATOR_UNREADABLE
    if problem.path.startswith("state/") and problem.problem is not Problem.CHECKSUM:
        return Kind.STATE_FILE_DAMAGED
    return PROBLEM_KINDS[problem.problem]


def _batch_of(path: str) -> int | None:
    folder, _, name = path.rpartition("/")
    return int(name) if folder in ("offsets", "commits") and is_number(name) else None


def _logs(query: QueryDirectory, observed: Observed) -> Iterator[Finding]:
    offsets = [b.batch_id for b in query.batches if b.offset_file]
    commits = [b.batch_id for b in query.batches if b.commit_file]
    if not offsets and (commits or query.operators):
        yield finding(Kind.OFFSETS_MISSING, "There is no file in offsets/.", path="offsets")
    if not commits and len(offsets) > 1:
        text = f"There is no file in commits/, and {len(offsets)} batches were planned."
        yield finding(Kind.COMMITS_MISSING, text, path="commits")
    for kind, name, ids in (
        (Kind.OFFSETS_GAP, "offsets", offsets),
        (Kind.COMMITS_GAP, "commits", commits),
    ):
        for before, after in pairwise(ids):
            if after > before + 1:
                lost = _batches_named(range(before + 1, after))
                text = f"{lost} missing in {name}/, between {before} and {after}."
                yield finding(kind, text, batch_id=before + 1, path=f"{name}/{before + 1}")
    newest = max(offsets, default=None)
    for batch_id in commits:
        if newest is not None and batch_id > newest:
            text = f"Batch {batch_id} is committed, and its offsets are missing."
            yield finding(
                Kind.COMMIT_WITHOUT_OFFSET, text, batch_id=batch_id, path=f"commits/{batch_id}"
            )


def _unfinished(query: QueryDirectory, observed: Observed) -> Iterator[Finding]:
    planned, committed = query.newest_planned, query.newest_committed
    if planned is None or committed is None or planned <= committed:
        return
    if planned > committed + 1:
        text = f"{_batches_named(range(committed + 1, planned + 1))} planned and not committed."
        yield finding(Kind.SEVERAL_UNCOMMITTED, text, batch_id=committed + 1)
    running = query.by_id[planned]
    durations = _durations_ms(query.batches)
    if observed.now_ms is None or running.planned_ms is None or not durations:
        return
    age_ms = observed.now_ms - running.planned_ms
    if age_ms > max(STUCK_MS, STUCK_TIMES * median(durations)):
        text = (
            f"Batch {planned} has run for {age_ms / 60_000:.0f} min; others took"
            f" {median(durations) / 1000:.1f} s."
        )
        yield finding(Kind.BATCH_STUCK, text, batch_id=planned)


def _operators(query: QueryDirectory, observed: Observed) -> Iterator[Finding]:
    newest = next((b for b in reversed(query.batches) if b.shuffle_partitions is not None), None)
    for operator in query.operators:
        for text in missing_partitions(query, operator):
            yield finding(Kind.PARTITION_MISSING, text, path=text.split()[0])
        yield from _schema(operator)
        declared = max((store.partitions for store in operator.stores), default=None)
        planned = newest.shuffle_partitions if newest else None
        if declared is None or newest is None or operator.name in NEEDS_OTHER_PARTITIONS:
            continue
        if planned != declared and not _is_dealt(query, newest):
            text = (
                f"Operator {operator.operator_id} ({operator.name}) has {declared} partitions, and"
                f" the offsets name {planned}."
            )
            yield finding(Kind.PARTITIONS_DIFFER, text, path=f"state/{operator.operator_id}")
        known = max(declared, *(batch.shuffle_partitions or 0 for batch in query.batches), 0)
        for folder in sorted({p.folder for p in operator.partitions if _is_beyond(p, known)}):
            text = f"{folder} holds state, and operator {operator.operator_id} has {known}"
            yield finding(Kind.PARTITION_EXTRA, f"{text} partitions.", path=folder)


NEEDS_OTHER_PARTITIONS = ("globalLimit", "stateStoreSaveGlobal")
"""Operators that always work in one partition, even if the setting says another number."""


def _is_beyond(partition: StorePartition, known: int) -> bool:
    return partition.partition >= known and bool(partition.files)


def _schema(operator: Operator) -> Iterator[Finding]:
    """Looks for the schema in partition 0 only; transformWithState keeps it beside the metadata."""
    for each in operator.partitions:
        if each.partition == 0 and not each.has_schema and not operator.keeps_schema_apart:
            path = f"{each.folder}/_metadata/schema"
            yield finding(Kind.SCHEMA_MISSING, f"{path} is missing.", path=path)


def _state(query: QueryDirectory, observed: Observed) -> Iterator[Finding]:
    points = recovery_points(query)
    if not query.operators or not points:
        return
    newest, lost = points[-1], [each for each in points if each.state_problems]
    if newest.state_problems:
        text = f"Batch {newest.batch_id} is the newest: {newest.state_problems[0]}"
        yield finding(Kind.NEWEST_STATE_MISSING, text, batch_id=newest.batch_id)
    tolerated = PURGED_MAX if points[0].batch_id > 0 else 0
    purged = list(takewhile(lambda each: each.state_problems, points[:tolerated]))
    lost = [each for each in lost if each is not newest and each not in purged]
    by_id = {each.batch_id: each for each in lost}
    for run in _runs(list(by_id)):
        text = f"{_batches_named(run)} not restorable: {by_id[run[0]].state_problems[0]}"
        yield finding(Kind.STATE_MISSING, text, batch_id=run[0])
    if newest.longest_chain > LONG_CHAIN_FILES:
        text = (
            f"Behind the newest snapshot there are {newest.longest_chain} versions of changes in a"
            " partition."
        )
        yield finding(Kind.LONG_RESTORE, text, batch_id=newest.batch_id)
    if query.store is Store.ROCKSDB_UNIQUE:
        for batch in query.batches:
            if batch.commit is not None and not batch.unique_ids:
                text = f"commits/{batch.batch_id} names no ids of state files."
                yield finding(
                    Kind.UNIQUE_IDS_MISSING,
                    text,
                    batch_id=batch.batch_id,
                    path=f"commits/{batch.batch_id}",
                )


def _abandoned_state(query: QueryDirectory, observed: Observed) -> Iterator[Finding]:
    planned = query.newest_planned
    if planned is None:
        return
    for operator in query.operators:
        above = sorted({v for each in operator.partitions for v in each.files if v > planned + 1})
        if above:
            text = (
                f"Operator {operator.operator_id} has state of {_versions_named(above)}, and the"
                f" newest batch is {planned}, whose state has version {planned + 1}."
            )
            yield finding(
                Kind.ABANDONED_STATE, text, batch_id=planned, path=f"state/{operator.operator_id}"
            )
        yield from _older_than_their_batch(query, operator)


def _older_than_their_batch(query: QueryDirectory, operator: Operator) -> Iterator[Finding]:
    """Finds state files that were written before their batch was planned: another timeline's.

    A copy of a directory may have later times, never earlier ones. If the clock of the storage is
    behind that of the driver, commits show by how much.
    """
    lags = [
        batch.commit_file.modified_ms - batch.plan.planned_ms
        for batch in query.batches
        if batch.commit_file and batch.plan
    ]
    slack_ms = max(0, -min(lags, default=0)) + CLOCK_SLACK_MS
    older = []
    for each in operator.partitions:
        for version, files in each.files.items():
            batch = query.by_id.get(version - 1)
            if batch is None or batch.plan is None:
                continue
            older += [f for f in files if f.file.modified_ms < batch.plan.planned_ms - slack_ms]
    if older:
        first = min(older, key=lambda each: each.version)
        text = (
            f"{len(older)} state files are older than the batch that they belong to, the first is"
            f" {first.file.path}: an earlier timeline wrote them."
        )
        yield finding(Kind.MIXED_TIMELINES, text, batch_id=first.version - 1, path=first.file.path)


def _settings(query: QueryDirectory, observed: Observed) -> Iterator[Finding]:
    planned = [batch for batch in query.batches if batch.plan is not None]
    for before, after in pairwise(planned):
        is_changed = before.shuffle_partitions != after.shuffle_partitions
        if query.operators and is_changed and not _is_dealt(query, after):
            text = (
                f"Batch {after.batch_id} has {after.shuffle_partitions} shuffle partitions, batch"
                f" {before.batch_id} had {before.shuffle_partitions}."
            )
            yield finding(Kind.PARTITIONS_SETTING_CHANGED, text, batch_id=after.batch_id)
        if query.operators and before.store_class != after.store_class:
            text = (
                f"Batch {after.batch_id} names the store {_short(after.store_class)}, batch"
                f" {before.batch_id} had {_short(before.store_class)}."
            )
            yield finding(Kind.STORE_CHANGED, text, batch_id=after.batch_id)
    set_now = observed.session_shuffle_partitions
    kept = _newest_value(query, lambda batch: batch.shuffle_partitions)
    if query.operators and set_now is not None and kept is not None and set_now != kept:
        text = f"Your session sets {set_now} shuffle partitions, and the checkpoint has {kept}."
        yield finding(Kind.PARTITIONS_SETTING_IGNORED, text)


def _is_dealt(query: QueryDirectory, batch: Batch) -> bool:
    """Returns True if Spark has repartitioned the batch: its state has the planned partitions."""
    return all(
        operator.partitions_by_version.get(batch.batch_id + 1) == batch.shuffle_partitions
        for operator in query.operators
    )


def _source_offsets(query: QueryDirectory, observed: Observed) -> Iterator[Finding]:
    planned = [batch for batch in query.batches if batch.plan is not None]
    for before, after in pairwise(planned):
        if len(before.sources) != len(after.sources):
            text = (
                f"Batch {after.batch_id} has {len(after.sources)} sources, batch"
                f" {before.batch_id} had {len(before.sources)}."
            )
            yield finding(Kind.SOURCES_CHANGED, text, batch_id=after.batch_id)
            continue
        for old, new in zip(before.sources, after.sources, strict=True):
            known = {SourceKind.NONE, new.kind}
            if old.kind not in known and new.kind is not SourceKind.NONE:
                text = (
                    f"Source {new.index} gave an offset of kind {old.kind} up to batch"
                    f" {before.batch_id}, and of kind {new.kind} in batch {after.batch_id}."
                )
                yield finding(Kind.SOURCES_CHANGED, text, batch_id=after.batch_id)
            back = [k for k, v in new.positions.items() if v < old.positions.get(k, v)]
            if back:
                text = (
                    f"Source {new.index} goes back at {back[0]}, from {old.positions[back[0]]} in"
                    f" batch {before.batch_id} to {new.positions[back[0]]} in batch"
                    f" {after.batch_id}."
                )
                yield finding(Kind.OFFSETS_BACKWARDS, text, batch_id=after.batch_id)


def _source_logs(query: QueryDirectory, observed: Observed) -> Iterator[Finding]:
    newest = next((b for b in reversed(query.batches) if b.plan is not None), None)
    for source in newest.sources if newest else ():
        if source.kind is SourceKind.FILE and newest is not None:
            yield from _source_log(query, newest, source)


def _source_log(query: QueryDirectory, newest: Batch, source: SourceOffset) -> Iterator[Finding]:
    log, wanted = query.log_of(source), source.positions["logOffset"]
    path = f"sources/{source.name or source.index}"
    if log is None or log.newest is None or log.newest < wanted:
        there = "nothing" if log is None or log.newest is None else str(log.newest)
        text = f"Batch {newest.batch_id} reads up to entry {wanted} of {path}, which has {there}."
        yield finding(Kind.SOURCE_LOG_MISSING, text, batch_id=newest.batch_id, path=path)
    elif log.newest > wanted + 1:
        text = (
            f"{path} reaches entry {log.newest}, and batch {newest.batch_id}, the newest, reads"
            f" up to {wanted}."
        )
        yield finding(Kind.SOURCE_LOG_AHEAD, text, batch_id=newest.batch_id, path=path)
    if log is not None:
        yield from _log_gaps(log, Kind.SOURCE_LOG_GAP)
        yield from _large_log(log, Kind.SOURCE_LOG_LARGE)


def _log_gaps(log: FileLog, kind: Kind) -> Iterator[Finding]:
    """Looks from the newest compact file on, because Spark deletes older files at any time."""
    start = log.compact_numbers[-1] if log.compact_numbers else 0
    numbers = [number for number in log.files if number >= start]
    lost = sorted(set(range(start, max(numbers, default=start - 1) + 1)) - set(numbers))
    for run in _runs(lost):
        names = f"{run[0]}" if len(run) == 1 else f"{run[0]} to {run[-1]}"
        text = f"{log.folder} has no entry {names}."
        yield finding(kind, text, path=f"{log.folder}/{run[0]}")


def _large_log(log: FileLog, kind: Kind) -> Iterator[Finding]:
    if log.size_bytes > LARGE_LOG_BYTES:
        text = (
            f"{log.folder} has {log.size_bytes / (1 << 20):.0f} MiB, and grows by about"
            f" {growth_bytes_per_day(log) / (1 << 20):.0f} MiB a day."
        )
        yield finding(kind, text, path=log.folder)


def growth_bytes_per_day(log: FileLog) -> float:
    """Estimates growth from the compact files, or from all files if fewer than two are compact."""
    files = sorted((f for each in log.files.values() for f in each), key=lambda f: f.modified_ms)
    compact = [file for file in files if is_compact(file)]
    if len(compact) >= 2:
        span_ms = compact[-1].modified_ms - compact[0].modified_ms
        gained = compact[-1].size_bytes - compact[0].size_bytes
    elif len(files) >= 2:
        span_ms = files[-1].modified_ms - files[0].modified_ms
        gained = sum(file.size_bytes for file in files[1:])
    else:
        return 0.0
    return gained * DAY_MS / span_ms if span_ms > 0 else 0.0


def _source_bounds(query: QueryDirectory, observed: Observed) -> Iterator[Finding]:
    for index, bounds in observed.source_bounds.items():
        lost: dict[int, str] = {}
        for batch in query.batches:
            for source in batch.sources:
                if source.index != index or not batch.is_committed:
                    continue
                for key, offset in source.positions.items():
                    oldest, _ = bounds.get(key, (offset, offset))
                    if offset < oldest:
                        lost[batch.batch_id] = f"{key} begins at {oldest}, and it needs {offset}"
        for run in _runs(sorted(lost)):
            text = f"{_batches_named(run)} no longer covered by source {index}: {lost[run[0]]}."
            yield finding(Kind.SOURCE_LOST, text, batch_id=run[-1])
        newest = next((b for b in reversed(query.batches) if b.sources), None)
        for source in newest.sources if newest else ():
            for key, offset in source.positions.items() if source.index == index else ():
                if key in bounds and offset > bounds[key][1] and newest:
                    text = f"{key} ends at {bounds[key][1]}, and batch {newest.batch_id} is at"
                    yield finding(Kind.SOURCE_RESET, f"{text} {offset}.", batch_id=newest.batch_id)


def _sink(query: QueryDirectory, observed: Observed) -> Iterator[Finding]:
    log = query.sink_log
    if log is None or log.newest is None:
        return
    if query.newest_planned is not None and log.newest > query.newest_planned:
        text = (
            f"The output has batch {log.newest} already, and the newest batch of the query is"
            f" {query.newest_planned}."
        )
        yield finding(Kind.SINK_LOG_AHEAD, text, batch_id=query.newest_planned, path=log.folder)
    yield from _log_gaps(log, Kind.SINK_LOG_GAP)
    yield from _large_log(log, Kind.SINK_LOG_LARGE)
    if query.output_files > MANY_FILES:
        average = query.output_bytes / query.output_files
        if average < SMALL_FILE_BYTES:
            text = (
                f"The output has {query.output_files:,} files of {average / 1024:.0f} KiB on"
                " average."
            )
            yield finding(Kind.SMALL_FILES, text, path=query.output)


def _times(query: QueryDirectory, observed: Observed) -> Iterator[Finding]:
    planned = [batch for batch in query.batches if batch.plan is not None]
    for before, after in pairwise(planned):
        if before.plan is None or after.plan is None:
            continue
        if after.plan.planned_ms < before.plan.planned_ms:
            back_ms = before.plan.planned_ms - after.plan.planned_ms
            text = f"Batch {after.batch_id} was planned {back_ms / 1000:.1f} s before batch"
            yield finding(
                Kind.TIME_BACKWARDS, f"{text} {before.batch_id}.", batch_id=after.batch_id
            )
        if after.plan.watermark_ms < before.plan.watermark_ms:
            back_ms = before.plan.watermark_ms - after.plan.watermark_ms
            text = f"The watermark goes back by {back_ms / 1000:.1f} s at batch {after.batch_id}."
            yield finding(Kind.WATERMARK_BACKWARDS, text, batch_id=after.batch_id)
    yield from _still_watermark(planned)
    interval_ms = observed.trigger_interval_ms
    recent = _durations_ms(query.batches[-SLOW_BATCHES_LOOKED_AT:])
    if interval_ms and len(recent) >= 3 and median(recent) > interval_ms:
        text = (
            f"The last {len(recent)} batches took {median(recent) / 1000:.1f} s, and the trigger"
            f" fires every {interval_ms / 1000:.1f} s."
        )
        yield finding(Kind.SLOW_BATCHES, text)


def _still_watermark(planned: Sequence[Batch]) -> Iterator[Finding]:
    """Finds a watermark that does not advance although input came: without rows it cannot."""
    if not planned or not planned[-1].watermark_ms:
        return
    still = [planned[-1]]
    for batch in reversed(planned[:-1]):
        if batch.watermark_ms != planned[-1].watermark_ms:
            break
        still.append(batch)
    moved = sum(
        [s.text for s in after.sources] != [s.text for s in before.sources]
        for after, before in pairwise(still)
    )
    span_ms = (still[0].planned_ms or 0) - (still[-1].planned_ms or 0)
    if moved >= STILL_BATCHES and span_ms >= STILL_MS:
        text = (
            f"The watermark has stood still since batch {still[-1].batch_id}, for"
            f" {span_ms / 60_000:.0f} min, while {moved} batches brought input."
        )
        yield finding(Kind.WATERMARK_STANDS_STILL, text, batch_id=still[-1].batch_id)


def _figures(query: QueryDirectory, observed: Observed) -> Iterator[Finding]:
    for name, rows in observed.rows_dropped.items():
        if rows > 0:
            yield finding(Kind.ROWS_DROPPED, f"{name} has dropped {rows:,} rows as late.")
    for operator in query.operators:
        wholes = operator.snapshot_bytes
        if len(wholes) < 2:
            continue
        first, last = min(wholes), max(wholes)
        if wholes[last] > GROWING_STATE_BYTES and wholes[last] > GROWTH * wholes[first]:
            text = (
                f"The snapshot of operator {operator.operator_id} ({operator.name}) grew from"
                f" {wholes[first] / (1 << 20):.0f} MiB at version {first} to"
                f" {wholes[last] / (1 << 20):.0f} MiB at version {last}."
            )
            yield finding(Kind.STATE_GROWS, text, batch_id=last - 1)


def _other_files(query: QueryDirectory, observed: Observed) -> Iterator[Finding]:
    """Counts only old temporary files, because a write that is under way has one too."""
    newest_ms = max((b.committed_ms or 0 for b in query.batches), default=0)
    old = [each for each in query.temporaries if each.modified_ms < newest_ms - STUCK_MS]
    if old:
        text = f"{len(old)} unfinished files lie in the directory, {old[0].path} among them."
        yield finding(Kind.LEFTOVER_FILES, text, path=old[0].path)
    if query.strangers:
        first = query.strangers[0].path
        text = f"{len(query.strangers)} files are not of Structured Streaming, {first} among them."
        yield finding(Kind.STRANGE_FILES, text, path=first)


def _durations_ms(batches: Iterable[Batch]) -> list[int]:
    return [
        batch.committed_ms - batch.planned_ms
        for batch in batches
        if batch.committed_ms is not None and batch.planned_ms is not None
    ]


def _newest_value(query: QueryDirectory, get: Callable[[Batch], int | None]) -> int | None:
    return next((v for b in reversed(query.batches) if (v := get(b)) is not None), None)


def _runs(numbers: Sequence[int]) -> Iterator[Sequence[int]]:
    """Groups consecutive numbers."""
    run: list[int] = []
    for number in numbers:
        if run and number != run[-1] + 1:
            yield run
            run = []
        run.append(number)
    if run:
        yield run


def _batches_named(ids: Sequence[int]) -> str:
    if len(ids) == 1:
        return f"Batch {ids[0]} is"
    return f"Batches {ids[0]} to {ids[-1]} are"


def _versions_named(versions: Sequence[int]) -> str:
    if len(versions) == 1:
        return f"version {versions[0]}"
    return f"versions {versions[0]} to {versions[-1]}"


def _short(class_name: str) -> str:
    return class_name.rpartition(".")[2] or "nothing"
