"""The tables of the recovery page, made from the answers of the queries. Pure."""

from collections.abc import Sequence
from statistics import median

from ftdash.formats import duration, plural
from ftdash.jobs.answers import RecoveryView, RunView, ZombiesView
from ftdash.points.queries.recovery_points import FitPoint
from ftdash.ui.pipelines.parts import PHASES, durations_of

_SEVERAL = {"late end of input": "late ends of input"}


def median_durations(recoveries: Sequence[RecoveryView]) -> list[float | None]:
    """The median of each of `PHASES` over the recoveries that reached it; None: none did."""
    columns = zip(*(durations_of(each) for each in recoveries), strict=True)
    medians = [_median([ms for ms in column if ms is not None]) for column in columns]
    return medians or [None] * len(PHASES)


def median_to_running_ms(recoveries: Sequence[RecoveryView]) -> float | None:
    return _median([each.to_running_ms for each in recoveries if each.to_running_ms is not None])


def zombie_sentence(zombies: ZombiesView) -> str:
    """`2 late commits of attempt 3 refused.`"""
    refused = plural(zombies.count, zombies.kind, _SEVERAL.get(zombies.kind))
    whose = f"attempt {zombies.attempt}" if zombies.attempt else "a stranger"
    return f"{refused} of {whose} refused."


def if_it_died(run: RunView | None) -> str:
    """The cost of a failure now, and the measurements behind it."""
    if run is None or run.state.is_terminal:
        return "Nothing runs, so nothing can die."
    if run.records_to_replay is None:
        return "If it died now: nobody knows yet how much would be replayed."
    replay = f"If it died now: about {plural(run.records_to_replay, 'record')} to replay"
    if run.to_recover_ms is None:
        return f"{replay}; how long that takes is not known before a recovery was measured."
    recoveries = plural(run.recovery_count, "measured recovery", "measured recoveries")
    return f"{replay}, about {duration(run.to_recover_ms)}, judging by {recoveries}."


def estimate(point: FitPoint, recovery_count: int) -> str:
    """The same for a restore from a point."""
    if point.records_to_replay is None:
        return "How much would be read again is not known."
    about = "About " if point.records_to_replay else ""
    replay = f"{about}{plural(point.records_to_replay, 'record')} would be read again"
    if point.estimated_ms is None:
        return f"{replay}; how long that takes is not known before a recovery was measured."
    recoveries = plural(recovery_count, "measured recovery", "measured recoveries")
    return f"{replay}, in about {duration(point.estimated_ms)}, judging by {recoveries}."


def _median(values: list[float]) -> float | None:
    return median(values) if values else None
