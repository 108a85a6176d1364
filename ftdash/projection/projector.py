"""The only consumer of engine events: folds the journals of runs into rows, and judges incidents.

The rows of a batch and the run's offset in its journal are written in one transaction. So reading a
journal again changes nothing, and the rows can be rebuilt from it at any time. A line that cannot
be folded stops the projection of its run, visibly, but of no other run.

If older segments of a journal were deleted, the projection continues from the summary at its
beginning. Rows from before it stay, because they cannot be rebuilt. If some of the deleted part was
never read, the run says so, and gets from the summary the newest event on each matter.
"""

import logging
import os
import time
from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path

from django.db import InterfaceError, OperationalError, close_old_connections, transaction
from django.db.models import F, Q
from django.utils import timezone

from ftdash.checkpoints import projector as checkpoint_projector
from ftdash.checkpoints.models import Checkpoint, CheckpointStatus
from ftdash.checkpoints.projector import CheckpointFold, LedgerFold
from ftdash.history import limits
from ftdash.incidents import services as incidents
from ftdash.jobs.directories import run_directory
from ftdash.jobs.models import TERMINAL_STATUSES, Run
from ftdash.metrics import projector as metrics_projector
from ftdash.metrics.models import Heartbeat, HeartbeatName
from ftdash.metrics.projector import SampleFold
from ftdash.projection import incident_fold, run_fold
from ftdash.projection.incident_fold import IncidentFold
from ftdash.projection.run_fold import RunFold
from ftdash.telemetry import RunSpans, tracer
from ftdash.times import moment
from pipelines.bus.journal import (
    JournalCutShort,
    UndecodableEvent,
    first_offset,
    read_journal,
)
from pipelines.bus.journal_segments import envelopes_of, newest_segment
from pipelines.domain.errors import InvariantViolated, check
from pipelines.domain.events import Envelope, JournalContinued

PARTS = (incident_fold, checkpoint_projector, metrics_projector)


def go_on_from(run: Run, sequence: int, summary: JournalContinued) -> None:
    """Runs in the caller's transaction; `sequence` is that of the summary, which is folded next.

    1. Delete rows of later events, and of what was under way: all of them are folded again.
    2. Set the run back to its state at that time.
    3. Make rows of events that were never read, as far as the summary has them.
    """
    known = min(run.last_sequence, sequence - 1)
    kept, under_way = envelopes_of(summary.kept), envelopes_of(summary.under_way)
    begun = {each.sequence for each in under_way}
    _forget_earlier(run, known, begun)
    run.projection_error, run.driver_lost_at = "", None
    if known < sequence - 1:
        run.journal_gap = (
            f"Events {known + 1:,} to {sequence - 1:,} were deleted with old parts of the journal"
            " before they were read; only the newest of what they reported is shown."
        )
    incidents, checkpoints, ledger = IncidentFold(run), CheckpointFold(run), LedgerFold(run)
    events = {each.sequence: each for each in (*kept, *under_way)}
    for number in sorted(events):
        if number in begun:
            checkpoints.on(events[number])
        elif number > known:
            ledger.on(events[number])
        if number in begun or number > known:
            incidents.on(events[number])
        RunFold(run).on(events[number])
    for each in (incidents, checkpoints, ledger):
        each.save()
    run.last_sequence = sequence - 1


def _forget_earlier(run: Run, known: int, begun: set[int]) -> None:
    for part in PARTS:
        part.forget(run, Q(sequence__gt=known) | Q(sequence__in=begun))
    ended_unheard = Checkpoint.objects.filter(run=run, status=CheckpointStatus.IN_PROGRESS)
    ended_unheard.delete()


READ_BYTES_MAX = 1 << 20
HEARTBEAT_PERIOD_S = 1.0

log = logging.getLogger("ftdash.projector")


_spans: dict[str, RunSpans] = {}
"""The spans of the runs that this process has folded."""


class ProjectionRaced(Exception):
    """Another projector has folded the same events: this transaction is rolled back."""


class Projector:
    """Visits all runs that may still have news. One process of an installation runs it."""

    def __init__(self) -> None:
        self._heartbeat_due_s = 0.0

    def run_once(self) -> int:
        """Folds all news; returns the number of events.

        If the database is locked or gone, they wait for the next round.
        """
        close_old_connections()
        try:
            runs = _unfinished_runs()
            folded = sum(project(run) for run in runs)
            if self._is_due():
                # first: a projector that was away is no sign of an incident
                _record_heartbeat(runs)
                if problem := _judge_incidents():
                    _record_heartbeat(runs, problem)
        except (OperationalError, InterfaceError) as error:
            log.warning("The database cannot be written now, going on: %s", error)
            return 0
        return folded

    def _is_due(self) -> bool:
        now_s = time.monotonic()
        if now_s < self._heartbeat_due_s:
            return False
        self._heartbeat_due_s = now_s + HEARTBEAT_PERIOD_S
        return True


def project(run: Run) -> int:
    """Fold the next part of one run's journal; returns the number of events."""
    try:
        return _fold_next(run)
    except ProjectionRaced:
        log.warning("Another projector is at work on %s.", run.run_id)
        return 0
    except JournalCutShort as error:
        log.warning("The rows of %s will be rebuilt next time: %s", run.run_id, error)
        return 0
    except OSError as error:
        log.warning("The journal of %s cannot be read now, going on: %s", run.run_id, error)
        return 0
    except (OperationalError, InterfaceError):
        raise
    except (UndecodableEvent, InvariantViolated) as error:
        _stop(run, str(error))
    except Exception as error:  # the edge of this run: any error must not stop the others
        log.exception("An event of %s could not be folded.", run.run_id)
        _stop(run, f"{type(error).__name__}: {error}")
    return 0


def _stop(run: Run, why: str) -> None:
    log.error("The projection of %s has stopped: %s", run.run_id, why)
    Run.objects.filter(pk=run.pk).update(projection_error=why, version=F("version") + 1)


def _fold_next(run: Run) -> int:
    """Raises what `rebuild` and `fold` raise."""
    try:
        envelopes, offset = _news(run)
    except JournalCutShort as error:
        log.warning("Rebuilding the rows of %s: %s", run.run_id, error)
        rebuild(run)
        return 0
    if envelopes:
        run.clock_behind_s = _clock_behind_s(run, envelopes[-1], offset)
        with transaction.atomic():
            fold(run, envelopes, offset, expected_offset=run.journal_offset)
        spans = _spans.setdefault(run.run_id, RunSpans(run.pipeline.name, run.run_id))
        for envelope in envelopes if tracer() is not None else ():
            spans.on(envelope)
    return len(envelopes)


def _clock_behind_s(run: Run, newest: Envelope, offset: int) -> float:
    """Returns how far the newest line's time is behind the time at which the journal was written.

    Unchanged if more was written since: the next round tells.
    """
    segment = newest_segment(_journal(run))
    written = segment.path.stat()
    if segment.base + written.st_size != offset:
        return run.clock_behind_s
    return max(0.0, written.st_mtime - newest.at_ms / 1000)


def _news(run: Run) -> tuple[list[Envelope], int]:
    """Raises JournalCutShort if the journal does not continue where folding had stopped."""
    envelopes, offset = read_journal(_journal(run), run.journal_offset, READ_BYTES_MAX)
    if run.journal_offset and envelopes and envelopes[0].sequence != run.last_sequence + 1:
        raise JournalCutShort(
            f"event {envelopes[0].sequence} follows where {run.last_sequence + 1} is expected."
        )
    return envelopes, offset


def fold(run: Run, envelopes: Iterable[Envelope], offset: int, *, expected_offset: int) -> None:
    """Runs in the caller's transaction. Skips events that were folded before.

    Raises ProjectionRaced if the rows are not at `expected_offset`.
    """
    _check_stands_at(run, expected_offset)
    _fold_lines(run, envelopes, offset)
    RunFold(run).save()


def run_named(run_id: str) -> Run | None:
    return Run.objects.select_related("pipeline").filter(run_id=run_id).first()


def rebuild(run: Run) -> None:
    """Rebuild the run's rows from its journal, as far as that is kept, in one transaction.

    The run's own row is written last: intermediate values may break a uniqueness rule.
    """
    journal = _journal(run)
    with transaction.atomic():
        _check_stands_at(run, run.journal_offset)
        envelopes, offset = read_journal(journal, first_offset(journal))
        _forget(run, envelopes)
        while envelopes:
            _fold_lines(run, envelopes, offset)
            envelopes, offset = read_journal(journal, offset)
        RunFold(run).save()


def _check_stands_at(run: Run, offset: int) -> None:
    if not Run.objects.filter(pk=run.pk, journal_offset=offset).exists():
        raise ProjectionRaced(run.run_id)


def _fold_lines(run: Run, envelopes: Iterable[Envelope], offset: int) -> None:
    """Writes all rows except the run's own."""
    folds = SampleFold(run), LedgerFold(run), CheckpointFold(run), IncidentFold(run)
    of_run = RunFold(run)
    for envelope in envelopes:
        if envelope.sequence <= run.last_sequence:
            continue
        check(
            envelope.sequence == run.last_sequence + 1,
            "a journal has no gaps",
            run=run.run_id,
            expected=run.last_sequence + 1,
            found=envelope.sequence,
        )
        for each in (*folds, of_run):  # `of_run` comes last: it advances the sequence
            each.on(envelope)
    run.journal_offset = offset
    for each in folds:
        each.save()


def _forget(run: Run, envelopes: list[Envelope]) -> None:
    """Deletes the rows that the journal's first events and all later ones will write again."""
    if not envelopes and run.journal_begins:
        raise JournalCutShort("its journal is away, and the rows of its deleted part must stay.")
    first = envelopes[0] if envelopes else None
    if first is not None and isinstance(first.event, JournalContinued):
        go_on_from(run, first.sequence, first.event)
        return
    for part in PARTS:
        part.forget(run, Q())
    run_fold.forget(run)
    limits.forget(run)  # last: a concurrent deletion has added its rows by now


def _journal(run: Run) -> Path:
    return run_directory(run).journal_file


def _unfinished_runs() -> list[Run]:
    """The runs that have not ended; no event follows in a journal after the end."""
    unfinished = Run.objects.exclude(status__in=TERMINAL_STATUSES, ended_at__isnull=False)
    return list(unfinished.filter(projection_error="").select_related("pipeline"))


def _judge_incidents() -> str:
    """Returns a sentence that says why it could not, or an empty string if it could."""
    try:
        incidents.judge_all()
    except (OperationalError, InterfaceError):
        raise
    except Exception as error:  # the edge: journals are folded even if incidents fail
        log.exception("Incidents could not be judged.")
        return f"Incidents cannot be judged: {type(error).__name__}: {error}"
    return ""


def _record_heartbeat(runs: Iterable[Run], problem: str = "") -> None:
    """`runs` are those that were just folded."""
    names = Run.objects.exclude(projection_error="").values_list("run_id", flat=True)
    stopped = ", ".join(names)
    sentence = f"The projection of {stopped} has stopped." if stopped else ""
    # A projection that has stopped does not lag: web servers that are not ready would hide it.
    unread = map(_unread_since, runs)
    row = {
        "at": timezone.now(),
        "pid": os.getpid(),
        "note": " ".join(filter(None, (sentence, problem))),
        "unread_since": min((each for each in unread if each is not None), default=None),
    }
    Heartbeat.objects.update_or_create(name=HeartbeatName.PROJECTOR, defaults=row)


def _unread_since(run: Run) -> datetime | None:
    """Returns the time of the run's oldest unread event by this clock, or None without any."""
    try:
        unread, _ = read_journal(_journal(run), run.journal_offset, bytes_max=1)  # one line
    except (OSError, JournalCutShort, UndecodableEvent):
        oldest = run.last_event_at or run.created_at  # unread events are younger
    else:
        if not unread:
            return None
        oldest = moment(unread[0].at_ms)
    return oldest + timedelta(seconds=run.clock_behind_s)
