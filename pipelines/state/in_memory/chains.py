"""Decides which files a checkpoint of an in-memory state writes, and which older files it keeps.

A chain is a list of files in the order in which they were written. For a table, the newest file
that contains a row has its current value. However large the state is, a checkpoint writes little
more than the changes:

- Small files at the end of the chain are merged with the new rows, so that there are few of them.
  A row is merged a logarithmic number of times.
- When a table's files hold half as many outdated rows as the table has rows, each checkpoint also
  sweeps some slices of the table: it writes all their rows. The slices of the oldest file come
  first. The oldest file is dropped once later files have swept every slice in which it has rows. A
  tombstone is never dropped before the row that it cancels, because that row is in an older file.

Source: O'Neil et al., "The log-structured merge-tree" (1996), for files that get smaller.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pipelines.domain.errors import check
from pipelines.domain.snapshots import FileHandle

MERGED_BYTES_MAX = 8 << 20
"""The most bytes of a state that a checkpoint rewrites to have fewer files. A busy machine needs a
second or more to write 100 MB, and a join has several states."""

SLICE_BITS = 16
"""A slice is 2 ** SLICE_BITS rows of a table, by row number. It is no smaller than a segment of
`columns`, because a batch holds rows of one segment and counts as rows of one slice."""

OUTDATED_SHARE_MAX = 0.5
"""The most outdated rows in the files, relative to the table's rows. A restore reads both."""


def slice_of(row: int) -> int:
    return row >> SLICE_BITS


def rows_of_slice(number: int) -> slice:
    return slice(number << SLICE_BITS, (number + 1) << SLICE_BITS)


def kept_beside(files: Sequence[FileHandle], rows: Sequence[int], new_rows: int) -> int:
    """Returns how many files stay as they are. The later ones are merged with the new rows."""
    kept, merged_rows, again_bytes = len(files), new_rows, 0
    while kept and rows[kept - 1] <= 2 * merged_rows:
        again_bytes += files[kept - 1].length
        if again_bytes > MERGED_BYTES_MAX:
            break
        kept -= 1
        merged_rows += rows[kept]
    return kept


@dataclass(frozen=True, slots=True)
class TableFile:
    """Rows as they were at the cut: the changed rows, and all rows of the slices in `swept`."""

    file: FileHandle
    cut: int
    rows: int
    slices: frozenset[int]  # those in which it has rows
    swept: frozenset[int]


@dataclass(frozen=True, slots=True)
class TableChain:
    """The files of one checkpoint of one table; they hold all changes up to the cut."""

    files: tuple[TableFile, ...]
    cut: int

    @property
    def fixed(self) -> int:
        """The number of files that are never merged: up to the newest one that swept slices."""
        return 1 + max(index for index, each in enumerate(self.files) if each.swept)

    def swept_at(self) -> dict[int, int]:
        """Maps each slice to the newest cut at which it was swept."""
        return {number: each.cut for each in self.files for number in each.swept}

    def validate_state(self) -> None:
        """Raises InvariantViolated if the fields contradict one another."""
        cuts = [*(each.cut for each in self.files), self.cut]
        check(cuts == sorted(cuts), "files are in order", cuts=cuts)
        check(any(each.swept for each in self.files), "every slice was written whole")
        swept = all(each.swept <= each.slices for each in self.files)
        check(swept, "a file has rows in the slices that it swept")


@dataclass(frozen=True, slots=True)
class TablePlan:
    """The files that a checkpoint keeps, and what it adds. If it keeps none, it writes all rows."""

    kept: tuple[TableFile, ...] = ()
    since: int = 0  # rows that changed after this cut are written,
    swept: frozenset[int] = frozenset()  # and all rows of these slices


def plan_table(
    chain: TableChain | None, changed_since: Callable[[int], int], live_rows: int, slices: int
) -> TablePlan:
    """Plans a checkpoint of a table with that many `slices`.

    `changed_since` counts the rows that changed after a cut.
    """
    if chain is None:
        return TablePlan()
    new_rows = written_rows = changed_since(chain.cut)
    fixed = chain.files[: chain.fixed]
    merged = chain.files[chain.fixed :]
    merged = merged[
        : kept_beside([each.file for each in merged], [each.rows for each in merged], new_rows)
    ]
    files, since = (*fixed, *merged), chain.cut
    if len(files) < len(chain.files):
        since = files[-1].cut
        written_rows = changed_since(since)
    if not _is_worn(files, written_rows, live_rows):
        return TablePlan(files, since)
    together = changed_since(fixed[-1].cut)
    if 2 * together <= written_rows + sum(each.rows for each in merged):
        # The same rows change again and again, so one file can hold them all.
        files, since = fixed, fixed[-1].cut
        if not _is_worn(files, together, live_rows):
            return TablePlan(files, since)
    rows = max(2 * new_rows, 1 << SLICE_BITS)
    swept_at = chain.swept_at()
    swept = _oldest_slices(files, swept_at, most=max(1, rows * slices // max(1, live_rows)))
    kept = tuple(itertools.dropwhile(lambda each: _is_replaced(each, swept_at, swept), files))
    return TablePlan(kept, since, swept)


def _is_worn(files: Sequence[TableFile], written_rows: int, live_rows: int) -> bool:
    total = sum(each.rows for each in files) + written_rows
    return total > (1 + OUTDATED_SHARE_MAX) * live_rows


def _oldest_slices(
    files: Sequence[TableFile], swept_at: dict[int, int], most: int
) -> frozenset[int]:
    """Returns at most `most` slices that keep old files in the chain."""
    chosen: dict[int, None] = {}
    for each in files:
        for number in sorted(each.slices):
            if len(chosen) >= most:
                return frozenset(chosen)
            if swept_at.get(number, -1) <= each.cut:
                chosen[number] = None
    return frozenset(chosen)


def _is_replaced(file: TableFile, swept_at: dict[int, int], swept: frozenset[int]) -> bool:
    """Returns True if each of the file's rows is in a later file."""
    return all(number in swept or swept_at.get(number, -1) > file.cut for number in file.slices)
