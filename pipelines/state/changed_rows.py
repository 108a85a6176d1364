"""Which rows of a table have changed since each of its recent cuts.

Keeps one mask per cut, for as long as an increment may still build on the state before it. Masks
may be merged under the smaller number; an increment then holds some more rows than necessary.
"""

from dataclasses import dataclass

from pipelines.state.dirty_rows import DirtyRows, Mask, Rows, union

MASKS_MAX = 16


@dataclass(frozen=True, slots=True)
class Changes:
    masks: tuple[tuple[int, Mask], ...]  # no longer written to

    def since(self, cut: int) -> Mask:
        """Rows that changed between that cut and the newest one."""
        return union([mask for number, mask in self.masks if number > cut])


class ChangedRows:
    """Cuts are numbered from 1."""

    def __init__(self) -> None:
        self._dirty = DirtyRows()
        self._masks: list[tuple[int, Mask]] = []  # the changes up to a cut, since the one before
        self._cuts = 0

    def mark(self, rows: Rows) -> None:
        self._dirty.mark(rows)

    def cut(self) -> int:
        """Returns the number of this cut."""
        self._cuts += 1
        self._masks.append((self._cuts, self._dirty.take()))
        if len(self._masks) > MASKS_MAX:
            self._merge(0)
        return self._cuts

    def up_to_now(self) -> "Changes":
        """The changes up to the newest cut, for any thread; later changes do not affect them."""
        return Changes(tuple(self._masks))

    def forget_up_to(self, cut: int) -> None:
        """No increment will build on anything before that cut any more."""
        self._masks = [(number, mask) for number, mask in self._masks if number > cut]

    def _merge(self, index: int) -> None:
        (_, older), (number, younger) = self._masks[index : index + 2]
        self._masks[index : index + 2] = [(number, union([older, younger]))]
