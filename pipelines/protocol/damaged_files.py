"""Decides which shared files of a run are known to be damaged, and what may be built on.

Pure. An increment refers to files that earlier checkpoints wrote, so a damaged file stays in the
chain until its content is written again. The subtasks have that content: a checkpoint whose barrier
says `BUILD_ON_NOTHING` writes all of it under new names. The host finds damage and marks points
because of it. Ours; Flink does not look at a file before it restores.
"""

from collections.abc import Iterable

from pipelines.domain.errors import check

Names = frozenset[str]


class DamagedFiles:
    """Guarantee: no checkpoint whose manifest is begun after a file was found damaged refers to
    that file, and the checkpoint that is triggered next need not.

    Needs a host that asks `damaged_among` before it publishes a manifest and `must_begin_anew`
    for every barrier, and names that are never used twice.
    """

    def __init__(self, remembered: Iterable[str] = ()) -> None:
        """`remembered`: what an earlier driver of the run found damaged."""
        self._damaged = set(remembered)
        self._was_refused = False  # a checkpoint, since the last one that completed

    @property
    def remembered(self) -> Names:
        return frozenset(self._damaged)

    def damaged_among(self, files: Iterable[str]) -> list[str]:
        """For a manifest: the host does not publish it if there are any."""
        return sorted(self._damaged.intersection(files))

    def must_begin_anew(self, confirmed: Iterable[str]) -> bool:
        """For a barrier, given the files of the checkpoint that it would let subtasks build on."""
        return self._was_refused or bool(self.damaged_among(confirmed))

    def on_found(self, files: Iterable[str]) -> list[str]:
        """Returns the damaged files that were not known."""
        new = sorted(set(files) - self._damaged)
        self._damaged.update(new)
        return new

    def on_whole(self, files: Iterable[str]) -> list[str]:
        """Returns those that were remembered and are whole again, because they were put back."""
        mended = self.damaged_among(files)
        self._damaged.difference_update(mended)
        return mended

    def on_refused(self) -> None:
        """A checkpoint was not published because of damage: subtasks build on damaged files."""
        self._was_refused = True

    def on_completed(self, files: Iterable[str]) -> None:
        """What is built on this checkpoint from now on is whole."""
        if not self.damaged_among(files):
            self._was_refused = False

    def on_needed(self, files: Names) -> None:
        """All that a retained checkpoint refers to or one under way may; forget the other files."""
        self._damaged.intersection_update(files)

    def validate_state(self) -> None:
        """Raises InvariantViolated if the fields contradict one another."""
        check("" not in self._damaged, "a damaged file has a name", files=self._damaged)
