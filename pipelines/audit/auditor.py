"""Audits a run's input and output: up to which checkpoint each equals what the ledger records.

The audit compares output row for row. It judges only points whose output must be visible, so a run
may continue meanwhile. It does not judge whether a sink was given the right rows: it proves that
none of those rows was lost, doubled or changed on the way to its readers. This module decides which
reader audits which sink. A sink without a reader is reported as not audited.

For the input, each split must continue at every checkpoint where the last one left it. This check
uses only the ledger, along the lineage of points, and does not ask the sources. A gap is input that
no checkpoint read, an overlap is input that two read. The counts of sources and run must agree. The
audit cannot compare what the ledger does not know: where the reading of a split began, and the step
across a point that its driver completed but did not live to enter. A gap that a person accepted is
no difference, but it is reported.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pyarrow as pa

from pipelines.audit.file_output import FileOutput
from pipelines.audit.history import Cut, FindJournal, History, Point, read_history
from pipelines.audit.kafka_output import KafkaLogOutput, KafkaOutput, RecordRows, TopicReading
from pipelines.audit.report import (
    AuditReport,
    Covers,
    Difference,
    InputReport,
    SinkReport,
    TargetReader,
    checkpoint_of,
    described,
    given,
    run_of,
    weaker,
)
from pipelines.audit.table_output import RedisOutput, TableOutput, Tags
from pipelines.bus.journal_segments import segments_of
from pipelines.connectors.files.sink import ExactlyOnceFiles
from pipelines.connectors.kafka.sink import KafkaSink
from pipelines.connectors.kafka.transactions import ExactlyOnceKafka, KafkaUpsert
from pipelines.connectors.kafka.write_ahead import WriteAheadKafka
from pipelines.connectors.postgres.insert import PostgresInsert
from pipelines.connectors.postgres.two_phase import PostgresTwoPhase
from pipelines.connectors.redis.hashes import RedisHashes
from pipelines.connectors.sink import Sink
from pipelines.connectors.sql.upsert import SqlUpsert
from pipelines.domain.errors import UNDECODABLE, Rejected
from pipelines.domain.gaps import Gap
from pipelines.domain.ids import CheckpointId, RunId, Uid
from pipelines.domain.ledger import LedgerEntry, SourceInput, SplitRange
from pipelines.domain.run import RunDirectory, RunSpec
from pipelines.flows.finding import find_flow
from pipelines.packages.store import stored_code


def input_reports(history: History) -> list[InputReport]:
    """Reports on every source that the ledger names, sorted by name."""
    points = history.committed
    named = {each.source for point in points for each in point.entry.inputs}
    return [_audited(source, points, history.gaps) for source in sorted(named)]


def _audited(source: Uid, points: Sequence[Point], gaps: Sequence[Gap]) -> InputReport:
    accepted = [gap for gap in gaps if gap.source == source]
    reading = _Reading(source, {(gap.split, gap.first): gap.last + 1 for gap in accepted})
    proven: Cut | None = None
    difference: Difference | None = None
    for before, point in zip((None, *points), points, strict=False):
        difference = reading.go_on(point, before.entry if before else None)
        if difference is not None:
            break
        proven = point.cut
    return InputReport(
        source=source,
        records=reading.records,
        proven_run_id=run_of(proven),
        proven_checkpoint_id=checkpoint_of(proven),
        unknown_checkpoint_id=reading.unknown_id,
        difference=described(difference) if difference else None,
        gaps=accepted,
    )


@dataclass(slots=True)
class _Reading:
    source: Uid
    accepted: Mapping[tuple[str, int], int]  # {(split, first offset of a gap): the one behind it}
    records: int = 0
    unknown_id: CheckpointId | None = None
    _ends: dict[str, int | None] = field(default_factory=dict)  # where each split was left

    def go_on(self, point: Point, before: LedgerEntry | None) -> Difference | None:
        entry = point.entry
        if not entry.inputs:  # a starting point that was entered again
            self._ends = {}
            self.unknown_id = entry.checkpoint_id
            return None
        if before is not None and not _add_up(before, entry):
            read = entry.records_read - before.records_read
            return Difference(
                f"The sources say that they read {sum(i.records for i in entry.inputs):,} records,"
                f" and the run that it read {read:,}.",
                point.cut,
            )
        for each in entry.inputs:
            if each.source == self.source:
                return self._take(point.cut, each)
        return None

    def _take(self, cut: Cut, read: SourceInput) -> Difference | None:
        for split in read.splits:
            if split.split in self._ends and not self._goes_on(split):
                return Difference(self._contradiction(split), cut, part=f"split {split.split}")
            self._ends[split.split] = split.end
        self.records += read.records
        return None

    def _goes_on(self, split: SplitRange) -> bool:
        """True if it continues where it was left, or behind exactly the gap accepted there."""
        left = self._ends[split.split]
        behind = None if left is None else self.accepted.get((split.split, left))
        return split.first == left or (behind is not None and split.first == behind)

    def _contradiction(self, split: SplitRange) -> str:
        left, first = self._ends[split.split], split.first
        if left is None or first is None or first < left:
            until = "its end" if left is None else f"offset {left:,}"
            return f"Split {split.split} was read again from {_place(first)}, read up to {until}."
        return f"Split {split.split} was left at offset {left:,} and continues at offset {first:,}."


def _place(offset: int | None) -> str:
    return "its beginning" if offset is None else f"offset {offset:,}"


def _add_up(before: LedgerEntry, entry: LedgerEntry) -> bool:
    """True if the counts agree, or at a restore, which may have lost or gained a source."""
    if before.run_id != entry.run_id:
        return True
    read = sum(each.records for each in entry.inputs)
    return entry.records_read - before.records_read == read


def reader_of(sink: Sink, schema: pa.Schema) -> TargetReader | None:
    """Returns the reader of a sink; None: its target cannot be read again.

    Reads the target at once, so read the journal before. Raises Rejected if the target cannot be
    read.
    """
    match sink:
        case ExactlyOnceFiles(directory=directory):
            return FileOutput(Path(directory), schema)
        case (
            SqlUpsert(applies_changes=True)
            | RedisHashes(applies_changes=True)
            | KafkaUpsert(applies_changes=True)
        ):
            return None  # the ledger knows the changes, not the rows that are left
        case SqlUpsert(url=url, table=table):
            return TableOutput(url, table, schema, Tags.OF_NEWEST)
        case PostgresInsert(url=url, table=table):
            return TableOutput(url, table, schema, Tags.OF_CHECKPOINT)
        case PostgresTwoPhase(url=url, table=table):
            return TableOutput(url, table, schema, Tags.OF_INTERVAL)
        case RedisHashes(url=url, prefix=prefix):
            return RedisOutput(url, prefix, schema)
        case ExactlyOnceKafka():
            return KafkaOutput(_reading(sink, schema))
        case WriteAheadKafka():
            return KafkaLogOutput(_reading(sink, schema), sink.ownership)
    return None


def _reading(sink: KafkaSink, schema: pa.Schema) -> TopicReading:
    return TopicReading(sink.address, sink.topic, RecordRows(schema, sink.value, sink.key))


Tell = Callable[[str], None]
"""Called before each step, with the rest of a sentence that names the step."""


def audit(run: RunDirectory, tell: Tell = lambda _: None) -> AuditReport:
    """Raises Rejected when the run, its journal or a target cannot be read."""
    spec = _spec_of(run)
    find = _journals_beside(run)
    pipeline = find_flow(spec.pipeline, stored_code(spec.code, run.jobs_root)).build(
        spec.parameters
    )
    sinks = [(uid, each, pipeline.input_schemas(uid)[0]) for uid, each in pipeline.sinks.items()]
    return audit_sinks(sinks, lambda: read_history(spec.run_id, run.journal_file, find), tell)


def audit_sinks(
    taking: Sequence[tuple[Uid, Sink, pa.Schema]],
    read: Callable[[], History],
    tell: Tell = lambda _: None,
) -> AuditReport:
    """Audits each sink; `taking` also has the schema of the rows that each sink takes.

    1. Read the journal. 2. Read the targets, which then have all output committed by that journal.
    3. Read the journal again, which then has all output that the targets show.
    """
    tell("reading the ledger")
    history = read()
    readers = []
    for number, (uid, sink, schema) in enumerate(taking if history.committed else (), 1):
        tell(f"reading what {uid} has written, {number} of {len(taking)}")
        readers.append((uid, sink, reader_of(sink, schema)))
    tell("comparing")
    later = read()
    sources = input_reports(history)
    sinks = [
        _SinkAudit(uid=uid, sink=sink, reader=reader, history=history, later=later).report()
        for uid, sink, reader in readers
    ]
    differences = [each.difference for each in sources] + [each.difference for each in sinks]
    return AuditReport(
        run_id=history.run_id,
        is_as_recorded=not any(differences),
        committed_checkpoint_id=_newest(history.committed),
        pending_checkpoint_id=_newest(history.pending),
        records_read=history.committed[-1].entry.records_read if history.committed else 0,
        unknown=history.unknown,
        sources=sources,
        sinks=sinks,
    )


@dataclass(slots=True, kw_only=True)
class _SinkAudit:
    uid: Uid
    sink: Sink
    reader: TargetReader | None  # None: the target cannot be read again
    history: History
    later: History
    covers: Covers = Covers.DIGESTED
    proven: Cut | None = None
    unread: Cut | None = None
    rows: int = 0

    def report(self) -> SinkReport:
        if self.reader is None:
            self.covers = Covers.NOTHING
            return self._report(None)
        stray = self.reader.stray(self.history, self.uid)
        if stray is not None and not self._has_point_of(stray):
            self.covers = Covers.NOTHING
            return self._report(stray)
        for point in self.history.committed:
            judged = self._judge(self.reader, point, stray)
            if isinstance(judged, Difference):
                return self._report(judged)
            self._take(point, judged)
        if self.proven is None and self.unread is not None:
            self.covers = Covers.NOTHING
        return self._report(self.reader.beside(self.later, self.uid))

    def _judge(
        self, reader: TargetReader, point: Point, stray: Difference | None
    ) -> Difference | Covers:
        judged = reader.judge(point, self.uid)
        if stray is not None and _is_behind(stray, point) and not isinstance(judged, Difference):
            return stray
        return judged

    def _take(self, point: Point, judged: Covers) -> None:
        if judged is Covers.NOTHING:
            self.proven, self.rows, self.unread = None, 0, point.cut
            return
        self.covers = weaker(self.covers, judged)
        self.rows += sum(given(outputs).count for outputs in point.given_to(self.uid).values())
        self.proven = point.cut

    def _has_point_of(self, stray: Difference) -> bool:
        return any(_is_behind(stray, point) for point in self.history.committed)

    def _report(self, difference: Difference | None) -> SinkReport:
        return SinkReport(
            sink=self.uid,
            guarantee=self.sink.guarantee,
            covers=self.covers,
            proven_run_id=run_of(self.proven),
            proven_checkpoint_id=checkpoint_of(self.proven),
            proven_rows=self.rows,
            difference=described(difference) if difference else None,
            unread_checkpoint_id=checkpoint_of(self.unread),
        )


def _is_behind(stray: Difference, point: Point) -> bool:
    """True if the point ought to contain the stray output."""
    cut, newest = stray.cut, point.cut
    return (
        cut is not None
        and cut.run_id == newest.run_id
        and (cut.checkpoint_id <= newest.checkpoint_id)
    )


def _newest(points: Sequence[Point]) -> CheckpointId | None:
    return points[-1].cut.checkpoint_id if points else None


def _spec_of(run: RunDirectory) -> RunSpec:
    try:
        return msgspec.json.decode(run.spec_file.read_bytes(), type=RunSpec)
    except (OSError, *UNDECODABLE) as error:
        raise Rejected(f"{run.spec_file} cannot be read: {error}.") from error


def _journals_beside(run: RunDirectory) -> FindJournal:
    """Finds another run's journal: run names are unique within an installation."""

    def find(run_id: RunId) -> Path | None:
        runs = map(RunDirectory, run.jobs_root.glob(f"*/runs/{run_id}"))
        return next((each.journal_file for each in runs if segments_of(each.journal_file)), None)

    return find
