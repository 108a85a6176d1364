"""Compares the output that an audit expects of each sink with what it finds, and reports it.

The comparison is of sums over all subtasks of a cut: rows that moved between the files of one cut
are the same output. It names the file at fault if it can. The report has values, for scripts, and
sentences, for a person at a terminal.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import msgspec

from pipelines.audit.history import Cut, History, Point
from pipelines.domain.gaps import Gap
from pipelines.domain.ids import CheckpointId, RunId, Uid
from pipelines.domain.ledger import OutputShare, SinkOutput
from pipelines.state.row_digest import MODULUS


class Covers(StrEnum):
    """How thoroughly the audit compared output in which it found no difference."""

    DIGESTED = "digested"
    COUNTED = "counted, not digested"
    NOTHING = "not audited"


@dataclass(frozen=True, slots=True)
class Rows:
    """`digest` None: the rows were only counted."""

    count: int
    digest: int | None

    @property
    def digest_text(self) -> str | None:
        return None if self.digest is None else f"{self.digest:016x}"


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where the output is not what the ledger says; `what` is one sentence."""

    what: str
    cut: Cut | None = None
    expected: Rows | None = None
    found: Rows | None = None
    part: str | None = None


class TargetReader(Protocol):
    """Reads one sink's target again, without the code that wrote it."""

    def stray(self, history: History, sink: Uid) -> Difference | None:
        """Finds what a reader would take for output although no checkpoint has it."""
        ...

    def judge(self, point: Point, sink: Uid) -> Difference | Covers:
        """Compares the target with the rows that the sink was given for `point`.

        Covers.NOTHING: the target no longer keeps that output, or it cannot be identified.
        """
        ...

    def beside(self, later: History, sink: Uid) -> Difference | None:
        """Finds a difference that does not affect the proven output.

        `later` was read after the target.
        """
        ...


JudgeCut = Callable[[Cut, Sequence[SinkOutput]], Difference | Covers]


def judged_by_cut(point: Point, sink: Uid, judge: JudgeCut) -> Difference | Covers:
    """Judges a target that keeps apart the output of each checkpoint, aborted ones included."""
    covers = Covers.DIGESTED
    for cut, outputs in point.given_to(sink).items():
        judged = judge(cut, outputs)
        if isinstance(judged, Difference):
            return judged
        covers = weaker(covers, judged)
    return covers


def weaker(one: Covers, other: Covers) -> Covers:
    return max(one, other, key=list(Covers).index)


def total(parts: Iterable[Rows]) -> Rows:
    every = list(parts)
    digests = [part.digest for part in every if part.digest is not None]
    digest = sum(digests) % MODULUS if len(digests) == len(every) else None
    return Rows(sum(part.count for part in every), digest)


def given(outputs: Iterable[SinkOutput]) -> Rows:
    return total(_given(output.share) for output in outputs)


def compared(
    cut: Cut, outputs: Sequence[SinkOutput], parts: dict[str, Rows]
) -> Difference | Covers:
    """Compares what a cut's subtasks were given with what its parts hold, {token: rows}."""
    expected, found = given(outputs), total(parts.values())
    part = _part_at_fault(outputs, parts)
    if found.count != expected.count:
        what = f"{found.count} rows were found where {expected.count} were given."
        return Difference(what, cut, expected, found, part)
    is_digested = None not in (found.digest, expected.digest)
    if is_digested and found.digest != expected.digest:
        what = f"{expected.count} rows were given, and as many are there, but not the same ones."
        return Difference(what, cut, expected, found, part)
    return Covers.DIGESTED if is_digested else Covers.COUNTED


def _given(share: OutputShare) -> Rows:
    return Rows(share.rows, None if share.digest is None else int(share.digest, 16))


def _part_at_fault(outputs: Sequence[SinkOutput], parts: dict[str, Rows]) -> str | None:
    """Names the parts of the first subtask that do not add up to what it was given, or None."""
    for output in outputs:
        own = total(parts[token] for token in output.share.tokens if token in parts)
        if own not in (given([output]), Rows(output.share.rows, None)):
            return ", ".join(output.share.tokens)
    return None


class DifferenceReport(msgspec.Struct, frozen=True, kw_only=True):
    """`what` is one sentence; the other fields are None where they are not known."""

    what: str
    run_id: RunId | None
    checkpoint_id: CheckpointId | None
    expected_rows: int | None
    expected_digest: str | None
    found_rows: int | None
    found_digest: str | None
    part: str | None  # a file, a table, a range of offsets


class SinkReport(msgspec.Struct, frozen=True, kw_only=True):
    """`proven_checkpoint_id` belongs to `proven_run_id`; None: nothing is proven.

    `unread_checkpoint_id`: the newest checkpoint whose output the target no longer keeps, or whose
    place in it the ledger does not know. The audit judges neither this checkpoint nor older ones.
    """

    sink: Uid
    guarantee: str
    covers: Covers
    proven_run_id: RunId | None
    proven_checkpoint_id: CheckpointId | None
    proven_rows: int
    difference: DifferenceReport | None
    unread_checkpoint_id: CheckpointId | None = None


class InputReport(msgspec.Struct, frozen=True, kw_only=True):
    """Reports whether one source read each split without gap or overlap.

    `records` were read up to `proven_checkpoint_id`. `unknown_checkpoint_id` is the newest before
    which the ledger does not know the position: nothing is compared across it.
    """

    source: Uid
    records: int
    proven_run_id: RunId | None
    proven_checkpoint_id: CheckpointId | None
    unknown_checkpoint_id: CheckpointId | None
    difference: DifferenceReport | None
    gaps: list[Gap] = []  # accepted ones: these records were lost, and never read


class AuditReport(msgspec.Struct, frozen=True, kw_only=True):
    """Covers this run's points and those on the way to it.

    Until something is committed, the audit reads no target: it may not exist yet.
    """

    run_id: RunId
    is_as_recorded: bool  # nothing differs
    committed_checkpoint_id: CheckpointId | None  # the newest whose output must be visible
    pending_checkpoint_id: CheckpointId | None  # the newest that is complete and not committed yet
    records_read: int  # by the sources, up to the committed checkpoint, since the first run
    unknown: dict[RunId, CheckpointId]  # runs it descends from whose ledger no longer exists
    sources: list[InputReport]
    sinks: list[SinkReport]


def described(difference: Difference) -> DifferenceReport:
    cut, expected, found = difference.cut, difference.expected, difference.found
    return DifferenceReport(
        what=difference.what,
        run_id=cut.run_id if cut else None,
        checkpoint_id=cut.checkpoint_id if cut else None,
        expected_rows=expected.count if expected else None,
        expected_digest=expected.digest_text if expected else None,
        found_rows=found.count if found else None,
        found_digest=found.digest_text if found else None,
        part=difference.part,
    )


def checkpoint_of(cut: Cut | None) -> CheckpointId | None:
    return cut.checkpoint_id if cut else None


def run_of(cut: Cut | None) -> RunId | None:
    return cut.run_id if cut else None


def sentences(report: AuditReport) -> Iterator[str]:
    if report.committed_checkpoint_id is None:
        yield f"{report.run_id}: no checkpoint has been committed yet."
    else:
        yield f"{report.run_id}: committed up to checkpoint {report.committed_checkpoint_id}."
    for run_id, checkpoint_id in report.unknown.items():
        yield f"The ledger of {run_id}, up to checkpoint {checkpoint_id}, is not there any more."
    for source in report.sources:
        yield f"{source.source}: {_of_source(source)}"
        for gap in source.gaps:
            yield f"  lost, as a person accepted: {gap.lost}"
        if source.difference is not None:
            yield from _of_difference(source.difference)
    for sink in report.sinks:
        yield f"{sink.sink}: {_of_sink(sink)}"
        if sink.difference is not None:
            yield from _of_difference(sink.difference)


def _of_source(source: InputReport) -> str:
    if source.proven_checkpoint_id is None:
        return "it is not known what the source has read."
    where = f"up to checkpoint {source.proven_checkpoint_id} of {source.proven_run_id}"
    if source.unknown_checkpoint_id is None:
        return f"read {source.records} records {where}, without gap or overlap."
    return (
        f"read without gap or overlap {where}, but for checkpoint {source.unknown_checkpoint_id},"
        " before which the ledger does not say how far it was."
    )


def _of_sink(sink: SinkReport) -> str:
    if sink.covers is Covers.NOTHING and sink.difference is None:
        return f"not audited, {_why_not(sink)}."
    if sink.proven_checkpoint_id is None:
        return "nothing is proven."
    since = f" since checkpoint {sink.unread_checkpoint_id}" if sink.unread_checkpoint_id else ""
    return (
        f"proven{since} up to checkpoint {sink.proven_checkpoint_id} of {sink.proven_run_id},"
        f" {sink.proven_rows} rows, {sink.covers}."
    )


def _why_not(sink: SinkReport) -> str:
    if sink.unread_checkpoint_id is None:
        return "its target cannot be read again"
    return f"its target does not keep the output up to checkpoint {sink.unread_checkpoint_id}"


def _of_difference(difference: DifferenceReport) -> Iterator[str]:
    where = f"checkpoint {difference.checkpoint_id}: " if difference.checkpoint_id else ""
    yield f"  first difference: {where}{difference.what}"
    if difference.expected_rows is not None:
        yield f"  given {difference.expected_rows} rows, digest {difference.expected_digest}"
    if difference.found_rows is not None:
        yield f"  found {difference.found_rows} rows, digest {difference.found_digest or 'none'}"
    if difference.part is not None and difference.part not in difference.what:
        yield f"  in {difference.part}"
