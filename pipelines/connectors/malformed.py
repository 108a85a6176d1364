"""What of a batch comes before the first record in it that cannot be read.

A source looks for one fault after the other (values that fit no column, then a missing event time),
so the first fault that it meets need not be that of the first record. Decides nothing about what
becomes of the record.
"""

from collections.abc import Callable, Iterator
from typing import TypeVar

from pipelines.connectors.source import MalformedRecord

T = TypeVar("T")


def before_malformed(met: MalformedRecord, decode: Callable[[int], T]) -> Iterator[T]:
    """One batch, or none. `decode` makes one of the first so many rows, or raises MalformedRecord
    as it did with `met`.

    Always raises MalformedRecord: the first of them.
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
