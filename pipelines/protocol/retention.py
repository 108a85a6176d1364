"""Decides which completed points are kept, and which files of a run's shared directory are needed.

Pure. Savepoints belong to the person who took them and are never deleted here, unless the run has
claimed the one it was restored from.

An increment refers to files that earlier checkpoints wrote: those of the newest completed
checkpoint that its subtask knows of. So a file outlives the checkpoint that wrote it. The barrier
informs every subtask which checkpoint is complete (`confirmed_id`), and no increment refers to an
older one, which may be discarded at any time. That bounds how long a file of a discarded checkpoint
may still be referred to. A checkpoint that was only acknowledged may still fail and lose its files,
so no increment builds on it (Flink, FLINK-25395). Savepoints and claimed points share nothing.

A damaged file stays in the chain until its content is written again. The subtasks have that
content: a checkpoint whose barrier says `BUILD_ON_NOTHING` writes all of it under new names. The
host finds damage and marks the points that it affects. This is ours: Flink does not look at a file
before it restores.

Source: Flink, `execution.checkpointing.num-retained` and its retention flags, and
`SharedStateRegistry`. Keeping files for checkpoints under way is ours.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from pipelines.domain.errors import check
from pipelines.domain.ids import NO_CHECKPOINT, Attempt, CheckpointId
from pipelines.domain.settings import ExternalizedRetention
from pipelines.domain.status import JobStatus

_LEAVES_CHECKPOINTS = {  # by policy: the ends of a run after which they stay
    ExternalizedRetention.RETAIN_ON_CANCELLATION: {JobStatus.CANCELED, JobStatus.FAILED},
    ExternalizedRetention.DELETE_ON_CANCELLATION: {JobStatus.FAILED},
    ExternalizedRetention.NO_EXTERNALIZED_CHECKPOINTS: set[JobStatus](),
}


@dataclass(frozen=True, slots=True)
class RetainedPoint:
    checkpoint_id: CheckpointId
    location: str
    is_savepoint: bool = False
    is_claimed: bool = False  # taken over from another run: ours to delete, older than our own

    def order(self) -> tuple[bool, CheckpointId]:
        """Ids are comparable within one run only; a claimed point comes first, whatever its id."""
        return not self.is_claimed, self.checkpoint_id


class RetainedPoints:
    """Guarantee: the newest `count` whole checkpoints are never up for deletion, and every older
    one is, whole or not. `candidates` lists damaged points after all whole ones.
    """

    def __init__(self, count: int, points: tuple[RetainedPoint, ...] = ()) -> None:
        check(count >= 1, "at least one point is kept", count=count)
        self._count = count
        self._points = sorted(points, key=RetainedPoint.order)
        self._damaged: dict[RetainedPoint, str] = {}  # of the points, and why

    def newest_first(self) -> list[RetainedPoint]:
        """Returns the whole points, newest first."""
        return [p for p in reversed(self._points) if p not in self._damaged]

    def every_newest_first(self) -> list[RetainedPoint]:
        """Returns all points, damaged or not, newest first."""
        return self._points[::-1]

    def candidates(self) -> list[RetainedPoint]:
        """Returns the points that a recovery may try: first the whole ones, newest first.

        The damaged ones come last: one may be mended by now, and a run that has points never starts
        afresh.
        """
        return sorted(self.every_newest_first(), key=lambda point: point in self._damaged)

    def damage_of(self, point: RetainedPoint) -> str | None:
        """Returns why the point is marked, or None if it is not known to be damaged."""
        return self._damaged.get(point)

    def on_completed(self, point: RetainedPoint, damage: str | None = None) -> list[RetainedPoint]:
        """Records the point; returns those it makes superfluous, oldest first.

        `damage` says why it cannot be used, if that is known already.
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
        """Returns the points that are no longer needed, oldest first.

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


_NAME = re.compile(r"\.?c(\d+)-a\d+-")  # a leading dot: the slot died while writing it
Names = frozenset[str]


def shared_name(checkpoint_id: CheckpointId, attempt: Attempt, rest: str) -> str:
    """The name under which a checkpoint writes a file that others may refer to later."""
    return f"c{checkpoint_id}-a{attempt}-{rest}"


@dataclass(slots=True)
class _Leaving:
    """A discarded checkpoint that those then under way may still refer to."""

    files: Names
    under_way: set[CheckpointId]


class SharedFiles:
    """Guarantee: names a file for deletion only if it is known that no retained checkpoint refers
    to it and none under way can. Once nothing is under way, it has named every other file, even
    those that no subtask acknowledged, as soon as the host lists the directory.

    Needs a host that reports every end, and every trigger before it sends the barrier. Also needs
    subtasks that obey the barrier's `confirmed_id`.
    """

    def __init__(self, retained: Mapping[CheckpointId, Iterable[str] | None]) -> None:
        """`retained` maps the checkpoints that an earlier driver of the run left to their files.

        None means that the manifest cannot be read. The checkpoint may then refer to any file that
        is not newer.
        """
        self._retained = {point: frozenset(files or ()) for point, files in retained.items()}
        self._unread = {point for point, files in retained.items() if files is None}
        self._under_way: set[CheckpointId] = set()
        self._leaving: list[_Leaving] = []

    @property
    def confirmed_id(self) -> CheckpointId:
        """The newest completed checkpoint, which the barrier of the next one carries."""
        return max(self._retained, default=NO_CHECKPOINT)

    @property
    def needed(self) -> Names:
        """The files that a retained checkpoint refers to, or that one under way may refer to."""
        leaving = (leaving.files for leaving in self._leaving)
        return frozenset().union(*self._retained.values(), *leaving)

    @property
    def has_unread(self) -> bool:
        """True if some retained checkpoint may refer to files that `needed` does not name."""
        return bool(self._unread)

    def files_of(self, checkpoint_id: CheckpointId) -> Names:
        """Returns its files; none if the checkpoint is not retained or could not be read."""
        return self._retained.get(checkpoint_id, frozenset())

    def is_unread(self, checkpoint_id: CheckpointId) -> bool:
        """Returns True if its files are unknown, so that only a listing finds those to delete."""
        return checkpoint_id in self._unread

    def on_triggered(self, checkpoint_id: CheckpointId) -> None:
        check(checkpoint_id > self.confirmed_id, "ids grow", checkpoint_id=checkpoint_id)
        self._under_way.add(checkpoint_id)

    def on_completed(self, checkpoint_id: CheckpointId, files: Iterable[str]) -> list[str]:
        """Returns files to delete. Report a savepoint, which refers to none, as aborted instead."""
        self._retained[checkpoint_id] = frozenset(files)
        return self._ended(checkpoint_id, frozenset())

    def on_aborted(self, checkpoint_id: CheckpointId, files: Iterable[str]) -> list[str]:
        """Returns files to delete; `files` were acknowledged before the checkpoint failed."""
        return self._ended(checkpoint_id, frozenset(files))

    def on_discarded(self, checkpoint_id: CheckpointId) -> list[str]:
        """Returns files to delete after retention gave up a checkpoint."""
        files = self._retained.pop(checkpoint_id, frozenset())
        self._unread.discard(checkpoint_id)
        self._leaving.append(_Leaving(files, set(self._under_way)))
        return self._released(frozenset())

    def on_listed(self, names: Iterable[str]) -> list[str]:
        """Returns the listed files to delete: not needed, and of a checkpoint that has ended."""
        needed = self.needed
        return sorted(n for n in names if n not in needed and self._is_over(n))

    def validate_state(self) -> None:
        """Raises InvariantViolated if the fields contradict one another."""
        both = self._under_way & self._retained.keys()
        check(not both, "a completed checkpoint is not under way", ids=both)
        for leaving in self._leaving:
            check(
                bool(leaving.under_way),
                "files that none may need are released at once",
            )
            check(leaving.under_way <= self._under_way, "only what is under way is waited for")

    def _ended(self, checkpoint_id: CheckpointId, written: Names) -> list[str]:
        self._under_way.discard(checkpoint_id)
        for leaving in self._leaving:
            leaving.under_way.discard(checkpoint_id)
        return self._released(written)

    def _released(self, candidates: Names) -> list[str]:
        done = [leaving for leaving in self._leaving if not leaving.under_way]
        self._leaving = [leaving for leaving in self._leaving if leaving.under_way]
        left = candidates.union(*(leaving.files for leaving in done)) - self.needed
        return sorted(name for name in left if not self._is_of_unread(name))

    def _is_over(self, name: str) -> bool:
        """A name in another form was not written here and is left alone."""
        match = _NAME.match(name)
        has_ended = match is not None and CheckpointId(int(match[1])) not in self._under_way
        return has_ended and not self._is_of_unread(name)

    def _is_of_unread(self, name: str) -> bool:
        """Returns True if an unread point may refer to it; no point refers to newer files."""
        if not self._unread:
            return False
        match = _NAME.match(name)
        return match is None or int(match[1]) <= max(self._unread)


T = TypeVar("T")


class CompletedIncrements(Generic[T]):
    """Guarantee: `base` is what was written for the newest checkpoint known to be complete.

    `restored` is what the attempt started from, if it took over the run's own checkpoint as it is.
    Needs `on_written` before the checkpoint can complete; acknowledging afterwards ensures that.
    """

    def __init__(self, restored: T | None = None) -> None:
        self._base = restored
        self._base_id = NO_CHECKPOINT
        self._written: dict[CheckpointId, T | None] = {}

    @property
    def base(self) -> T | None:
        return self._base

    def on_written(self, checkpoint_id: CheckpointId, increment: T | None) -> None:
        """An `increment` of None means an empty state: there is nothing to build on."""
        self._written[checkpoint_id] = increment

    def on_completed(self, checkpoint_id: CheckpointId) -> None:
        """Repeated, late and unknown ids change nothing; a savepoint's id is unknown."""
        if checkpoint_id not in self._written or checkpoint_id < self._base_id:
            return
        self._base, self._base_id = self._written[checkpoint_id], checkpoint_id
        self._written = {n: each for n, each in self._written.items() if n > checkpoint_id}

    def validate_state(self) -> None:
        """Raises InvariantViolated if the fields contradict one another."""
        newer = all(n > self._base_id for n in self._written)
        check(newer, "nothing older than the base is kept", base_id=self._base_id)

    def on_damaged(self) -> None:
        """Trusts neither the base nor what was written since, which may refer to the base."""
        self._base = None
        self._written = {}

    def on_aborted(self, checkpoint_id: CheckpointId) -> None:
        self._written.pop(checkpoint_id, None)


class DamagedFiles:
    """Guarantee: once a file is found damaged, no manifest that is begun later refers to it, and
    the checkpoint that is triggered next does not need to.

    Needs a host that asks `damaged_among` before it publishes a manifest and `must_begin_anew`
    for every barrier, and names that are never used twice.
    """

    def __init__(self, remembered: Iterable[str] = ()) -> None:
        """`remembered` is what an earlier driver of the run found damaged."""
        self._damaged = set(remembered)
        self._was_refused = False  # a checkpoint, since the last one that completed

    @property
    def remembered(self) -> Names:
        return frozenset(self._damaged)

    def damaged_among(self, files: Iterable[str]) -> list[str]:
        """Returns the damaged ones; the host publishes no manifest that refers to any."""
        return sorted(self._damaged.intersection(files))

    def must_begin_anew(self, confirmed: Iterable[str]) -> bool:
        """Returns True if the barrier must keep subtasks from building on the `confirmed` files."""
        return self._was_refused or bool(self.damaged_among(confirmed))

    def on_found(self, files: Iterable[str]) -> list[str]:
        """Returns the damaged files that were not known."""
        new = sorted(set(files) - self._damaged)
        self._damaged.update(new)
        return new

    def on_whole(self, files: Iterable[str]) -> list[str]:
        """Returns those remembered as damaged, which are whole again because they were put back."""
        mended = self.damaged_among(files)
        self._damaged.difference_update(mended)
        return mended

    def on_refused(self) -> None:
        """A checkpoint was not published because of damage: subtasks build on damaged files."""
        self._was_refused = True

    def on_completed(self, files: Iterable[str]) -> None:
        """Checkpoints that build on this one are whole, unless it refers to a damaged file."""
        if not self.damaged_among(files):
            self._was_refused = False

    def on_needed(self, files: Names) -> None:
        """Forgets the files that no retained checkpoint refers to and none under way may need."""
        self._damaged.intersection_update(files)

    def validate_state(self) -> None:
        """Raises InvariantViolated if the fields contradict one another."""
        check("" not in self._damaged, "a damaged file has a name", files=self._damaged)
