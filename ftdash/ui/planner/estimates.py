"""Estimates losses, writes and a recovery, from measurements or from your own assumptions.

Pure. In the form of assumptions, an empty field means as measured. An estimate with a missing input
says which one is missing. The advice is a sentence, with the important intervals and their losses.
"""

from dataclasses import dataclass

from django import forms

from ftdash.formats import UNKNOWN, count, duration, plural, size
from ftdash.runs.queries.planning import PlanningFacts, mean_recovery_ms
from pipelines.domain.planning import (
    Advice,
    Costs,
    FailureRate,
    RecoveryEstimate,
    Speeds,
    advice,
    daly_ms,
    kept_bytes,
    lost_ratio,
    recovery_estimate,
    textbook_recovery,
    textbook_volume_bytes_per_s,
    written_bytes_per_s,
    young_ms,
)

BYTES_PER_MB = 1e6
MS_PER_HOUR = 3_600_000.0


def _field(label: str, help_text: str, least: float = 0.0) -> forms.FloatField:
    return forms.FloatField(
        label=label,
        help_text=help_text,
        required=False,
        min_value=least,
        max_value=1e12,
        widget=forms.NumberInput(attrs={"step": "any", "inputmode": "decimal"}),
    )


class PlannerForm(forms.Form):
    """The assumptions, in people's usual units."""

    interval_s = _field("Interval, s", "From one checkpoint to the next.", 0.001)
    cost_ms = _field("Cost of a checkpoint, ms", "What it takes from the work.")
    between_failures_h = _field("Between failures, h", "The mean time.", 1e-6)
    state_mb = _field("State, MB", "The full size.")
    read_mb_s = _field("Read speed, MB/s", "Of the storage, all slots together.", 1e-6)
    bandwidth_mb_s = _field("Bandwidth, MB/s", "Of the network, all slots together.", 1e-6)


@dataclass(frozen=True, slots=True)
class Presumed:
    """Values that were measured or come from the form; None means neither."""

    interval_ms: float | None
    cost_ms: float | None
    between_failures_ms: float | None
    state_bytes: float | None
    read_bytes_per_s: float | None
    bandwidth_bytes_per_s: float | None


def presumed(facts: PlanningFacts, form: PlannerForm) -> Presumed:
    """A value that is not a number counts as empty; the form says so next to the field."""
    form.is_valid()
    given: dict[str, float | None] = form.cleaned_data
    costs, failures = facts.costs, facts.failures

    def chosen(name: str, unit: float, measured: float | None) -> float | None:
        value = given.get(name)
        return measured if value is None else value * unit

    return Presumed(
        interval_ms=chosen("interval_s", 1000.0, facts.interval_ms),
        cost_ms=chosen("cost_ms", 1.0, costs.standstill_ms if costs else None),
        between_failures_ms=chosen(
            "between_failures_h", MS_PER_HOUR, failures.mean_ms if failures else None
        ),
        state_bytes=chosen("state_mb", BYTES_PER_MB, costs.state_bytes if costs else None),
        read_bytes_per_s=chosen("read_mb_s", BYTES_PER_MB, facts.restore_bytes_per_s),
        bandwidth_bytes_per_s=chosen(
            "bandwidth_mb_s", BYTES_PER_MB, costs.upload_bytes_per_s if costs else None
        ),
    )


DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class Estimate:
    name: str
    formula: str
    value: str
    note: str = ""


def volume_estimates(given: Presumed, facts: PlanningFacts) -> list[Estimate]:
    costs = facts.costs
    textbook = written = None
    if given.interval_ms and given.state_bytes is not None:
        textbook = textbook_volume_bytes_per_s(given.state_bytes, given.interval_ms)
    if given.interval_ms and costs is not None:
        written = written_bytes_per_s(costs.uploaded_bytes, given.interval_ms)
    kept = None
    if costs is not None and given.state_bytes is not None:
        kept = kept_bytes(given.state_bytes, costs.uploaded_bytes, facts.retained)
    return [
        Estimate(
            "Textbook: checkpoint volume",
            "state size × checkpoint frequency (B × 1/s)",
            per_second(textbook),
            "a rate, and of whole states: more than is written where checkpoints hold changes only",
        ),
        Estimate(
            "Written",
            "uploaded bytes a checkpoint ÷ interval (B/s)",
            per_second(written),
            f"{size(written * DAY_S)} a day" if written is not None else "",
        ),
        Estimate(
            "Kept",
            "state size + (retained − 1) × uploaded bytes (B)",
            size(kept),
            f"{plural(facts.retained, 'checkpoint')} retained; savepoints come on top",
        ),
        Estimate(
            "Measured",
            "uploaded by the newest checkpoints ÷ the time they span (B/s)",
            per_second(costs.written_bytes_per_s if costs else None),
            f"over {plural(costs.checkpoint_count, 'checkpoint')}" if costs else "",
        ),
    ]


def recovery_estimates(given: Presumed, facts: PlanningFacts) -> list[Estimate]:
    estimate, textbook = _recovery(given, facts), None
    if given.state_bytes is not None and given.read_bytes_per_s and given.bandwidth_bytes_per_s:
        textbook = textbook_recovery(
            given.state_bytes, given.read_bytes_per_s, given.bandwidth_bytes_per_s
        )
    last = facts.recoveries[0] if facts.recoveries else None
    return [
        Estimate(
            "Textbook: recovery time",
            "state size ÷ (read speed × bandwidth)",
            UNKNOWN if textbook is None else f"{textbook:.3g} s²/B",
            "no time: bytes over the product of two speeds; the slower one limits, not the product",
        ),
        Estimate(
            "Until all subtasks run",
            "restart + state size ÷ the slower of read speed and bandwidth (s)",
            duration(estimate.to_running_ms if estimate else None),
            _parts(estimate) if estimate else _missing(given, facts),
        ),
        Estimate(
            "Until caught up",
            "+ what came meanwhile and half an interval, at the speed to spare (s)",
            duration(estimate.to_caught_up_ms if estimate else None),
            _catch_up_note(estimate, facts),
        ),
        Estimate(
            "Measured: until all subtasks run",
            "the newest recovery, by its phases (s)",
            duration(last.to_running_ms if last else None),
            f"of {plural(len(facts.recoveries), 'recovery', 'recoveries')}" if last else "none yet",
        ),
        Estimate(
            "Measured: until caught up",
            "the newest recovery (s)",
            duration(
                None
                if last is None or last.catch_up_ms is None
                else last.to_running_ms + last.catch_up_ms
            ),
        ),
    ]


def per_second(bytes_per_s: float | None) -> str:
    return UNKNOWN if bytes_per_s is None else f"{size(bytes_per_s)}/s"


def _recovery(given: Presumed, facts: PlanningFacts) -> RecoveryEstimate | None:
    if given.state_bytes is None or given.interval_ms is None or not facts.recoveries:
        return None
    if not given.read_bytes_per_s or not given.bandwidth_bytes_per_s:
        return None
    restarts = sorted(each.restart_ms for each in facts.recoveries)
    speeds = Speeds(
        read_bytes_per_s=given.read_bytes_per_s,
        bandwidth_bytes_per_s=given.bandwidth_bytes_per_s,
        arriving_per_s=facts.arriving_per_s or 0.0,
        reading_per_s=facts.reading_per_s or 0.0,
    )
    middle = restarts[len(restarts) // 2]
    return recovery_estimate(given.state_bytes, middle, given.interval_ms, speeds)


def _parts(estimate: RecoveryEstimate) -> str:
    return (
        f"{duration(estimate.restart_ms)} to restart, as measured, and"
        f" {duration(estimate.read_ms)} to read the state"
    )


def _missing(given: Presumed, facts: PlanningFacts) -> str:
    missing = {
        "the state size": given.state_bytes is None,
        "the interval": given.interval_ms is None,
        "the read speed": not given.read_bytes_per_s,
        "the bandwidth": not given.bandwidth_bytes_per_s,
        "a measured recovery": not facts.recoveries,
    }
    return f"missing: {', '.join(name for name, is_missing in missing.items() if is_missing)}"


def _catch_up_note(estimate: RecoveryEstimate | None, facts: PlanningFacts) -> str:
    if estimate is None:
        return ""
    if estimate.catch_up_ms is None:
        return "the sources always read as fast as they can: nothing is to spare, as far as seen"
    return (
        f"{count(facts.arriving_per_s)} records/s come, and {count(facts.reading_per_s)} were read"
        " in the fastest second"
    )


@dataclass(frozen=True, slots=True)
class IntervalRow:
    name: str
    interval_ms: float
    lost: str
    records_again: float | None  # on average, after a failure


def costs_of(given: Presumed, facts: PlanningFacts) -> Costs | None:
    """Returns None while the cost of a checkpoint or the failure rate is unknown."""
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
    """Writes two digits, because the share may be small."""
    return f"{100 * ratio:.2g} %" if ratio < 1 else f"{count(100 * ratio)} %"


def _cost_clause(facts: PlanningFacts) -> str:
    costs = facts.costs
    if costs is None or costs.standstill_ms is None:
        return "The cost of a checkpoint has not been measured"
    return (
        f"A checkpoint held its slowest subtask up for {duration(costs.standstill_ms)} (alignment"
        f" and cut, mean of the newest {costs.checkpoint_count})"
    )
