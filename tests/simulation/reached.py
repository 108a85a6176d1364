"""The situations that the schedule of a seed has reached: they show what a campaign has tested."""

from collections import Counter

from pipelines.domain.events import (
    CheckpointCompleted,
    CheckpointFailed,
    ClaimedPointDiscarded,
    Event,
    OutputSuperseded,
    RecordQuarantined,
    RecordsIsolated,
    RunStarted,
    SubtaskAcknowledged,
    ZombieRefused,
)
from tests.simulation.outcome import Outcome


def reached(outcome: Outcome) -> Counter[str]:
    seen: Counter[str] = Counter()
    for history in outcome.histories:
        for event in history:
            seen.update(_named(event))
    seen["backend " + outcome.circumstances.settings["state.backend.type"]] += 1
    seen["poison in the quarantine"] += outcome.quarantined.total()
    seen["drained"] += outcome.drained_at is not None
    seen.update({f"disk: {operation}": n for operation, n in outcome.disk.failed.items()})
    seen.update(f"parallelism {number}" for number in outcome.parallelisms)
    seen["points judged"] += min(2, len(outcome.disk.kept))
    return +seen


def _named(event: Event) -> list[str]:
    match event:
        case CheckpointCompleted():
            return ["in-flight records kept"] if event.buffered_records else []
        case CheckpointFailed(reason=reason):
            return [f"failed: {reason.name}"]
        case SubtaskAcknowledged(phases=phases):
            return ["over the cap"] if any(c.is_over_cap for c in phases.channels) else []
        case RunStarted(restored_from=restored_from):
            return ["restored"] if restored_from else []
        case OutputSuperseded():
            return ["output set aside"]
        case ZombieRefused():
            return ["zombie refused"]
        case RecordsIsolated():
            return ["isolated"]
        case RecordQuarantined():
            return ["quarantined"]
        case ClaimedPointDiscarded():
            return ["claimed point discarded"]
    return []
