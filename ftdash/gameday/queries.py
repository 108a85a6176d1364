"""The only reader of the rows of game days, and the score over all of them.

The score has one line for each fault in each pipeline.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from statistics import median

import msgspec
from django.db.models import QuerySet
from django.utils import timezone

from ftdash.gameday.models import Fault, GameDay, GameDayState, Verdict
from ftdash.gameday.observation import seen
from ftdash.gameday.scoring import Measures, Seen
from ftdash.requests.asking import problem_with
from ftdash.runs.queries.pipelines import newest_runs
from pipelines.domain.commands import KillSlot


@dataclass(frozen=True, slots=True)
class Scored:
    """One game day that has ended."""

    pipeline: str
    fault: Fault
    verdict: Verdict
    ended_at: datetime
    measures: Measures


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Medians are over the game days whose fault took effect; None: there are none."""

    pipeline: str
    fault: Fault
    passed: int
    failed: int
    unproven: int
    not_happened: int
    detection_ms: float | None
    recovery_ms: float | None
    slowest_recovery_ms: float | None
    last_at: datetime
    last_verdict: Verdict

    @property
    def runs(self) -> int:
        """The number that took effect."""
        return self.passed + self.failed + self.unproven


def scoreboard(days: Iterable[Scored]) -> list[Score]:
    """By pipeline, then in the order in which the faults are declared."""
    groups: dict[tuple[str, Fault], list[Scored]] = {}
    for day in days:
        groups.setdefault((day.pipeline, day.fault), []).append(day)
    order = list(Fault)
    keys = sorted(groups, key=lambda key: (key[0], order.index(key[1])))
    return [_score(*key, groups[key]) for key in keys]


def _score(pipeline: str, fault: Fault, days: list[Scored]) -> Score:
    counts = {verdict: sum(day.verdict is verdict for day in days) for verdict in Verdict}
    took_effect = [day.measures for day in days if day.verdict is not Verdict.NOT_HAPPENED]
    detections = [each.detection_ms for each in took_effect if each.detection_ms is not None]
    recoveries = [each.recovery_ms for each in took_effect if each.recovery_ms is not None]
    last = max(days, key=lambda day: day.ended_at)
    return Score(
        pipeline=pipeline,
        fault=fault,
        passed=counts[Verdict.PASSED],
        failed=counts[Verdict.FAILED],
        unproven=counts[Verdict.UNPROVEN],
        not_happened=counts[Verdict.NOT_HAPPENED],
        detection_ms=median(detections) if detections else None,
        recovery_ms=median(recoveries) if recoveries else None,
        slowest_recovery_ms=max(recoveries, default=None),
        last_at=last.ended_at,
        last_verdict=last.verdict,
    )


DAYS_MAX = 30
SCORED_MAX = 2_000
"""The score is made from the newest of all that have ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GameDayView:
    key: int
    pipeline: str
    run_id: str
    fault: Fault
    fault_label: str
    slot: int | None
    requester: str
    reason: str
    state: GameDayState
    state_label: str
    why: str
    verdict: Verdict | None
    verdict_label: str
    asked_at: datetime
    injected_at: datetime | None
    ended_at: datetime | None
    audit_key: int | None
    seen: Seen | None  # None: the fault has not been carried out yet

    @property
    def is_under_way(self) -> bool:
        return self.verdict is None

    @property
    def measures(self) -> Measures:
        return self.seen.measures if self.seen else Measures()


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pipeline, and why it cannot be hit now; empty: it can."""

    name: str
    why_not: str


@dataclass(frozen=True, slots=True)
class GameDays:
    """`days`: newest first."""

    now: datetime
    days: list[GameDayView]
    scores: list[Score]

    @property
    def under_way(self) -> list[GameDayView]:
        return [day for day in self.days if day.is_under_way]


def game_days(pipeline: str | None = None, limit: int = DAYS_MAX) -> GameDays:
    rows = GameDay.objects.select_related("pipeline", "run__pipeline", "audit")
    if pipeline is not None:
        rows = rows.filter(pipeline__name=pipeline)
    newest = rows.order_by("-pk")
    return GameDays(
        now=timezone.now(),
        days=[_view(row) for row in newest[:limit]],
        scores=scoreboard(_scored(newest)),
    )


def candidates() -> list[Candidate]:
    """Every pipeline, by name; takes as many queries for a thousand as for one."""
    asked = ((row, problem_with(KillSlot, row, run)) for row, run in newest_runs())
    return [Candidate(row.name, problem) for row, problem in asked]


def game_day(key: int) -> GameDayView | None:
    rows = GameDay.objects.select_related("pipeline", "run__pipeline", "audit")
    row = rows.filter(pk=key).first()
    return _view(row) if row else None


def _scored(newest: QuerySet[GameDay]) -> list[Scored]:
    over = newest.filter(state=GameDayState.ENDED)[:SCORED_MAX]
    return [
        Scored(
            pipeline=row.pipeline.name,
            fault=Fault(row.fault),
            verdict=Verdict(row.verdict),
            ended_at=row.ended_at or row.asked_at,
            measures=msgspec.convert(row.seen, Seen).measures,
        )
        for row in over
    ]


def _view(row: GameDay) -> GameDayView:
    return GameDayView(
        key=row.pk,
        pipeline=row.pipeline.name,
        run_id=row.run.run_id,
        fault=Fault(row.fault),
        fault_label=str(Fault(row.fault).label),
        slot=row.slot,
        requester=row.requester,
        reason=row.reason,
        state=GameDayState(row.state),
        state_label=str(GameDayState(row.state).label),
        why=row.why,
        verdict=Verdict(row.verdict) if row.verdict else None,
        verdict_label=str(Verdict(row.verdict).label) if row.verdict else "",
        asked_at=row.asked_at,
        injected_at=row.injected_at,
        ended_at=row.ended_at,
        audit_key=row.audit_id,
        seen=_seen(row),
    )


def _seen(row: GameDay) -> Seen | None:
    if row.seen is not None:
        return msgspec.convert(row.seen, Seen)
    return seen(row) if row.injected_at is not None else None
