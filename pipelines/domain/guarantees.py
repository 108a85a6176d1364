"""What a pipeline guarantees from end to end: the weakest of the engine's mode and its sinks."""

from collections.abc import Iterable

from pipelines.domain.settings import CheckpointingMode

EXACTLY_ONCE = "exactly-once"
IDEMPOTENT = "exactly-once (idempotent)"
AT_LEAST_ONCE = "at-least-once"
AT_MOST_ONCE = "at-most-once"
NONE = "none: records may be lost, and may come out twice"
GUARANTEES = (EXACTLY_ONCE, IDEMPOTENT, AT_LEAST_ONCE)
"""From the strongest to the weakest; a pipeline has that of its weakest sink."""


def weakest(guarantees: Iterable[str]) -> str:
    """An unknown guarantee is weaker than any known one, and is shown as it is."""
    ranked = {guarantee: rank for rank, guarantee in enumerate(GUARANTEES)}
    found, worst = GUARANTEES[0], -1
    for guarantee in guarantees:
        rank = ranked.get(guarantee, len(GUARANTEES))
        if rank > worst:
            found, worst = guarantee, rank
    return found


def end_to_end(mode: CheckpointingMode, of_sinks: str) -> str:
    """`of_sinks` is what the weakest sink would keep on top of an exact engine."""
    match mode:
        case CheckpointingMode.EXACTLY_ONCE:
            return of_sinks
        case CheckpointingMode.AT_LEAST_ONCE:
            return weakest([of_sinks, AT_LEAST_ONCE])
        case CheckpointingMode.AT_MOST_ONCE:
            # What is emitted once, and written twice by a sink that retries, is neither.
            return AT_MOST_ONCE if of_sinks in (EXACTLY_ONCE, IDEMPOTENT) else NONE
