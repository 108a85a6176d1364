"""Keys whose 64-bit hash belongs to another, earlier key: rare, so a dict is enough.

In a table of a billion keys, expect one such pair in about one of 37 tables; merging two keys even
once would give a wrong answer.
"""

from collections.abc import Hashable

import numpy as np
import numpy.typing as npt

from pipelines.state.key_index import ABSENT

Rows = npt.NDArray[np.int64]
Key = tuple[Hashable, ...]


class Collisions:
    """The second and further keys of a hash; the first one is in the table's index."""

    def __init__(self) -> None:
        self._by_hash: dict[int, dict[Key, int]] = {}
        self._owner: dict[int, tuple[int, Key]] = {}  # by row

    def __len__(self) -> int:
        return len(self._owner)

    def row_of(self, key_hash: int, key: Key) -> int | None:
        return self._by_hash.get(key_hash, {}).get(key)

    def add(self, key_hash: int, key: Key, row: int) -> None:
        self._by_hash.setdefault(key_hash, {})[key] = row
        self._owner[row] = (key_hash, key)

    def remove(self, row: int) -> None:
        key_hash, key = self._owner.pop(row)
        del self._by_hash[key_hash][key]
        if not self._by_hash[key_hash]:
            del self._by_hash[key_hash]

    def holds(self, rows: Rows) -> npt.NDArray[np.bool_]:
        """Flags which of these rows are here rather than in the index."""
        return np.isin(rows, np.fromiter(self._owner, np.int64, len(self._owner)))

    def pop_successor(self, key_hash: int) -> int:
        """A row with this hash, which moves to the index; ABSENT if none is left."""
        others = self._by_hash.get(key_hash)
        if not others:
            return ABSENT
        row = next(iter(others.values()))
        self.remove(row)
        return row
