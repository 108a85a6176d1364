"""Decides where a new attempt starts from, and tracks how far a recovery has come.

Pure. `choose_point` goes through the retained points, newest first, and takes the first that the
host's verification finds whole. `RecoveryProgress` turns moments into the phases that the
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
    """Points exist and none verifies: starting afresh would double output, so the run must not."""

    refused: tuple[RefusedPoint, ...]


def choose_point(
    newest_first: list[RetainedPoint],
    problem_of: Callable[[RetainedPoint], str | None],
    *,
    may_fall_back: bool = True,
) -> Choice | NoUsablePoint:
    """`problem_of` verifies one point: it returns a sentence, or None if the point is whole."""
    refused: list[RefusedPoint] = []
    for point in newest_first:
        problem = problem_of(point)
        if problem is None:
            return Choice(point, tuple(refused))
        refused.append(RefusedPoint(point, problem))
        if not may_fall_back:
            break
    return NoUsablePoint(tuple(refused)) if refused else Choice(None, ())


STEPS = (
    RecoveryPhase.DETECT,
    RecoveryPhase.DECIDE,
    RecoveryPhase.STOP,
    RecoveryPhase.START,
    RecoveryPhase.RESTORE,
)
MILESTONES = frozenset(RecoveryPhase) - frozenset(STEPS)


@dataclass(slots=True)
class RecoveryProgress:
    """One recovery. Steps follow each other; each lasts from the end of the one before it.

    Milestones come after the last step, in any order; each lasts from the end of that step.
    """

    _last_ms: float
    _steps: list[RecoveryPhase] = field(default_factory=list)
    _milestones: set[RecoveryPhase] = field(default_factory=set)

    @property
    def is_running(self) -> bool:
        """True once all subtasks run again; only milestones are left."""
        return len(self._steps) == len(STEPS)

    def expects(self, phase: RecoveryPhase) -> bool:
        if phase in MILESTONES:
            return self.is_running and phase not in self._milestones
        return not self.is_running and STEPS[len(self._steps)] is phase

    def on_reached(self, phase: RecoveryPhase, now_ms: float) -> float:
        """Returns how long the phase took. Raises InvariantViolated if it is not expected."""
        check(self.expects(phase), "phases come in order, each once", phase=phase)
        duration_ms = now_ms - self._last_ms
        if phase in MILESTONES:
            self._milestones.add(phase)
        else:
            self._steps.append(phase)
            self._last_ms = now_ms
        return duration_ms
