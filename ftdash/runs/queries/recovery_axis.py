"""Failures, recoveries and recovery points of one run, for one time axis.

A failure says what died, what caused it, and at which records. Source of its label: Flink,
`TypeFailureEnricher`, whose key "type" is USER if a function of the pipeline raised, and SYSTEM if
a process, a connection or Spark failed.
"""

import re
from datetime import datetime
from typing import TypeVar

import msgspec
from django.db.models import Case, Count, Max, QuerySet, Value, When
from django.utils import timezone

from ftdash.checkpoints.models import COMPLETE, Checkpoint, CheckpointStatus
from ftdash.formats import size
from ftdash.jobs.answers import (
    AxisPoint,
    DamageView,
    FailureView,
    Notice,
    PhaseView,
    RecoveryAxis,
    RecoveryView,
    StatusView,
    VerificationView,
    ZombiesView,
)
from ftdash.jobs.damage import text_of
from ftdash.jobs.models import (
    DamageFinding,
    Failure,
    JournalRow,
    Leftover,
    PointsVerification,
    Recovery,
    RepeatedOutput,
    RestoreRefusal,
    Run,
    StatusChange,
    SupersededOutput,
    TargetTakeover,
    ZombieRefusal,
)
from ftdash.runs.queries.freshness import to_running_ms
from ftdash.times import moment
from pipelines.domain.ledger import published_again

_RAISED = "Traceback (most recent call last):"
_NAME = re.compile(r"[A-Za-z_][\w.]*(?=:|$)")


def failures(run_id: str, limit: int) -> list[FailureView]:
    """The newest `limit` failures of one run, newest first."""
    rows = Failure.objects.filter(run__run_id=run_id).order_by("-sequence")[:limit]
    return [failure_view(row, run_id) for row in rows]


def failure_view(row: Failure, run_id: str) -> FailureView:
    found = {
        **vars(row),
        "run_id": run_id,
        "label": "SYSTEM" if row.operator is None else "USER",
        "error_type": error_type(row.detail),
        "records": None if row.origin is None else {"is_moment": False, **row.origin},
    }
    return msgspec.convert(found, FailureView)


def error_type(trace: str) -> str:
    """Returns the name of the last exception in a Python traceback: the one that was raised.

    Empty if the text is not a traceback. Further lines of a message do not matter.
    """
    _, found, last = trace.rpartition(_RAISED)
    if not found:
        return ""
    unindented = (line for line in last.splitlines() if line and not line[0].isspace())
    name = _NAME.match(next(unindented, ""))
    return name[0].rpartition(".")[2] if name else ""


Row = TypeVar("Row", bound=JournalRow)
Found = TypeVar("Found")  # whole rows, or some of their fields

INCIDENTS_MAX = 200
"""How many of each kind are shown, the newest; the rows of the others stay."""


_CLAIMED = Case(  # `what` begins with the kind, see `runtime.master.control_claims`
    When(what__startswith="a commit", then=Value("late commit")),
    When(what__startswith="an acknowledgement", then=Value("late acknowledgement")),
    When(what__startswith="a decline", then=Value("late decline")),
    When(what__startswith="the end of", then=Value("late end of input")),
    default=Value("connection"),
)


def recovery_axis(run_id: str, points_max: int = 500) -> RecoveryAxis | None:
    """Failures, recoveries and the newest `points_max` recovery points of one run."""
    known = Run.objects.filter(run_id=run_id)
    run = known.only("run_id", "created_at", "started_at", "ended_at").first()
    if run is None:
        return None
    return RecoveryAxis(
        run_id=run_id,
        from_at=run.started_at or run.created_at,
        to_at=run.ended_at or timezone.now(),
        points=_points(run, points_max),
        failures=[failure_view(row, run_id) for row in _newest(Failure.objects.filter(run=run))],
        recoveries=_recoveries(run),
        statuses=[
            StatusView(run_id, *each)
            for each in _newest(
                StatusChange.objects.filter(run=run).values_list("at", "status", "reason")
            )
        ],
        notices=_notices(run),
        verifications=_verifications(run),
        damages=_damages(run),
        zombies=_zombies(run),
    )


def _points(run: Run, points_max: int) -> list[AxisPoint]:
    rows = Checkpoint.objects.filter(run=run, status__in=COMPLETE).order_by("-sequence")
    found = rows.values_list("checkpoint_id", "kind", "completed_at", "status", "path")
    return [
        AxisPoint(
            run_id=run.run_id,
            checkpoint_id=number,
            kind=kind,
            at=at,
            is_available=status == CheckpointStatus.COMPLETED,
            path=path,
        )
        for number, kind, at, status, path in reversed(found[:points_max])
        if number is not None and at is not None
    ]


def _recoveries(run: Run) -> list[RecoveryView]:
    found = Recovery.objects.filter(run=run).values_list(
        "attempt",
        "started_at",
        "running_at",
        "ended_at",
        "phases",
        "restored_checkpoint_id",
        "restored_path",
        "records_to_replay",
    )
    return [
        RecoveryView(
            run_id=run.run_id,
            attempt=attempt,
            started_at=started_at,
            running_at=running_at,
            ended_at=ended_at,
            to_running_ms=to_running_ms(running_at, phases),
            phases=[
                PhaseView(phase["phase"], phase["duration_ms"], moment(phase["at_ms"]))
                for phase in phases
            ],
            restored_checkpoint_id=checkpoint_id,
            restored_path=path,
            records_to_replay=to_replay,
        )
        for (
            attempt,
            started_at,
            running_at,
            ended_at,
            phases,
            checkpoint_id,
            path,
            to_replay,
        ) in _newest(found)
    ]


def _notices(run: Run) -> list[Notice]:
    notices = [
        *(
            Notice("restore_refused", run.run_id, row.attempt, row.at, row.message)
            for row in _newest(RestoreRefusal.objects.filter(run=run))
        ),
        *(
            Notice("zombie_refused", run.run_id, row.attempt, row.at, _zombie(row))
            for row in _newest(ZombieRefusal.objects.filter(run=run))
        ),
        *(
            Notice("output_superseded", run.run_id, row.attempt, row.at, _superseded(row))
            for row in _newest(SupersededOutput.objects.filter(run=run))
        ),
        *(
            Notice("output_published_again", run.run_id, row.attempt, row.at, _repeated(row))
            for row in _newest(RepeatedOutput.objects.filter(run=run))
        ),
        *(
            Notice(_fate(row), run.run_id, row.attempt, row.at, _leftover(row))
            for row in _newest(Leftover.objects.filter(run=run))
        ),
        *(
            Notice("target_taken_over", run.run_id, row.attempt, row.at, _takeover(row))
            for row in _newest(TargetTakeover.objects.filter(run=run))
        ),
    ]
    return sorted(notices, key=_time)


def _verifications(run: Run) -> list[VerificationView]:
    rows = PointsVerification.objects.filter(run=run)
    found = rows.values_list("at", "whole", "damaged", "not_counted", "duration_ms")
    return [VerificationView(run.run_id, *each) for each in _newest(found)]


def _damages(run: Run) -> list[DamageView]:
    found = ((row, text_of(row)) for row in _newest(DamageFinding.objects.filter(run=run)))
    return [
        DamageView(run.run_id, row.at, damage.what, damage.outcome, row.message)
        for row, damage in found
    ]


def _zombies(run: Run) -> list[ZombiesView]:
    """Counts all refusals in the database, not only the newest."""
    refused = ZombieRefusal.objects.filter(run=run).annotate(kind=_CLAIMED)
    found = refused.values_list("zombie_attempt", "kind").annotate(Count("pk"), Max("at"))
    return [ZombiesView(*each) for each in found.order_by("zombie_attempt", "kind")]


def _zombie(row: ZombieRefusal) -> str:
    if not row.zombie_attempt:
        return f"A stranger was refused: {row.what}."
    return f"Refused, because attempt {row.zombie_attempt} is over: {row.what}."


def _superseded(row: SupersededOutput) -> str:
    return (
        f"{row.files} outputs of the sink {row.sink} were written after the restored point and"
        f" were set aside in {row.moved_to}."
    )


def _repeated(row: RepeatedOutput) -> str:
    return published_again(row.sink, row.target, row.records, is_at_most=row.is_at_most)


def _fate(row: Leftover) -> str:
    return "leftovers_kept" if row.why_kept else "leftovers_discarded"


def _leftover(row: Leftover) -> str:
    count = f"{row.count} " if row.count else ""
    volume = f" ({size(row.size_bytes)})" if row.size_bytes is not None else ""
    left_by = f", left by {row.left_by}" if row.left_by else ""
    where = f"{count}{row.what}{volume} of the sink {row.sink} in {row.target}{left_by}"
    return f"{where}. {row.why_kept}".strip()


def _takeover(row: TargetTakeover) -> str:
    return (
        f"The sink {row.sink} holds {row.target} from this run on. {row.loser[0].upper()}"
        f"{row.loser[1:]} held it before, may not write there any more, and ends as failed."
    )


def _time(notice: Notice) -> datetime:
    return notice.at


def _newest(rows: QuerySet[Row, Found]) -> list[Found]:
    return list(reversed(rows.order_by("-sequence")[:INCIDENTS_MAX]))
