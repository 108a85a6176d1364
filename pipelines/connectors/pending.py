"""How much there is to read, of several splits. Pure."""

from collections.abc import Iterable


def sum_known(counts: Iterable[int | None]) -> int | None:
    """None when one is not known: the others alone would look like less than there is."""
    found = list(counts)
    known = [count for count in found if count is not None]
    return sum(known) if len(known) == len(found) else None
