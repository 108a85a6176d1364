"""Where a new attempt starts from, and how far a recovery has come.

Pure. `choose_point` walks the retained points from the newest on and takes the first that the
host's verification finds whole; `RecoveryProgress` turns moments into the phases that the
dashboard shows, each exactly once and in order.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from pipelines.domain.errors import check
from pipelines.domain.status import RecoveryPhase
from pipelines.protocol.retention import RetainedPoint


@dataclass(frozen=True, slots=True)
class RefusedPoint:
    point: RetainedPoint
    problem: str


@dataclass(frozen=True, slots=True)
class Choice:
    """`point` is None: start from the beginning, because no point was ever completed."""

    point: RetainedPoint | None
    refused: tuple[RefusedPoint, ...]


@dataclass(frozen=True, slots=True)
class NoUsablePoint:
    """Points exist and none verifies: starting afresh would double output, so it is not done."""

    refused: tuple[RefusedPoint, ...]


def choose_point(
    newest_first: list[RetainedPoint], problem_of: Callable[[RetainedPoint], str | None]
) -> Choice | NoUsablePoint:
    """`problem_of` verifies one point and answers with a sentence, or None when it is whole."""
    refused: list[RefusedPoint] = []
    for point in newest_first:
        problem = problem_of(point)
        if problem is None:
            return Choice(point, tuple(refused))
        refused.append(RefusedPoint(point, problem))
    return NoUsablePoint(tuple(refused)) if refused else Choice(None, ())


ORDER = tuple(RecoveryPhase)


@dataclass(slots=True)
class RecoveryProgress:
    """Phases of one recovery: each lasts from the end of the one before it."""

    _last_ms: float
    _reached: list[RecoveryPhase] = field(default_factory=list)

    def has_reached(self, phase: RecoveryPhase) -> bool:
        return phase in self._reached

    @property
    def is_over(self) -> bool:
        return len(self._reached) == len(ORDER)

    def expects(self, phase: RecoveryPhase) -> bool:
        return not self.is_over and ORDER[len(self._reached)] is phase

    def on_reached(self, phase: RecoveryPhase, now_ms: float) -> float:
        """How long the phase took. Raises InvariantViolated when it is not the next one."""
        check(self.expects(phase), "phases come in order", phase=phase, reached=self._reached)
        self._reached.append(phase)
        duration_ms, self._last_ms = now_ms - self._last_ms, now_ms
        return duration_ms
