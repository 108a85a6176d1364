"""How much memory the RocksDB states of one slot may use, and the share of each state.

RocksDB's block cache gets half, and all databases of the slot share it. The other half is divided
among the states for the rows that they hold in memory.
"""

from rocksdict import Cache

BLOCK_CACHE_SHARE = 0.5

ROOM_PER_BYTE = 6
"""Memory to allow per byte of a row: columns and index have room to grow, and a flush holds the
changed rows as Arrow, then encoded, and a second time while it sorts them. Measured: 5.5."""


class SlotMemory:
    def __init__(self, total_bytes: int) -> None:
        cache_bytes = int(total_bytes * BLOCK_CACHE_SHARE)
        self.cache = Cache(cache_bytes)
        self._rows_bytes = total_bytes - cache_bytes
        self._states = 0

    def join(self) -> None:
        """One more state shares the memory from now on."""
        self._states += 1

    @property
    def bytes_per_state(self) -> int:
        return self._rows_bytes // max(1, self._states)

    def share_of(self, row_bytes: int) -> float:
        """The share of a state's rows of that size that fits into memory; from 1 on, all fit."""
        return self.bytes_per_state / max(1, row_bytes * ROOM_PER_BYTE)
