"""Decides which completed points are kept for recovery, and which may be deleted.

Pure. Source: Flink, `execution.checkpointing.num-retained` and its retention flags. Savepoints
belong to the person who took them and are never deleted here, unless the run has claimed the one
it was restored from.
"""

from dataclasses import dataclass

from pipelines.domain.errors import check
from pipelines.domain.ids import CheckpointId
from pipelines.domain.settings import ExternalizedRetention
from pipelines.domain.status import JobStatus

_LEAVES_CHECKPOINTS = {  # which ends of a run, by policy
    ExternalizedRetention.RETAIN_ON_CANCELLATION: {JobStatus.CANCELED, JobStatus.FAILED},
    ExternalizedRetention.DELETE_ON_CANCELLATION: {JobStatus.FAILED},
    ExternalizedRetention.NO_EXTERNALIZED_CHECKPOINTS: set[JobStatus](),
}


@dataclass(frozen=True, slots=True)
class RetainedPoint:
    checkpoint_id: CheckpointId
    location: str
    is_savepoint: bool = False
    is_claimed: bool = False  # of another run, taken over: ours to delete, older than all our own

    def order(self) -> tuple[bool, CheckpointId]:
        """Ids count within one run; a claimed point lies before them, whatever its id."""
        return not self.is_claimed, self.checkpoint_id


class RetainedPoints:
    """Guarantee: the newest `count` whole checkpoints are never up for deletion, and every older
    one is, whole or not. `candidates` offers damaged points only behind every whole one.
    """

    def __init__(self, count: int, points: tuple[RetainedPoint, ...] = ()) -> None:
        check(count >= 1, "at least one point is kept", count=count)
        self._count = count
        self._points = sorted(points, key=RetainedPoint.order)
        self._damaged: dict[RetainedPoint, str] = {}  # of the points, and why

    def newest_first(self) -> list[RetainedPoint]:
        """The whole ones."""
        return [p for p in reversed(self._points) if p not in self._damaged]

    def every_newest_first(self) -> list[RetainedPoint]:
        """Damaged or not."""
        return self._points[::-1]

    def candidates(self) -> list[RetainedPoint]:
        """For a recovery: the whole ones, newest first, then the others. One of these may be mended
        by now, and a run that has points never starts afresh."""
        return sorted(self.every_newest_first(), key=lambda point: point in self._damaged)

    def damage_of(self, point: RetainedPoint) -> str | None:
        """Why it is marked; None: it is not known to be damaged."""
        return self._damaged.get(point)

    def on_completed(self, point: RetainedPoint, damage: str | None = None) -> list[RetainedPoint]:
        """Records the point; returns those it makes superfluous, oldest first.

        `damage`: why it cannot be used, if that is known already.
        """
        self._points.append(point)
        if damage is not None:
            self._damaged[point] = damage
        self._points.sort(key=RetainedPoint.order)  # a slow savepoint may complete late
        whole = [p for p in self.newest_first() if not p.is_savepoint]
        if len(whole) < self._count:
            return []
        oldest = whole[self._count - 1].order()
        return self._give_up([p for p in self._points if not p.is_savepoint and p.order() < oldest])

    def on_damaged(self, point: RetainedPoint, why: str) -> None:
        """The point does not verify, or refers to a damaged file."""
        check(point in self._points, "a point that is kept is marked", point=point)
        self._damaged[point] = why

    def on_whole(self, point: RetainedPoint) -> None:
        """The point was read again, and every file is as it was written."""
        self._damaged.pop(point, None)

    def on_run_ended(self, status: JobStatus, policy: ExternalizedRetention) -> list[RetainedPoint]:
        """The points that are of no more use, oldest first.

        Savepoints stay whatever the policy, and so does a claimed point that nothing has replaced.
        """
        if status in _LEAVES_CHECKPOINTS[policy]:
            return []
        return self._give_up([p for p in self._points if not (p.is_savepoint or p.is_claimed)])

    def validate_state(self) -> None:
        """Raises InvariantViolated if the fields contradict one another."""
        order = [point.order() for point in self._points]
        check(order == sorted(order), "points are in the order of their completion", order=order)
        check(
            self._damaged.keys() <= set(self._points), "only points that are kept count as damaged"
        )

    def _give_up(self, superfluous: list[RetainedPoint]) -> list[RetainedPoint]:
        self._points = [p for p in self._points if p not in superfluous]
        self._damaged = {p: why for p, why in self._damaged.items() if p in self._points}
        return superfluous
