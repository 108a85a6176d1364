"""Which files of a run's shared directory are still needed, and which are to be deleted.

Pure. An increment refers to files of the newest completed checkpoint that its subtask knows of, so
a file outlives the checkpoint that wrote it. The barrier tells every subtask which checkpoint is
complete (`confirmed_id`), and no increment refers to anything older; that bounds how long a file
of a discarded checkpoint may still be asked for. Savepoints and claimed points share nothing.

Source: Flink's `SharedStateRegistry`; that files wait for checkpoints under way is ours.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pipelines.domain.errors import check
from pipelines.domain.ids import NO_CHECKPOINT, Attempt, CheckpointId

_NAME = re.compile(r"\.?c(\d+)-a\d+-")  # with a dot: being written when its slot died
Names = frozenset[str]


def shared_name(checkpoint_id: CheckpointId, attempt: Attempt, rest: str) -> str:
    """The name under which a checkpoint writes a file that others may refer to later."""
    return f"c{checkpoint_id}-a{attempt}-{rest}"


@dataclass(slots=True)
class _Leaving:
    """A discarded checkpoint, to which checkpoints that were under way then may still refer."""

    files: Names
    under_way: set[CheckpointId]


class SharedFiles:
    """Guarantee: a file is named for deletion only if no retained checkpoint refers to it and none
    under way can; and once nothing is under way, every other file has been named, those included
    that nobody acknowledged, as soon as the host reports what it finds in the directory.

    Needs a host that reports every trigger before the barrier leaves and every end, and subtasks
    that keep to the barrier's `confirmed_id`.
    """

    def __init__(self, retained: Mapping[CheckpointId, Iterable[str]]) -> None:
        """`retained`: what an earlier driver of the run has left, with the files of each."""
        self._retained = {point: frozenset(files) for point, files in retained.items()}
        self._under_way: set[CheckpointId] = set()
        self._leaving: list[_Leaving] = []

    @property
    def confirmed_id(self) -> CheckpointId:
        """The newest completed checkpoint; for the barrier of the next one."""
        return max(self._retained, default=NO_CHECKPOINT)

    def on_triggered(self, checkpoint_id: CheckpointId) -> None:
        check(checkpoint_id > self.confirmed_id, "ids grow", checkpoint_id=checkpoint_id)
        self._under_way.add(checkpoint_id)

    def on_completed(self, checkpoint_id: CheckpointId, files: Iterable[str]) -> list[str]:
        """Files to delete. A savepoint refers to none and is `on_aborted` here, without files."""
        self._retained[checkpoint_id] = frozenset(files)
        return self._ended(checkpoint_id, frozenset())

    def on_aborted(self, checkpoint_id: CheckpointId, files: Iterable[str]) -> list[str]:
        """Files to delete, given those that were acknowledged before the checkpoint failed."""
        return self._ended(checkpoint_id, frozenset(files))

    def on_discarded(self, checkpoint_id: CheckpointId) -> list[str]:
        """Files to delete, after retention let go of a checkpoint."""
        files = self._retained.pop(checkpoint_id, frozenset())
        self._leaving.append(_Leaving(files, set(self._under_way)))
        return self._released(frozenset())

    def on_listed(self, names: Iterable[str]) -> list[str]:
        """Files to delete among those found: written for a checkpoint that has ended."""
        needed = self._needed()
        return sorted(n for n in names if n not in needed and self._has_ended(n))

    def _ended(self, checkpoint_id: CheckpointId, written: Names) -> list[str]:
        self._under_way.discard(checkpoint_id)
        for leaving in self._leaving:
            leaving.under_way.discard(checkpoint_id)
        return self._released(written)

    def _released(self, candidates: Names) -> list[str]:
        done = [leaving for leaving in self._leaving if not leaving.under_way]
        self._leaving = [leaving for leaving in self._leaving if leaving.under_way]
        return sorted(candidates.union(*(leaving.files for leaving in done)) - self._needed())

    def _needed(self) -> Names:
        leaving = (leaving.files for leaving in self._leaving)
        return frozenset().union(*self._retained.values(), *leaving)

    def _has_ended(self, name: str) -> bool:
        """A name that is not of this form was not written here and is left alone."""
        match = _NAME.match(name)
        return match is not None and CheckpointId(int(match[1])) not in self._under_way
