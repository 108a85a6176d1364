"""Rewinds the logs of a file source or a file sink to an earlier entry.

It decides which entries remain, and in which files Spark finds them. A log is a chain: the newest
compact file, which holds all earlier entries, and the plain files after it.
Source: Spark 4.3, `CompactibleFileStreamLog` (`deriveCompactInterval`, `getAllValidBatches`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pipelines.domain.errors import Rejected
from pipelines.storage.trees import Tree
from pipelines.structured.formats import Damaged, LogEntry, log_entries_of
from pipelines.structured.query import FileLog, is_compact

SPARKS_INTERVAL = 10
"""From this number of entries on, Spark accepts the newest compact file at any number."""


@dataclass(frozen=True, slots=True)
class LogContent:
    """`by_number` has the entries of each plain file, `compacted` those of the newest compact file.

    The latter replace all numbers up to `compact_number`, which is -1 if there is no compact file.
    """

    compact_number: int
    compacted: tuple[LogEntry, ...]
    by_number: Mapping[int, tuple[LogEntry, ...]]
    interval: int | None

    def entries(self) -> Iterable[LogEntry]:
        yield from self.compacted
        for number in sorted(self.by_number):
            if number > self.compact_number:
                yield from self.by_number[number]


def read_log(tree: Tree, log: FileLog) -> LogContent:
    """Raises Rejected if a file of the chain is damaged."""
    compacts = log.compact_numbers
    newest = compacts[-1] if compacts else -1
    compacted: tuple[LogEntry, ...] = ()
    by_number: dict[int, tuple[LogEntry, ...]] = {}
    for number, files in log.files.items():
        for file in files:
            if is_compact(file) and number != newest:
                continue
            content = tree.read(file.path)
            if content is None:
                continue
            try:
                entries = tuple(log_entries_of(content))
            except Damaged as damage:
                raise Rejected(f"{file.path} {damage}; the log cannot be rewound.") from damage
            if is_compact(file):
                compacted = entries
            else:
                by_number[number] = entries
    return LogContent(newest, compacted, by_number, _interval(compacts))


def source_log_at(log: LogContent, number: int) -> dict[str, bytes]:
    """Returns {name: content} for the files of a source's log whose newest entry is `number`."""
    by_number: dict[int, list[LogEntry]] = {}
    for entry in log.entries():
        by_number.setdefault(entry.batch_id, []).append(entry)
    return _files(log, by_number, number)


def sink_log_at(log: LogContent, batch_id: int, next_planned_ms: int | None) -> dict[str, bytes]:
    """Does for a sink's log what `source_log_at` does for a source's.

    Lines of a compact file do not name their batch: a line written before the next batch was
    planned belongs to this batch or an earlier one. Raises Rejected if that time is not known and a
    compact file goes beyond the batch.
    """
    by_number = {n: list(each) for n, each in log.by_number.items() if n > log.compact_number}
    kept = list(log.compacted)
    if log.compact_number > batch_id:
        if next_planned_ms is None:
            raise Rejected(
                f"The log of the output was compacted after batch {batch_id}, and it is not known"
                " when the next batch began; choose a new output."
            )
        kept = [entry for entry in kept if entry.modified_ms < next_planned_ms]
    by_number.setdefault(0, [])[:0] = kept
    return _files(log, by_number, batch_id)


def empty_sink_log_at(log: LogContent, batch_id: int) -> dict[str, bytes]:
    """Returns the same files as `sink_log_at`, without entries.

    Spark's file sink fails when it compacts a log in which an earlier batch is missing.
    """
    return _files(log, {}, batch_id)


def _files(
    log: LogContent, by_number: Mapping[int, list[LogEntry]], newest: int
) -> dict[str, bytes]:
    """Returns plain files where Spark expects no compact file, else one compact file with all."""
    numbers = range(newest + 1)
    if log.interval is None and log.compact_number < 0:
        return {str(n): _content(by_number.get(n, ())) for n in numbers}
    compact = newest
    if log.interval is not None and newest + 1 < SPARKS_INTERVAL:
        compact = (newest + 1) // log.interval * log.interval - 1
    files = {str(n): _content(by_number.get(n, ())) for n in numbers if n > compact}
    if compact >= 0:
        before = [entry for n in numbers if n <= compact for entry in by_number.get(n, ())]
        files[f"{compact}.compact"] = _content(before)
    return files


def _content(entries: Iterable[LogEntry]) -> bytes:
    return "\n".join(("v1", *(entry.line for entry in entries))).encode()


def _interval(compacts: tuple[int, ...]) -> int | None:
    if len(compacts) >= 2:
        return compacts[-1] - compacts[-2]
    return compacts[0] + 1 if compacts else None
