"""Names of splits that were read to the end, packed: a directory may have had a million files.

A position has to know every one of them, because a file may appear late under any name, with any
time, and is then read if and only if it was not read before. A low-water mark of names or times
cannot decide that, and digests can only nearly, so the names themselves are kept. They resemble
each other, so that packed they take 3 bytes each, or 31 where each holds a random UUID. A pack
never changes: a checkpoint takes it as it is, whatever the number of names in it, and two
checkpoints that have the same pack need not look into it to compare what was read. Pure.
"""

import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeAlias

import msgspec

PACK_NAMES = 1_000
"""So many names become a pack; fewer are kept as they are."""

Pack: TypeAlias = str
"""Text, so that a snapshot takes it without a copy."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[str])


def pack_of(names: Iterable[str]) -> Pack:
    """Neighbours in the order of names share most."""
    return b64encode(zlib.compress(_encoder.encode(sorted(names)))).decode()


def packs_of(names: Sequence[str]) -> Iterator[Pack]:
    left = iter(names)
    while some := list(islice(left, PACK_NAMES)):
        yield pack_of(some)


def names_in(pack: Pack) -> list[str]:
    """Raises msgspec.ValidationError: this is no pack."""
    try:
        return _decoder.decode(zlib.decompress(b64decode(pack, validate=True)))
    except (ValueError, zlib.error, msgspec.DecodeError) as error:
        raise msgspec.ValidationError(f"the names of finished splits: {error}") from error
