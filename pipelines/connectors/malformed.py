"""Finds the first record of a batch that cannot be read, and the records before it.

A source checks for one kind of fault after another (values that fit no column, then a missing event
time), so the first fault that it meets need not be that of the first record. Decides nothing about
what happens to the record.
"""

from collections.abc import Callable, Iterator
from typing import TypeVar

from pipelines.connectors.source import MalformedRecord

T = TypeVar("T")


def before_malformed(met: MalformedRecord, decode: Callable[[int], T]) -> Iterator[T]:
    """Yields one batch or none. `decode` decodes the first so many rows, or raises MalformedRecord
    as it did with `met`.

    Always raises MalformedRecord, for the first malformed record.
    """
    first = met
    while first.row:
        try:
            batch = decode(first.row)
        except MalformedRecord as earlier:
            first = earlier
            continue
        yield batch
        break
    raise first
