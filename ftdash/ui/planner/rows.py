"""The planner's advice in a sentence, and the important intervals with their losses. Pure."""

from dataclasses import dataclass

from ftdash.formats import count, duration, plural
from ftdash.runs.queries.planning import PlanningFacts, mean_recovery_ms
from ftdash.ui.planner.form import Presumed
from pipelines.domain.planning import (
    Advice,
    Costs,
    FailureRate,
    advice,
    daly_ms,
    lost_ratio,
    young_ms,
)


@dataclass(frozen=True, slots=True)
class IntervalRow:
    name: str
    interval_ms: float
    lost: str
    records_again: float | None  # on average, after a failure


def costs_of(given: Presumed, facts: PlanningFacts) -> Costs | None:
    """None while the cost of a checkpoint or the failure rate is unknown."""
    if given.cost_ms is None or not given.between_failures_ms:
        return None
    return Costs(given.cost_ms, given.between_failures_ms, mean_recovery_ms(facts))


def advised(costs: Costs | None, facts: PlanningFacts) -> Advice | None:
    if costs is None:
        return None
    found = advice(costs, facts.costs.duration_p99_ms if facts.costs else None)
    return found if found.interval_ms > 0 else None


def advice_sentence(found: Advice | None, facts: PlanningFacts) -> str:
    if facts.costs is None:
        return "No periodic checkpoint has completed yet: its cost is measured with the first one."
    if found is None:
        return "Nothing that it costs was measured: neither an alignment nor a cut took any time."
    return (
        f"An interval of about {duration(found.interval_ms)}: {found.why}."
        f" {_cost_clause(facts)}; {failure_clause(facts.failures)}."
    )


def failure_clause(failures: FailureRate | None) -> str:
    if failures is None:
        return "how often it fails is not known"
    observed = duration(failures.observed_ms)
    if failures.is_bound:
        return (
            f"it never failed in {observed}, so it fails less often than once in"
            f" {duration(failures.mean_ms)} (95 % confidence)"
        )
    times = plural(failures.failure_count, "failure")
    return f"{times} in {observed}, one in {duration(failures.mean_ms)} on the mean"


def interval_rows(
    costs: Costs, found: Advice, given: Presumed, facts: PlanningFacts
) -> list[IntervalRow]:
    candidates = {
        "set now": given.interval_ms,
        "advised": found.interval_ms,
        "half as long": found.interval_ms / 2,
        "twice as long": found.interval_ms * 2,
        "Young": young_ms(costs),
        "Daly": daly_ms(costs),
    }
    arriving = facts.arriving_per_s
    return [
        IntervalRow(
            name=name,
            interval_ms=interval_ms,
            lost=share(lost_ratio(interval_ms, costs)),
            records_again=None if arriving is None else arriving * interval_ms / 2000,
        )
        for name, interval_ms in candidates.items()
        if interval_ms is not None and interval_ms > 0
    ]


def share(ratio: float) -> str:
    """Two digits, because it may be small."""
    return f"{100 * ratio:.2g} %" if ratio < 1 else f"{count(100 * ratio)} %"


def _cost_clause(facts: PlanningFacts) -> str:
    costs = facts.costs
    if costs is None or costs.standstill_ms is None:
        return "What a checkpoint costs was not measured"
    return (
        f"A checkpoint held its slowest subtask up for {duration(costs.standstill_ms)} (alignment"
        f" and cut, mean of the newest {costs.checkpoint_count})"
    )
