"""The score over all game days: one line for each fault in each pipeline. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from statistics import median

from ftdash.gameday.models import Fault, Verdict
from ftdash.gameday.scoring import Measures


@dataclass(frozen=True, slots=True)
class Scored:
    """One game day that has ended."""

    pipeline: str
    fault: Fault
    verdict: Verdict
    ended_at: datetime
    measures: Measures


@dataclass(frozen=True, slots=True)
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
