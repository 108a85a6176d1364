"""How much several splits together have left to read. Pure."""

from collections.abc import Iterable


def sum_known(counts: Iterable[int | None]) -> int | None:
    """None if one count is unknown: the others alone would understate how much there is."""
    found = list(counts)
    known = [count for count in found if count is not None]
    return sum(known) if len(known) == len(found) else None
