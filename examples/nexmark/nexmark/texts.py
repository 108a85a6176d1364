"""Random texts, a column at a time: slices of a long random text.

A slice costs one random number and a copy of its bytes, as in the Java generator. The long texts
depend on the seed alone.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pipelines.connectors import Draws

POOL_BYTES = 1 << 20
LENGTH_MIN = 3
SPACE_EVERY = 13
"""In a text with spaces, one character in this many is a space."""

LETTER_A, LETTERS = ord("a"), 26

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Texts:
    """Makes columns of random texts for the rows of `draws`."""

    draws: Draws

    def up_to(self, name: str, length_max: int, special: str = " ") -> pa.Array:
        """Returns texts of 3 up to but not `length_max` characters, which are then trimmed."""
        lengths = self.draws.integers(f"{name}/length", LENGTH_MIN, length_max)
        drawn = self._slices(name, lengths, with_special(self.draws.seed, special))
        return pc.ascii_trim(drawn, " ")

    def exactly(self, name: str, lengths: Numbers) -> pa.Array:
        return self._slices(name, lengths, letters(self.draws.seed))

    def filling(self, name: str, sizes: Numbers, average_bytes: int) -> pa.Array:
        """Returns texts that fill rows of these sizes up to the average, within about a fifth."""
        missing = average_bytes - sizes
        spread = np.floor(missing * 0.2 + 0.5).astype(np.int64)
        drawn = np.floor(self.draws.fractions(f"{name}/length") * 2 * spread).astype(np.int64)
        return self.exactly(name, np.where(missing > 0, missing - spread + drawn, 0))

    def _slices(self, name: str, lengths: Numbers, pool: npt.NDArray[np.uint8]) -> pa.Array:
        starts = self.draws.integers(f"{name}/start", 0, POOL_BYTES // 2)
        ends = np.cumsum(lengths)
        offsets = np.concatenate([[0], ends]).astype(np.int32)
        places = np.repeat((starts - offsets[:-1]).astype(np.int32), lengths)
        places += np.arange(offsets[-1], dtype=np.int32)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(pool[places])]
        return pa.Array.from_buffers(pa.string(), len(lengths), buffers)


@lru_cache(maxsize=4)
def letters(seed: int) -> npt.NDArray[np.uint8]:
    drawn = Draws(seed, 0, np.arange(POOL_BYTES)).integers("letters", 0, LETTERS)
    return (drawn + LETTER_A).astype(np.uint8)


@lru_cache(maxsize=8)
def with_special(seed: int, special: str) -> npt.NDArray[np.uint8]:
    is_special = Draws(seed, 0, np.arange(POOL_BYTES)).integers("special", 0, SPACE_EVERY) == 0
    return np.where(is_special, ord(special), letters(seed)).astype(np.uint8)
