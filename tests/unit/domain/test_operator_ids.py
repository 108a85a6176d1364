"""Operator ids are the same as Flink's for the same uid."""

import pytest

from pipelines.domain.ids import Uid, operator_id


@pytest.mark.parametrize(
    ("uid", "expected"),
    [
        ("cnt", "f3972bd41bae29c99f67c3c4998870ba"),
        ("src", "f362c87ffabe89c8a91fa7d0a523ba6c"),
        ("sink", "2e588ce1c86a9d46e2e85186773ce4fd"),
    ],
)
def test_an_operator_id_matches_flinks(uid: str, expected: str) -> None:
    assert operator_id(Uid(uid)) == expected


def test_ids_distinguish_uids_with_letters_beyond_ascii() -> None:
    assert operator_id(Uid("zähler")) != operator_id(Uid("zahler"))
    assert len(operator_id(Uid("zähler"))) == 32
