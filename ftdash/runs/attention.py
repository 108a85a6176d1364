"""Decides which pipeline a person should look at first, and why. Pure.

Each pipeline has one concern, the most pressing; pipelines are ordered by their concerns. A failed
pipeline does no work, and the state of a silent one is unknown: they come before one whose clocks
run late, and that before one that recovers by itself.
"""

from dataclasses import dataclass

from ftdash.formats import age
from ftdash.jobs.answers import ShownState
from ftdash.runs.fleet_answers import Attention, Concern, RunPulse

RESTARTS_OFTEN = 3
"""That many recoveries within `pulse.RECENT` are no coincidence."""

BACKPRESSURED_FROM = 0.5
"""Above this, Flink calls backpressure high."""

STUCK_AFTER_S = 60.0
"""Spark starts slots within seconds, and a cancelled run is killed after twenty."""

_ORDER = tuple(Concern)


@dataclass(frozen=True, slots=True)
class Signs:
    """Facts about a pipeline's newest run. Ages in seconds; None: it never did."""

    state: ShownState
    reason: str
    since_completed_s: float | None
    since_committed_s: float | None
    since_started_s: float | None
    in_state_s: float  # how long it has been in `state`
    late_after_s: float
    is_periodic: bool  # it should complete checkpoints by itself
    pulse: RunPulse | None


def rank(concern: Concern, name: str) -> tuple[int, str]:
    """Most pressing concern first; then by name."""
    return _ORDER.index(concern), name


def attention(signs: Signs) -> Attention:
    found = _of_state(signs)
    if found is None and signs.state is ShownState.RUNNING:
        found = _of_clocks(signs) or _of_pulse(signs.pulse)
    return found or Attention(Concern.NONE, "")


def _of_state(signs: Signs) -> Attention | None:
    match signs.state:
        case ShownState.FAILED:
            return Attention(Concern.FAILED, signs.reason or "The pipeline is FAILED.")
        case ShownState.UNKNOWN | ShownState.STALE:
            return Attention(Concern.SILENT, signs.reason or f"The pipeline is {signs.state}.")
        case ShownState.CREATED | ShownState.INITIALIZING | ShownState.CANCELLING:
            return _stuck(signs) if signs.in_state_s > STUCK_AFTER_S else None
        case ShownState.RESTARTING | ShownState.FAILING:
            why = f": {signs.reason}" if signs.reason else "."
            return Attention(Concern.RECOVERING, f"It is recovering{why}")
        case _:
            return None


def _stuck(signs: Signs) -> Attention:
    why = f": {signs.reason}" if signs.reason else "."
    since = age(1000 * signs.in_state_s)
    return Attention(Concern.STUCK, f"It has been {signs.state} for {since}{why}")


def _of_clocks(signs: Signs) -> Attention | None:
    completed_s, committed_s = signs.since_completed_s, signs.since_committed_s
    if not signs.is_periodic:
        return None
    if completed_s is None:
        started_s = signs.since_started_s or 0.0
        if started_s > signs.late_after_s:
            text = f"No checkpoint has completed since it started {age(1000 * started_s)} ago."
            return Attention(Concern.NO_CHECKPOINT, text)
    if completed_s is not None and completed_s > signs.late_after_s:
        text = f"No checkpoint has completed for {age(1000 * completed_s)}."
        return Attention(Concern.NO_CHECKPOINT, text)
    if committed_s is not None and committed_s > signs.late_after_s:
        text = f"Checkpoints complete, but no output was committed for {age(1000 * committed_s)}."
        return Attention(Concern.NO_OUTPUT, text)
    return None


def _of_pulse(pulse: RunPulse | None) -> Attention | None:
    if pulse is None:
        return None
    if pulse.recent_recovery_count >= RESTARTS_OFTEN:
        text = f"It recovered {pulse.recent_recovery_count} times within the last 10 minutes."
        return Attention(Concern.UNSTABLE, text)
    if pulse.failed_in_row:
        several = pulse.failed_in_row > 1
        which = f"last {pulse.failed_in_row} checkpoints" if several else "last checkpoint"
        return Attention(Concern.CHECKPOINTS_FAIL, f"The {which} failed: {pulse.failed_why}")
    if pulse.backpressured_ratio is not None and pulse.backpressured_ratio >= BACKPRESSURED_FROM:
        share = f"{100 * pulse.backpressured_ratio:.0f} %"
        text = f"{pulse.backpressured_operator} is backpressured {share} of the time."
        return Attention(Concern.BACKPRESSURED, text)
    return None
