"""Finished splits are kept exactly, in few bytes, with any names and any owners."""

import random
from typing import TYPE_CHECKING

import msgspec
import pytest

from pipelines.connectors import split_progress
from pipelines.connectors.split_progress import (
    NamedPositions,
    SplitProgress,
    names_in,
    owned,
    owner_by_name,
    pack_of,
    packs_of,
    ranges,
)
from pipelines.domain.errors import InvariantViolated
from tests.hostile_names import HOSTILE

if TYPE_CHECKING:
    from pipelines.domain.snapshots import Json

HOSTILE_NAMES = [HOSTILE, "a\nb", "\0", "", "ä" * 255, "part-1", "part-10", '"', "part-1 "]


def test_a_pack_returns_every_name_unchanged() -> None:
    assert names_in(pack_of(HOSTILE_NAMES)) == sorted(HOSTILE_NAMES)
    assert [len(names_in(pack)) for pack in packs_of([str(n) for n in range(2_500)])] == [
        1_000,
        1_000,
        500,
    ]


@pytest.mark.parametrize("pack", ["", "no base64", "AAAA", pack_of(["a"])[:-8]])
def test_a_malformed_pack_is_refused_like_other_positions(pack: str) -> None:
    with pytest.raises(msgspec.ValidationError, match="the names of finished splits"):
        names_in(pack)


@pytest.mark.parametrize("seed", range(40))
def test_repeatedly_redistributed_splits_match_a_plain_set(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(split_progress, "PACK_NAMES", 5)
    chance = random.Random(seed)
    names = [f"part-{chance.randrange(10**6):06}-{n}" for n in range(chance.randint(0, 80))]
    finished = set(chance.sample(names, len(names) * 2 // 3))
    cut = [
        NamedPositions(
            tuple(SplitProgress(name) for name in names if name not in finished),
            True,
            tuple(packs_of(sorted(finished))),
        )
    ]

    for parallelism in [chance.randint(1, 4) for _ in range(4)]:
        shares = [
            owned(cut, lambda name, n=parallelism: owner_by_name(name, n), subtask)
            for subtask in range(parallelism)
        ]
        cut = [
            NamedPositions.from_json(
                NamedPositions(tuple(share.splits), True, tuple(share.finished)).to_json()
            )
            for share in shares
        ]

        assert all(share.known == set(names) for share in shares)
        every = [split for positions in cut for split in positions.every()]
        assert sorted(split.name for split in every) == sorted(names)
        assert {split.name for split in every if split.is_finished} == finished
        for subtask, positions in enumerate(cut):
            assert {owner_by_name(name, parallelism) for name in positions.names()} <= {subtask}


def test_a_pack_whose_owner_stays_is_kept_unchanged() -> None:
    pack = pack_of(["a", "b"])
    share = owned([NamedPositions((), True, (pack,))], lambda _: 1, 1)

    assert share.finished == [pack]


def test_a_name_in_two_packs_violates_an_invariant() -> None:
    packs = (pack_of(["a", "b"]), pack_of(["b", "c"]))

    with pytest.raises(InvariantViolated, match="a split has one owner"):
        owned([NamedPositions((), True, packs)], lambda _: 0, 0)


def test_an_old_point_is_read_and_a_small_one_keeps_the_old_format() -> None:
    stored = b'{"splits":[{"name":"a","is_finished":true}],"has_looked":true}'
    positions = NamedPositions.from_json(msgspec.json.decode(stored))

    assert msgspec.json.encode(positions.to_json()) == stored
    assert list(positions.names()) == ["a"]


def test_ranges_between_two_cuts_do_not_unpack_packs_in_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    both, new = pack_of(["a", "b"]), pack_of(["c", "d"])
    splits = (SplitProgress("c", 3, 3), SplitProgress("d", is_finished=True))
    before: list[Json] = [NamedPositions(splits, True, (both,)).to_json()]
    after: list[Json] = [NamedPositions((SplitProgress("e", 2, 2),), True, (both, new)).to_json()]
    seen: list[str] = []

    def watched(pack: str) -> list[str]:
        seen.append(pack)
        return names_in(pack)

    monkeypatch.setattr("pipelines.connectors.split_progress.names_in", watched)

    found = [(each.split, each.first, each.end) for each in ranges(before, after)]

    assert found == [("c", 3, None), ("e", None, 2)]
    assert seen == [new]
