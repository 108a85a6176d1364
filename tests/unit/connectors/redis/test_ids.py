"""Ids of stream entries as numbers: in the same order, without loss, or refused by name."""

import random

import pytest

from pipelines.connectors.redis.stream_entries import id_of, offset_of, offsets_of
from pipelines.domain.errors import Rejected


@pytest.mark.parametrize("seed", range(20))
def test_ids_keep_their_order_and_convert_back_unchanged(seed: int) -> None:
    rng = random.Random(seed)
    pairs = sorted((rng.randrange(1 << 44), rng.randrange(1 << 19)) for _ in range(50))
    ids = [f"{milliseconds}-{number}" for milliseconds, number in pairs]

    offsets = offsets_of([each.encode() for each in ids])

    assert offsets.tolist() == sorted(offsets.tolist())
    assert [id_of(int(offset)) for offset in offsets] == ids
    assert [offset_of(each.encode()) for each in ids] == offsets.tolist()
    assert int(offsets.max()) < 1 << 63


@pytest.mark.parametrize("entry_id", [b"17592186044416-0", b"1-524288"])
def test_an_id_that_does_not_fit_is_refused_by_name(entry_id: bytes) -> None:
    with pytest.raises(Rejected, match=entry_id.decode()):
        offset_of(entry_id)
    with pytest.raises(Rejected, match=entry_id.decode()):
        offsets_of([b"1-0", entry_id])
