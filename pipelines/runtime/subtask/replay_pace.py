"""Decides how fast a paced replay goes on: from where the attempt starts, at a fixed speed."""

from dataclasses import dataclass

from pipelines.connectors.source import AnySource, GrowingSource
from pipelines.domain.clock import Clock
from pipelines.domain.snapshots import Json
from pipelines.runtime.subtask.split_sequence import deal

MS_PER_HOUR = 3_600_000


@dataclass(slots=True)
class Pace:
    """Event time at the start of the attempt, and its speed from there."""

    anchor_ms: int
    event_hours_per_s: float
    started_ms: float

    def reached_ms(self, now_ms: float) -> int:
        seconds = (now_ms - self.started_ms) / 1000.0
        return self.anchor_ms + int(seconds * self.event_hours_per_s * MS_PER_HOUR)


def pace_of(
    source: AnySource,
    restored: tuple[Json, ...],
    parallelism: int,
    clock: Clock,
    event_hours_per_s: float | None,
) -> Pace | None:
    """All subtasks compute the same anchor: the earliest record that any of them has to read."""
    if event_hours_per_s is None or isinstance(source, GrowingSource):
        return None  # a growing source has a pace of its own
    positions = [deal(restored, subtask, parallelism) for subtask in range(parallelism)]
    current = [position.current() for position in positions]
    times = [source.event_time_ms(*place) for place in current if place is not None]
    known = [time for time in times if time is not None]
    return Pace(min(known, default=0), event_hours_per_s, clock.monotonic_ms())
