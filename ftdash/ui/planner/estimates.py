"""The planner's estimates of writes and of a recovery, next to the measurements. Pure.

An estimate that lacks an input says which one.
"""

from dataclasses import dataclass

from ftdash.formats import UNKNOWN, count, duration, plural, size
from ftdash.runs.queries.planning import PlanningFacts
from ftdash.ui.planner.form import Presumed
from pipelines.domain.planning import (
    RecoveryEstimate,
    Speeds,
    kept_bytes,
    recovery_estimate,
    textbook_recovery,
    textbook_volume_bytes_per_s,
    written_bytes_per_s,
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
    lacks = {
        "the state size": given.state_bytes is None,
        "the interval": given.interval_ms is None,
        "the read speed": not given.read_bytes_per_s,
        "the bandwidth": not given.bandwidth_bytes_per_s,
        "a recovery that was measured": not facts.recoveries,
    }
    return f"lacks {', '.join(name for name, is_missing in lacks.items() if is_missing)}"


def _catch_up_note(estimate: RecoveryEstimate | None, facts: PlanningFacts) -> str:
    if estimate is None:
        return ""
    if estimate.catch_up_ms is None:
        return "the sources always read as fast as they can: nothing is to spare, as far as seen"
    return (
        f"{count(facts.arriving_per_s)} records/s come, and {count(facts.reading_per_s)} were read"
        " in the fastest second"
    )
