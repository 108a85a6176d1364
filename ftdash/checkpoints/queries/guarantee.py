"""A run's ledger and audits, for the page of its guarantee: values, with their age.

Decides which entries have new output, which are committed, and which audit is still alive. Reads
rows only.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

import msgspec
from django.utils import timezone

from ftdash.checkpoints.models import Audit, Checkpoint, LedgerRow
from ftdash.checkpoints.queries.checkpoints import COMMITTED_ID
from ftdash.jobs.models import Run
from pipelines.domain.status import JobStatus

DIGEST_MODULUS = 1 << 64
SILENT_AFTER = timedelta(seconds=20)
"""An audit reports every two seconds that it is alive."""


@dataclass(frozen=True, slots=True)
class LedgerInput:
    source: str
    records: int
    ranges: list[str]


@dataclass(frozen=True, slots=True)
class LedgerOutput:
    """The output of all subtasks to one sink. `digest` is None if the rows were only counted."""

    sink: str
    rows: int
    digest: str | None
    tokens: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerLine:
    checkpoint_id: int
    attempt: int
    at: datetime
    records_read: int
    inputs: list[LedgerInput]
    outputs: list[LedgerOutput]
    is_void: bool
    is_committed: bool

    @property
    def tokens(self) -> list[str]:
        return [token for output in self.outputs for token in output.tokens]


@dataclass(frozen=True, slots=True)
class HeldOutput:
    """A sink's oldest waiting output, if its target rolls back transactions that wait too long.

    The sink opened its transaction before `since`, so the target rolls it back at `until` or
    earlier.
    """

    sink: str
    checkpoint_id: int
    rows: int
    since: datetime
    until: datetime
    is_overdue: bool


@dataclass(frozen=True, slots=True)
class Ledger:
    """`lines`: newest first. `waiting`: complete but not committed, oldest first."""

    lines: list[LedgerLine]
    waiting: list[LedgerLine]
    held: list[HeldOutput]

    @property
    def waiting_transactions(self) -> int:
        return sum(len(line.tokens) for line in self.waiting)

    @property
    def oldest_waiting(self) -> LedgerLine | None:
        return self.waiting[0] if self.waiting else None


class AuditState(StrEnum):
    WAITING = "WAITING"
    RUNNING = "RUNNING"
    INTERRUPTED = "INTERRUPTED"
    AS_RECORDED = "AS_RECORDED"
    DIFFERENT = "DIFFERENT"
    IMPOSSIBLE = "IMPOSSIBLE"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditView:
    key: int
    run_id: str
    run_number: int
    requester: str
    state: AuditState
    step: str
    created_at: datetime
    started_at: datetime | None  # the time for which its findings hold
    ended_at: datetime | None
    sentences: list[str]
    problem: str
    report: dict[str, Any] | None

    @property
    def is_open(self) -> bool:
        return self.state in (AuditState.WAITING, AuditState.RUNNING)


def ledger(run_id: str, limit: int) -> Ledger:
    run = Run.objects.filter(run_id=run_id).first()
    if run is None:
        return Ledger([], [], [])
    rows = list(LedgerRow.objects.filter(run=run).order_by("-sequence")[: limit + 1])
    committed_id = _newest_committed(run)
    lines = []
    newest_id = 0  # before the row
    for row in reversed(rows):
        lines.append(_line(row, newest_id, committed_id))
        newest_id = row.checkpoint_id
    shown = lines[-limit:]
    waiting = [line for line in shown if not line.is_void and not line.is_committed]
    return Ledger(shown[::-1], waiting, list(_held(run, waiting)))


def audits(pipeline: str, limit: int) -> list[AuditView]:
    """Returns the newest audits of the pipeline, newest first."""
    found = Audit.objects.filter(run__pipeline__name=pipeline).select_related("run")
    now = timezone.now()
    return [_audit_view(row, now) for row in found.order_by("-id")[:limit]]


def is_silent(row: Audit, now: datetime) -> bool:
    """True if it has begun and not ended, and no longer reports."""
    since = row.moved_at or row.started_at
    return row.ended_at is None and since is not None and since < now - SILENT_AFTER


def _newest_committed(run: Run) -> int:
    """Returns the newest committed checkpoint. A finished run has committed all of them."""
    if run.status == JobStatus.FINISHED.value:
        return run.last_checkpoint_id or 0
    row = Run.objects.filter(pk=run.pk).annotate(committed_id=COMMITTED_ID)
    newest: int = row.values_list("committed_id", flat=True).get()
    return newest


def _held(run: Run, waiting: Sequence[LedgerLine]) -> Iterator[HeldOutput]:
    now = timezone.now()
    for sink, timeout_ms in run.transaction_timeouts_ms.items():
        found = ((line, each) for line in waiting for each in line.outputs)
        oldest = next((pair for pair in found if pair[1].sink == sink and pair[1].tokens), None)
        if oldest is None:
            continue
        line, output = oldest
        begun = Checkpoint.objects.filter(run=run, checkpoint_id=line.checkpoint_id).first()
        since = begun.trigger_at if begun else line.at
        until = since + timedelta(milliseconds=timeout_ms)
        yield HeldOutput(sink, line.checkpoint_id, output.rows, since, until, until <= now)


def _line(row: LedgerRow, newest_id: int, committed_id: int) -> LedgerLine:
    """Leaves out output that an earlier entry already has: it is the same output."""
    new = [each for each in row.outputs if each["share"]["checkpoint_id"] > newest_id]
    found = {
        **vars(row),
        "inputs": [_input(each) for each in row.inputs],
        "outputs": [_output(sink, new) for sink in sorted({each["sink"] for each in new})],
        "is_committed": row.checkpoint_id <= committed_id,
    }
    return msgspec.convert(found, LedgerLine)


def _input(stored: dict[str, Any]) -> LedgerInput:
    ranges = [_range(**split) for split in stored["splits"]]
    return LedgerInput(stored["source"], stored["records"], ranges)


def _range(split: str, first: int | None, end: int | None) -> str:
    since = "its beginning" if first is None else f"{first:,}"
    until = "its end" if end is None else f"{end:,}"
    return f"{split}: {since} to {until}"


def _output(sink: str, stored: Iterable[dict[str, Any]]) -> LedgerOutput:
    shares = [each["share"] for each in stored if each["sink"] == sink]
    tokens = [token for share in shares for token in share["tokens"]]
    return LedgerOutput(sink, sum(share["rows"] for share in shares), _digest(shares), tokens)


def _digest(shares: Sequence[dict[str, Any]]) -> str | None:
    digests = [share["digest"] for share in shares]
    if None in digests:
        return None
    return f"{sum(int(each, 16) for each in digests) % DIGEST_MODULUS:016x}"


def _audit_view(row: Audit, now: datetime) -> AuditView:
    found = {
        **vars(row),
        "key": row.pk,
        "run_id": row.run.run_id,
        "run_number": row.run.number,
        "state": _state(row, now),
    }
    return msgspec.convert(found, AuditView)


def _state(row: Audit, now: datetime) -> AuditState:
    if row.ended_at is None:
        if row.started_at is None:
            return AuditState.WAITING
        return AuditState.INTERRUPTED if is_silent(row, now) else AuditState.RUNNING
    if row.report is None:
        return AuditState.IMPOSSIBLE
    return AuditState.AS_RECORDED if row.report["is_as_recorded"] else AuditState.DIFFERENT
