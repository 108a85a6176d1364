"""Ids of stream entries, `<milliseconds>-<number>`, as offsets that fit 64 bits.

44 bits of milliseconds reach the year 2527; 19 bits number the entries of one millisecond. An id
beyond that is refused by name: two entries must never get the same offset.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.connectors.source import Offsets
from pipelines.domain.errors import Rejected

MILLISECONDS_MAX = 1 << 44
NUMBERS_MAX = 1 << 19
_NUMBER_BITS = 19


def offset_of(entry_id: bytes) -> int:
    """Raises Rejected for an id that does not fit."""
    milliseconds, number = (int(part) for part in entry_id.split(b"-"))
    if milliseconds >= MILLISECONDS_MAX or number >= NUMBERS_MAX:
        raise Rejected(
            f"The stream entry id {entry_id.decode()} is too large: milliseconds must be below"
            f" 2^44 and the number behind them below 2^19."
        )
    return (milliseconds << _NUMBER_BITS) | number


def offsets_of(entry_ids: Sequence[bytes]) -> Offsets:
    """Converts all at once. Raises Rejected for the first id that does not fit."""
    ids = pa.array(entry_ids, pa.string())
    parts = pc.split_pattern(ids, "-").flatten()
    numbers = np.asarray(parts.cast(pa.uint64())).reshape(-1, 2)
    too_large = (numbers >= np.array([MILLISECONDS_MAX, NUMBERS_MAX], np.uint64)).any(axis=1)
    if too_large.any():
        offset_of(entry_ids[int(too_large.argmax())])
    joined = (numbers[:, 0] << np.uint64(_NUMBER_BITS)) | numbers[:, 1]
    return np.asarray(joined, np.int64)


def id_of(offset: int) -> str:
    return f"{offset >> _NUMBER_BITS}-{offset & (NUMBERS_MAX - 1)}"
